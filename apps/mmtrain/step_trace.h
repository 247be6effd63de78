// What a step took, action by action, beside what it should have taken.
#pragma once

#include "apps/mmtrain/engine.h"
#include "apps/mmtrain/predict.h"
#include "parallel/plan/timeline_files.h"

#include <string>

namespace mmt::app {

/// Every lane's programs of a planned step and when their actions should run, by rank. The lanes are predicted one by
/// one: reductions do not wait for the others.
plan::Timeline predict_step(const PlanContext& context, const PlannedStep& step, const Predictor& predictor);

class StepTracer {
 public:
  /// Config, model, preparation and world must outlive it.
  StepTracer(const Config& config, const Model& model, const RowCaps& caps, Machine machine,
             const data::Preparation& preparation, comm::Communicator& world, const Stream& stream);
  ~StepTracer();

  /// Collective, after the engine ran the step: rank 0 writes trace-step-N.json and timeline-step-N.html into the run
  /// folder. What cannot be written is a warning.
  void write(const PlannedStep& step, const Engine& engine, std::int64_t number);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mmt::app
