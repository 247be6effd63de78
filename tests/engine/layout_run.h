// A few training steps of a config over thread ranks, and the comparison of what two layouts computed.
#pragma once

#include "apps/mmtrain/dataset.h"
#include "parallel/comm/threads.h"
#include "parallel/comm/tracing.h"
#include "tests/support/made_step.h"

#include <map>
#include <string>
#include <vector>

namespace mmt::test {

/// What one rank sent and holds.
struct RankReport {
  comm::CommTrace trace;  ///< of all steps, of nothing before them
  std::int64_t grad_bytes = 0, moment_bytes = 0;
};

/// What a run computed: whole tensors by canonical name.
struct Outcome {
  using Tensors = std::map<std::string, std::vector<float>>;
  std::vector<double> losses, norms;  ///< by step
  Tensors first_grads, grads;         ///< before clipping, of the first and the last step
  Tensors weights;                    ///< masters after the last step, frozen ones, too
  double flops = 0.0;                 ///< that a step requires, over all ranks
  std::vector<RankReport> ranks;
  std::vector<std::string> edges;  ///< by id: "eyes 1 > llm 0", stages of a module numbered from 0
};

struct RunOptions {
  int steps = 3;
  bool exact = false;  ///< gradients are added as integers (exact_store.h)
  app::RowCaps caps;
  std::vector<plan::BlockSize> sizes;  ///< a typical block by module, for cuts by work
};

/// Trains on `batch` in every step. `config` has its layout; `ranks`: of all its meshes.
Outcome run_layout(const app::Config& config, const MadeBatch& batch, int ranks, const RunOptions& options);

/// Names the first difference beyond what another order of f32 sums makes; empty: none.
std::string differs(const Outcome& one, const Outcome& other);
/// Names the first of losses, gradients and weights with other bits. Norms are sums over ranks: they must be equal to
/// rounding in f64.
std::string differs_in_bits(const Outcome& one, const Outcome& other);

}  // namespace mmt::test
