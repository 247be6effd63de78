#include "apps/mmtrain/step.h"

#include "core/philox.h"

#include <algorithm>

namespace mmt::app {

double weight_of(data::LossWeights loss, std::int64_t supervised) {
  if (loss == data::LossWeights::token) return static_cast<double>(supervised);
  return supervised > 0 ? 1.0 : 0.0;
}

std::vector<data::Wanted> PlannedStep::wanted() const {
  std::vector<data::Wanted> list;
  for (const std::int32_t i : own) {
    const auto at = static_cast<std::size_t>(i);
    data::Wanted w;
    w.set = samples[at].set;
    w.sample = samples[at].record;
    for (std::size_t item = 0; item < metas[at].items.size(); ++item)
      w.items.push_back(static_cast<std::int32_t>(item));
    list.push_back(std::move(w));
  }
  return list;
}

namespace {

std::vector<std::int64_t> rows_by_module(const std::vector<plan::SampleMeta>& metas, std::size_t num_encoders) {
  std::vector<std::int64_t> rows(num_encoders + 1, 0);
  for (const plan::SampleMeta& m : metas) {
    rows.back() += m.rows;
    for (const plan::ItemMeta& item : m.items) rows[static_cast<std::size_t>(item.encoder)] += item.inner_rows;
  }
  return rows;
}

}  // namespace

std::unique_ptr<PlannedStep> plan_step(const PlanContext& c, const std::vector<data::DatasetIndex>& indexes,
                                       std::int64_t number, std::vector<PlannedSample> samples) {
  std::vector<plan::SampleMeta> metas;
  for (const PlannedSample& s : samples) {
    metas.push_back(sample_meta(indexes[static_cast<std::size_t>(s.set)].entry(s.record), s.place, *c.preparation));
  }
  return plan_step(c, std::move(metas), number, std::move(samples));
}

std::unique_ptr<PlannedStep> plan_step(const PlanContext& c, std::vector<plan::SampleMeta> metas, std::int64_t number,
                                       std::vector<PlannedSample> samples) {
  auto step = std::make_unique<PlannedStep>();
  step->number = number;
  step->samples = std::move(samples);
  step->metas = std::move(metas);
  std::uint64_t hash = hash64(static_cast<std::uint64_t>(number), step->samples.size());
  for (std::size_t i = 0; i < step->samples.size(); ++i) {
    const PlannedSample& s = step->samples[i];
    plan::SampleMeta& meta = step->metas[i];
    if (c.all_rows) {
      meta.supervised = meta.rows;
      for (plan::RunMeta& run : meta.runs) run.supervised = run.length;
    }
    step->weight += weight_of(c.config->train.loss, meta.supervised);
    hash = hash64(hash, hash64(static_cast<std::uint64_t>(s.record), static_cast<std::uint64_t>(s.set)));
  }
  const TrainConfig& train = c.config->train;
  step->assignment = plan::assign(step->metas, {.lanes = c.lanes,
                                                .block_rows = train.tokens_per_microbatch,
                                                .min_blocks = static_cast<int>(train.microbatches.value_or(1))});
  step->hash = hash64(hash, step->assignment.hash());

  const std::size_t encoders = c.model->num_encoders();
  step->module_rows = rows_by_module(step->metas, encoders);
  step->rows.resize(encoders + 1);
  for (const auto& block : step->assignment.samples[static_cast<std::size_t>(c.lane)]) {
    for (std::size_t e = 0; e < encoders; ++e) {
      step->rows[e].push_back(plan::encoder_rows(step->metas, block, static_cast<int>(e), c.model->encoder_rows[e]));
    }
    step->rows.back().push_back(plan::llm_rows(step->metas, block, static_cast<int>(encoders), c.model->llm_windows,
                                               c.config->llm.bidirectional_media));
    step->own.insert(step->own.end(), block.begin(), block.end());
  }
  std::vector<std::vector<const plan::RowsPlan*>> views(step->rows.size());
  for (std::size_t s = 0; s < step->rows.size(); ++s) {
    for (const plan::RowsPlan& p : step->rows[s]) views[s].push_back(&p);
  }
  step->graph = plan::colocated_graph(c.model->modules, c.lane, views, c.train);
  step->program = plan::colocated_program(c.model->modules, c.lane, step->assignment.num_blocks, c.train);
  return step;
}

}  // namespace mmt::app
