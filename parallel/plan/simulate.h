// Simulator: programs and costs -> timeline. Integer nanoseconds; each rank walks its program in order, messages follow
// the rules of the verifier's credit replay, so every program that passes it ends here. Because ranks never choose what
// to run next, times are the least solution of "an action starts when its rank is free and what it waits for is there";
// no order of events has to be kept.
#pragma once

#include "parallel/plan/live.h"
#include "parallel/plan/program.h"
#include "parallel/plan/timeline.h"
#include "parallel/plan/timing.h"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace mmt::plan {

/// What moving rows takes. Inline: a SEND copies to each destination in turn, a RECV from each source. Overlapped: both
/// take no time of the rank. A RECV's rows from its own rank are one copy, always inline.
struct TransferCosts {
  Link local, intra, inter;              ///< within a rank, within a node, between nodes
  std::vector<int> node_of;              ///< by world rank; empty: one node
  std::vector<std::int64_t> row_bytes;   ///< by edge; empty: 0
  std::vector<std::int64_t> grad_bytes;  ///< of one row's gradient, by edge; empty: as row_bytes
};

/// Ranks that run a stage's actions together: none starts before all are there, and all end with the slowest.
struct SyncGroup {
  int stage = 0;
  std::vector<int> ranks;
  bool compute = false;  ///< F, R, I, W, B: tensor and context parallel groups
  bool reduce = false;   ///< RED, TIE, OPT: data parallel groups
};

struct SimulateOptions {
  TransferCosts transfers;
  std::vector<SyncGroup> groups;
  std::vector<BlockBytes> block_bytes;    ///< by stage; empty: no memory curve
  std::vector<std::int64_t> fixed_bytes;  ///< by world rank: parameters, gradients, optimizer; empty: 0
};

/// Time of an action that is no transfer.
using ActionCost = std::function<Ns(int rank, const Action&)>;

/// Throws std::logic_error that names who waits for what when the programs never end.
Timeline simulate(const StageGraph& graph, std::span<const Program> programs, const ActionCost& cost,
                  const SimulateOptions& options = {});

/// The same with a time for each action of each program, as recorded in a run. `kModelled` in place of a transfer's
/// time takes it from the options; a recorded time of a transfer is what its own copy took, without waiting.
inline constexpr Ns kModelled = -1;
Timeline replay(const StageGraph& graph, std::span<const Program> programs, std::span<const std::vector<Ns>> times,
                const SimulateOptions& options = {});

/// Times of a stage's blocks as the cost of its actions: F, R, I (with the recompute, unless the program has an R for
/// the block), W, B = I + W. LOAD, RED, TIE and OPT take what the stage says.
struct StageTimes {
  std::vector<LayerTime> blocks;  ///< by block; one entry: all blocks alike
  Ns load = 0;
  Ns reduce = 0;  ///< each RED or TIE
  Ns optimize = 0;
};
ActionCost cost_of_stages(std::span<const Program> programs, std::vector<StageTimes> stages);

}  // namespace mmt::plan
