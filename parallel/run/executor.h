// Executor: walks a rank's Program. It owns the memory of all blocks in flight, sized before the first step; inside an
// action nothing is allocated.
#pragma once

#include "parallel/plan/lifetimes.h"
#include "parallel/plan/program.h"
#include "parallel/run/stage.h"
#include "parallel/run/store.h"

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace mmt::run {

/// One stage as this rank runs it.
struct StageSetup {
  int id = 0;  ///< of the StageGraph
  const Stage* stage = nullptr;
  ParameterStore* store = nullptr;
  std::array<comm::Communicator*, plan::kNumAxes> comms{};  ///< by axis; null where the degree is 1
  std::vector<int> tp_group;                                ///< world ranks of this rank's tp group, in order
  plan::BlockSize cap;                                      ///< no block is larger in any size
  std::vector<std::int64_t> port_cap;                       ///< by stage port: most rows
  plan::LiveBlocks live;                                    ///< most blocks in flight, over all programs that will run
  std::vector<Recompute> recompute;                         ///< by unit; empty: none
  bool evaluates = true;                                    ///< forward-only programs will run, too
};

/// What of it has an effect: units with a backward that are no sinks (the forward of a sink already computed what its
/// backward reads), selective only with something cheap.
Recompute effective(const UnitPlan& unit, Recompute wanted);

/// What one step (or the part of a later one that runs ahead) works on.
struct StepData {
  const plan::StageGraph* graph = nullptr;
  std::vector<std::vector<Rows>> rows;  ///< by stage id and block; empty for stages of other ranks
  double loss_scale = 0.0;              ///< 1 / W; 0 when W is 0
  std::int64_t number = 0;              ///< of the training step: draws are addressed by it
};

/// What the program asks of the owner of optimizer, buckets and loader.
struct StepHooks {
  std::function<void(int stage, int block)> load;
  std::function<void(int stage, int bucket)> reduce;
  std::function<void(int bucket)> tie;
  std::function<void(int stage)> optimize;
};

struct TraceRow {
  plan::Action action;
  double start = 0.0;  ///< seconds since the start of the run() call
  double end = 0.0;
  double thread_seconds = 0.0;  ///< CPU time of the calling thread
};

struct ExecutorOptions {
  std::uint64_t seed = 0;     ///< of all draws
  bool check_events = false;  ///< compare executed inner collectives with the planned ones
};

class Executor {
 public:
  /// Collective over `world`: makes a channel for each edge and direction.
  Executor(comm::Communicator& world, const plan::StageGraph& graph, std::vector<StageSetup> stages,
           const Stream& stream, const ExecutorOptions& options = {});
  ~Executor();

  /// `steps[0]` is this step, `steps[a]` what actions with step_ahead a work on. Broken rules and waits that end
  /// (PeerError) name the action.
  void run(const plan::Program& program, std::span<StepData> steps, const StepHooks& hooks, Mode mode);

  std::span<const TraceRow> trace() const;
  double started() const;  ///< when the last run() was called: seconds of the monotonic clock
  /// Of the last run: seconds spent in units without an output (heads and their losses), part of their actions' time.
  double sink_seconds() const;
  /// Bytes of all arenas, and the most that was used of them.
  std::int64_t capacity_bytes() const;
  std::int64_t peak_bytes() const;
  struct ArenaUse {
    std::string name;  ///< "kept of stage 2", "work"
    std::int64_t capacity = 0, peak = 0;
  };
  std::vector<ArenaUse> arenas() const;

  /// Called in evaluation with chunks of logits of consecutive supervised rows of a block.
  void set_logits_sink(std::function<void(int block, std::int64_t first, const Tensor& logits)> sink);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Bytes that the arenas of a stage need: what `plan` prints and the executor takes.
struct StageMemory {
  /// For one block each. What recompute makes again lies in `restored` from R on; without an R in `work`, and what BW
  /// reads of it in `stash` until a BW of its own.
  std::int64_t kept = 0, held = 0, stash = 0, ports = 0, restored = 0;
  std::int64_t work = 0;  ///< shared by all stages of the rank (the largest counts)
  std::int64_t total(const plan::LiveBlocks& live) const;
};
StageMemory stage_memory(const StageSetup& setup, const Stream& stream);

}  // namespace mmt::run
