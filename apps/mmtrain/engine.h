// Runs planned steps of one rank: fills the rows with what the loader brought, executes the program, gives back what
// the samples' losses were.
#pragma once

#include "apps/mmtrain/step.h"
#include "parallel/run/executor.h"
#include "parallel/run/rows.h"

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace mmt::app {

/// What became of one of this lane's samples.
struct SampleResult {
  std::int32_t sample = 0;  ///< index in PlannedStep::samples
  bool failed = false;
  double loss = 0.0;  ///< sum of weight x token loss
  double weight = 0.0;
  std::int64_t supervised = 0;
  std::int64_t correct = 0;  ///< evaluation: arg max is the label
  std::int64_t answers = 0;  ///< runs of consecutive supervised rows
  std::int64_t exact = 0;    ///< evaluation: answers whose every row is correct (what greedy decoding would give)
};

/// Seconds of one step by what they were spent on.
struct StepTimes {
  double encoders = 0.0, llm = 0.0, loss = 0.0, transfers = 0.0, reduction = 0.0, optimizer = 0.0;
};

class Engine {
 public:
  /// Collective. `caps`: the largest blocks of any step, training or evaluation.
  Engine(const Config& config, comm::Communicator& world, Model& model, const RowCaps& caps, const Stream& stream);
  ~Engine();

  /// `samples` in the order of `step.own`, failures agreed (agree_on_failed). The results are of the rank that leads
  /// the last stage of its lane; other ranks have none. `loss_scale` = 1 / W of the samples that did not fail. In
  /// training, `optimize` is called where the program says.
  std::vector<SampleResult> run(const PlannedStep& step, const std::vector<data::LoadedSample>& samples,
                                double loss_scale, bool train, const std::function<void()>& optimize = {});

  const StepTimes& times() const { return times_; }
  const run::Executor& executor() const { return *executor_; }
  std::int64_t capacity_bytes() const;  ///< of the block arenas
  std::int64_t peak_bytes() const;
  std::vector<run::Executor::ArenaUse> arenas() const;
  std::int64_t rows_bytes() const;  ///< of the rows' ids, labels, masks and media
  /// Logits of every row of this lane's samples, by index in step.samples: (rows, vocabulary) f32 each. The step was
  /// planned with all_rows.
  std::map<std::int32_t, std::vector<float>> logits(const PlannedStep& step,
                                                    const std::vector<data::LoadedSample>& samples);

 private:
  run::RowsMemory& memory(int stage, std::size_t block);
  void verify_once(const PlannedStep& step, bool train);
  void fill(const PlannedStep& step, const std::vector<data::LoadedSample>& samples, bool with_labels);
  void execute(const PlannedStep& step, double loss_scale, bool train, const std::function<void()>& optimize);
  std::vector<SampleResult> results(const PlannedStep& step, const std::vector<data::LoadedSample>& samples,
                                    bool train);
  void read_times();

  Model& model_;
  Stream stream_;
  std::map<int, run::RowsCapacity> capacities_;                            ///< by stage of this rank
  std::vector<plan::LiveBlocks> caps_;                                     ///< by stage
  std::set<std::uint64_t> verified_;                                       ///< shapes of programs
  std::map<int, std::vector<std::unique_ptr<run::RowsMemory>>> memories_;  ///< by stage of this rank
  std::unique_ptr<run::Executor> executor_;
  StepTimes times_;
};

}  // namespace mmt::app
