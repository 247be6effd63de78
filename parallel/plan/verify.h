// Verifier: proofs about the programs of a step before any of them runs.
#pragma once

#include "parallel/plan/lifetimes.h"
#include "parallel/plan/program.h"
#include "parallel/plan/wiring.h"

#include <span>
#include <vector>

namespace mmt::plan {

/// What besides order and the credit replay is checked.
struct VerifyOptions {
  /// Blocks of this step that the previous step's program made (its actions with step_ahead).
  std::span<const Action> made_before{};
  /// Given: RED, TIE and OPT are exactly those. Not given: those that are there must stand behind what they read.
  const StepEnd* end = nullptr;
  bool strict = false;  ///< the strict replay must end, too: where edges do not buffer
  bool serial = false;  ///< the serial replay must end, too
  /// By edge: receives that the consumer posts ahead, which the strict and serial replays count as buffers; edges
  /// beyond the list post none.
  std::vector<int> posted{};
  /// By stage: most blocks alive on each of its ranks; stages beyond the list have no cap.
  std::vector<LiveBlocks> caps{};
};

/// Throws std::logic_error that names the rank, the action and the rule, unless for every rank:
///   * F runs before R and B (or I), I before W; every action of the graph happens exactly once and nothing else does;
///   * a transfer runs after what it carries was made and before it is read; returned gradients come after the forward;
///   * every RED comes behind the last backward of its stage, TIE behind the RED of its uses, OPT behind all of them;
///   * every send has its receive in the same order on each channel (edge, direction, source, destination);
///   * ranks that share stages run the same sequence of their actions (sends excepted: peers differ);
///   * no block of the step outlives it, and the live blocks keep the caps;
///   * the credit replay ends: each channel buffers `graph.credits` messages, a send waits for room, collectives (RED,
///     TIE, OPT) wait for all their ranks. And the strict and serial replays where options ask for them.
/// Linear in the number of actions and messages.
void verify(const StageGraph& graph, std::span<const Program> programs, const VerifyOptions& options);
void verify(const StageGraph& graph, std::span<const Program> programs, std::span<const Action> made_before = {});

/// The single checks that verify is made of; all throw std::logic_error.
void check_order(const Wiring& wiring, const Program& program, const VerifyOptions& options);
void check_channels(const Wiring& wiring, std::span<const Program> programs);
void check_same_sequence(const Wiring& wiring, std::span<const Program> programs);
/// Caps as in VerifyOptions.
void check_lifetimes(const Wiring& wiring, const Program& program, std::span<const LiveBlocks> caps);

/// How transfers wait in a replay.
enum class Transport : std::uint8_t {
  credit,  ///< channels buffer; an action's messages go one by one
  strict,  ///< rendezvous: a send ends when its receive is there; an action's messages go at once
  serial,  ///< rendezvous, and one message at a time per rank in the order of the program, over all channels
};
/// Runs all programs at once; throws std::logic_error that says in which action each rank waits, unless all end.
/// `capacity`: messages that a channel holds, by edge: the credits, or the posted receives.
void replay(const Wiring& wiring, std::span<const Program> programs, Transport transport,
            std::span<const int> capacity);

/// "program of rank 3: 1F0: comes before ...".
[[noreturn]] void refuse(int rank, const Action& action, std::string_view rule);

}  // namespace mmt::plan
