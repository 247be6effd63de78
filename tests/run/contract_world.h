// A small multimodal model of three stages (encoder, LLM part A, LLM part B with a tied head) on thread ranks, in any
// layout, under hand-written programs.
#pragma once

#include "contract_units.h"

#include "parallel/plan/program.h"
#include "parallel/run/executor.h"

#include <map>
#include <string>
#include <vector>

namespace mmt::testing {

struct Layout {
  int lanes = 1;
  /// Tensor-parallel degree of the three stages, and whether they share one rank a lane (then all degrees are 1).
  int encoder_tp = 1, llm_tp = 1;
  bool together = true;
  bool shared_link = false;  ///< the LLM's parts hand over shares of the rows; blocks have 14 and 16
  bool sharded = false;      ///< parameter stores
  int zero = 0;              ///< of those that do not shard
  /// Of unit u of every stage: recompute[u % size]; empty: none.
  std::vector<run::Recompute> recompute{};
  bool tight = false;  ///< caps are the largest sizes of the blocks, so that arenas can be full
  int steps = 1;       ///< runs of the same data
  std::function<bool(const std::string&)> trainable = [](const std::string&) { return true; };
  /// Program text of each of the three stages (`together`: only the first is used). SENDs that have nobody to send to
  /// on a rank are left out. `prologue` runs before the first step, in the place of what step 0 has no predecessor for.
  std::vector<std::string> programs;
  std::vector<std::string> prologue;
  std::vector<std::string> last;  ///< for the last step, when it differs (nothing runs ahead); empty: as `programs`
  int encoder_ahead = 0;
  // Mutations: what a broken runtime would do.
  int drop_segment_of_edge = -1;
  std::string perturb;  ///< canonical name: its first element gets `perturb_by`
  double perturb_by = 0.0;
  int silent_rank = -1;  ///< runs none of its program
  double timeout_seconds = 60.0;

  int world_size() const { return together ? lanes : lanes * (encoder_tp + 2 * llm_tp); }
};

struct Outcome {
  double loss = 0.0;                                         ///< sum of weight x loss / W of the last step
  std::map<std::string, std::vector<double>> grads;          ///< whole tensors, by canonical name, of the last step
  std::vector<double> losses;                                ///< the ranks' shares of it
  std::vector<std::string> programs;                         ///< as run, by rank
  std::int64_t peak_bytes = 0, capacity_bytes = 0;           ///< of rank 0
  std::vector<std::vector<run::Executor::ArenaUse>> arenas;  ///< by rank
};

/// Runs the layout on threads. Errors of ranks are thrown.
Outcome run_layout(const Layout& layout);

}  // namespace mmt::testing
