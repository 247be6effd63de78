// One step as a plan: which samples, where, in which blocks. Pure: the same on every rank, made ahead of the step.
#pragma once

#include "apps/mmtrain/dataset.h"
#include "apps/mmtrain/model.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace mmt::app {

/// A sample of the global batch.
struct PlannedSample {
  std::int32_t set = 0;
  std::int64_t record = 0;  ///< in its file
  std::int64_t place = 0;   ///< in the data order (training) or over all sets of the evaluation
};

struct PlannedStep {
  std::int64_t number = 0;             ///< of the loader's request
  std::vector<PlannedSample> samples;  ///< the global batch
  std::vector<plan::SampleMeta> metas;
  plan::Assignment assignment;
  std::vector<std::vector<plan::RowsPlan>> rows;  ///< this lane's, by stage and block
  plan::StageGraph graph;
  plan::Program program;
  double weight = 0.0;                    ///< W, if no sample fails
  std::vector<std::int64_t> module_rows;  ///< by stage, over the whole batch
  std::vector<std::int32_t> own;          ///< this lane's samples, in the order in which they are loaded
  std::uint64_t hash = 0;

  /// What this rank's loader must bring, in the order of `own`.
  std::vector<data::Wanted> wanted() const;
};

struct PlanContext {
  const Config* config = nullptr;
  const Model* model = nullptr;
  const data::Preparation* preparation = nullptr;
  int lane = 0;
  int lanes = 1;
  bool train = true;
  bool all_rows = false;  ///< evaluation: every row's logits are wanted, labels do not count
};

/// `indexes` by set. The result is on the heap because blocks in flight point into it.
std::unique_ptr<PlannedStep> plan_step(const PlanContext& context, const std::vector<data::DatasetIndex>& indexes,
                                       std::int64_t number, std::vector<PlannedSample> samples);
/// The same from samples whose rows are known: one of `metas` each. The context's preparation is not used.
std::unique_ptr<PlannedStep> plan_step(const PlanContext& context, std::vector<plan::SampleMeta> metas,
                                       std::int64_t number, std::vector<PlannedSample> samples);

/// What a sample adds to W.
double weight_of(data::LossWeights loss, std::int64_t supervised);

}  // namespace mmt::app
