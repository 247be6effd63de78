// The training loop: draws, plans, loads, steps, evaluates, saves.
#pragma once

#include "apps/mmtrain/evaluate.h"
#include "core/data/report.h"
#include "parallel/run/optimizer.h"

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mmt::app {

/// What training is at, besides weights and moments; all that a checkpoint must hold to go on.
struct Progress {
  std::int64_t step = 0;       ///< batches drawn and done
  std::int64_t cursor = 0;     ///< samples drawn
  std::int64_t updates = 0;    ///< optimizer updates
  data::DataReport report;     ///< summed over ranks
  std::optional<double> best;  ///< of checkpoint.keep_best
};

/// One step's figures, equal on all ranks.
struct StepFigures {
  double loss = 0.0, grad_norm = 0.0, lr = 0.0;
  double weight = 0.0;  ///< W of the samples that did not fail
  double rows = 0.0;    ///< LLM rows over all ranks
  double seconds = 0.0;
  double waited = 0.0;     ///< for the loader, mean over ranks
  StepTimes times;         ///< mean over ranks
  double imbalance = 0.0;  ///< slowest rank's work / mean work - 1
  std::int64_t failed = 0;
  bool updated = false;
};

class Trainer {
 public:
  Trainer(Config config, Job& job);
  ~Trainer();

  /// Trains to the end, or until a stop was requested: the exit code.
  int run();

  /// One step without log, evaluation or save: what `dump` uses.
  StepFigures step();
  Progress& progress() { return progress_; }
  Model& model() { return *model_; }
  Engine& engine() { return *engine_; }
  const PlannedStep& last_step() const { return *last_; }
  const std::vector<data::LoadedSample>& last_samples() const { return loaded_; }
  const std::vector<SampleResult>& last_results() const { return results_; }
  std::int64_t total_steps() const;

  /// Of `step`: leave weights as they are (gradients stay in the stores).
  void set_update(bool on) { update_ = on; }

 private:
  void open_data();
  void make_model();
  void make_optimizer();
  std::unique_ptr<PlannedStep> plan_next();
  void fill_queue();
  void check_plan(const PlannedStep& step);
  bool take_samples();
  void stop_on_failures(double failed);
  void account(const PlannedStep& step);
  StepFigures gather(const StepFigures& mine);

  Config config_;
  Job& job_;
  Stream stream_;
  std::unique_ptr<Preparer> preparer_;
  std::vector<data::DatasetIndex> indexes_, eval_indexes_;
  std::unique_ptr<data::Sampler> sampler_;
  std::unique_ptr<data::Loader> loader_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<run::Optimizer> optimizer_;
  run::Schedule schedule_;
  Progress progress_;
  std::int64_t drawn_ = 0;  ///< cursor of the next step to plan
  std::int64_t planned_steps_ = 0;
  std::deque<std::unique_ptr<PlannedStep>> queue_;
  std::unique_ptr<PlannedStep> last_;
  std::vector<data::LoadedSample> loaded_;
  std::vector<SampleResult> results_;
  bool update_ = true;
};

}  // namespace mmt::app
