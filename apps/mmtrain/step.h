// One step as a plan: which samples, where, in which blocks. Pure: the same on every rank, made ahead of the step.
#pragma once

#include "apps/mmtrain/dataset.h"
#include "apps/mmtrain/model.h"

#include <cstdint>
#include <memory>
#include <span>
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
  std::vector<std::vector<plan::RowsPlan>> rows;  ///< this lane's, by module and block; empty: runs on other ranks
  plan::StageGraph graph;                         ///< of this lane
  plan::Program program;                          ///< of this rank
  double weight = 0.0;                            ///< W, if no sample fails
  std::vector<std::int64_t> module_rows;          ///< by module, over the whole batch
  std::vector<std::int32_t> own;                  ///< this lane's samples, in the order of blocks
  std::vector<data::Wanted> wanted;               ///< what this rank's tp group must load, in the order of `own`
  std::uint64_t hash = 0;
};

struct PlanContext {
  const Config* config = nullptr;
  const Model* model = nullptr;
  const data::Preparation* preparation = nullptr;
  bool train = true;
  bool all_rows = false;  ///< evaluation: every row's logits are wanted, labels do not count
};

/// `indexes` by set. The result is on the heap because blocks in flight point into it.
std::unique_ptr<PlannedStep> plan_step(const PlanContext& context, const std::vector<data::DatasetIndex>& indexes,
                                       std::int64_t number, std::vector<PlannedSample> samples);
/// The same from samples whose rows are known: one of `metas` each. The context's preparation is not used.
std::unique_ptr<PlannedStep> plan_step(const PlanContext& context, std::vector<plan::SampleMeta> metas,
                                       std::int64_t number, std::vector<PlannedSample> samples);

/// The rows of a module for one block, by index into `metas`.
plan::RowsPlan block_rows(const Model& model, std::span<const plan::SampleMeta> metas,
                          std::span<const std::int32_t> block, std::size_t module);

/// The program of every rank of this rank's lane for a graph, whose credits are raised where its schedule needs more.
std::vector<plan::Program> lane_programs(const Model& model, plan::StageGraph& graph, bool train);

/// Collective: which samples of the batch failed to load on any rank. Those of `loaded` (in the order of step.own) that
/// did get weight 0 and the fault on every rank. By sample of the batch: -1, or the fault.
std::vector<std::int32_t> agree_on_failed(comm::Communicator& world, const PlannedStep& step,
                                          std::vector<data::LoadedSample>& loaded);

/// What a sample adds to W.
double weight_of(data::LossWeights loss, std::int64_t supervised);

}  // namespace mmt::app
