// The training loop: draws, plans, loads, steps, evaluates, saves.
#pragma once

#include "apps/mmtrain/evaluate.h"
#include "apps/mmtrain/flops.h"
#include "apps/mmtrain/step_trace.h"
#include "core/data/report.h"
#include "core/metrics/metrics.h"
#include "parallel/run/buckets.h"
#include "parallel/run/checkpoint.h"
#include "parallel/run/optimizer.h"
#include "parallel/run/run_lock.h"

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mmt::app {

/// What training is at, besides weights and moments; all that a checkpoint must hold to go on.
struct Progress {
  std::int64_t step = 0;     ///< batches drawn and done
  std::int64_t cursor = 0;   ///< samples drawn
  std::int64_t updates = 0;  ///< optimizer updates
  data::DataReport report;   ///< summed over ranks
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
  double flops = 0.0;  ///< that the frozen pattern requires, over all ranks
  bool begun = false;  ///< false: a stop was requested, nothing was done
  bool updated = false;
};

class Trainer {
 public:
  Trainer(Config config, Job& job);
  ~Trainer();

  /// Trains from where the run folder is to the end, or until a stop was requested: the exit code.
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

  /// Logits of every row of the last step's samples on this rank, under the weights as they are now.
  std::map<std::int32_t, std::vector<float>> last_logits();
  std::int64_t vocabulary() const { return config_.llm.spec.vocabulary; }
  /// `init: {checkpoint: ...}` of the modules; run() does it itself.
  void load_initial_weights();

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
  void stop_on_failures(const std::vector<std::string>& messages, std::int64_t failed);
  void account(const PlannedStep& step, const std::vector<std::int32_t>& faults);
  void start_or_resume();
  void resume_from(const std::string& path);
  void check_config_change(const std::string& before);
  void check_data(const run::TrainingState& before);
  void open_sinks(bool resumed);
  void report_step(const StepFigures& f);
  void report_memory();
  void report_loading(double train_seconds, double waited);
  void evaluate_now();
  void show_answers();
  void save();
  void check_replicas_now();
  run::TrainingState state() const;
  StepFigures gather(const StepFigures& mine);

  Config config_;
  Job& job_;
  Stream stream_;
  std::unique_ptr<Preparer> preparer_;
  std::vector<data::DatasetIndex> indexes_, eval_indexes_;
  std::string data_identity_;
  std::unique_ptr<data::Sampler> sampler_;
  std::unique_ptr<data::Loader> loader_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<RequiredFlops> required_flops_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<StepTracer> tracer_;  ///< where steps are traced
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

  // Of run() alone.
  std::unique_ptr<run::RunLock> lock_;
  std::unique_ptr<run::CheckpointWriter> writer_;
  std::vector<std::unique_ptr<Sink>> sinks_;
  std::map<std::string, double> eval_metrics_;  ///< of the last evaluation
  std::int64_t evaluated_step_ = -1, saved_step_ = -1;
  std::int64_t memory_before_ = 0;    ///< resident before the model was made
  std::int64_t memory_expected_ = 0;  ///< what the model, optimizer and blocks take
};

}  // namespace mmt::app
