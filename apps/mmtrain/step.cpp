#include "apps/mmtrain/step.h"

#include "core/philox.h"
#include "parallel/plan/passes.h"

#include <algorithm>

namespace mmt::app {

double weight_of(data::LossWeights loss, std::int64_t supervised) {
  if (loss == data::LossWeights::token) return static_cast<double>(supervised);
  return supervised > 0 ? 1.0 : 0.0;
}

namespace {

/// Text for the first and last stage of the LLM, media for the first stage of their encoder.
data::Wanted wanted_of(const PlannedStep& step, const Model& model, std::int32_t sample) {
  const auto at = static_cast<std::size_t>(sample);
  data::Wanted w;
  w.set = step.samples[at].set;
  w.sample = step.samples[at].record;
  const auto here = [&](int stage) { return std::ranges::find(model.own, stage) != model.own.end(); };
  const std::size_t llm = model.num_encoders();
  w.text = here(model.first_stage(llm)) || here(model.last_stage(llm));
  for (std::size_t item = 0; item < step.metas[at].items.size(); ++item) {
    if (here(model.first_stage(static_cast<std::size_t>(step.metas[at].items[item].encoder))))
      w.items.push_back(static_cast<std::int32_t>(item));
  }
  return w;
}

/// Sizes of a block of a module that another rank runs: what routes need of it.
plan::BlockSize size_elsewhere(const std::vector<plan::SampleMeta>& metas, const std::vector<std::int32_t>& block,
                               std::size_t module, std::size_t num_encoders, std::int64_t quantum) {
  plan::BlockSize size;
  for (const std::int32_t i : block) {
    const plan::SampleMeta& m = metas[static_cast<std::size_t>(i)];
    if (module == num_encoders) size.rows += m.rows;
    for (const plan::ItemMeta& item : m.items) {
      if (static_cast<std::size_t>(item.encoder) != module) continue;
      size.rows += item.inner_rows;
      size.out += item.rows;
    }
  }
  size.rows = plan::round_up(size.rows, quantum);
  return size;
}

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
  const Model& model = *c.model;
  step->assignment = plan::assign(step->metas, {.lanes = model.layout.lanes(),
                                                .block_rows = train.tokens_per_microbatch,
                                                .min_blocks = static_cast<int>(train.microbatches.value_or(1))});
  step->hash = hash64(hash, step->assignment.hash());

  const std::size_t encoders = model.num_encoders();
  step->module_rows = rows_by_module(step->metas, encoders);
  step->rows.resize(encoders + 1);
  std::vector<std::vector<plan::BlockSize>> sizes(encoders + 1);
  for (const auto& block : step->assignment.samples[static_cast<std::size_t>(model.lane)]) {
    for (std::size_t m = 0; m <= encoders; ++m) {
      if (!model.runs_module(m)) {
        sizes[m].push_back(size_elsewhere(step->metas, block, m, encoders, model.row_quantum[m]));
        continue;
      }
      step->rows[m].push_back(block_rows(model, step->metas, block, m));
      sizes[m].push_back(step->rows[m].back().size);
    }
    step->own.insert(step->own.end(), block.begin(), block.end());
  }
  for (const std::int32_t i : step->own) step->wanted.push_back(wanted_of(*step, model, i));
  step->graph = plan::lane_graph(model.layout, model.lane, model.traits, sizes, c.train);
  const std::vector<plan::Program> programs = lane_programs(model, step->graph, c.train);
  step->program = *std::ranges::find(programs, model.rank, &plan::Program::rank);
  return step;
}

std::vector<std::int32_t> agree_on_failed(comm::Communicator& world, const PlannedStep& step,
                                          std::vector<data::LoadedSample>& loaded) {
  std::vector<std::int32_t> faults(step.samples.size(), -1);
  for (std::size_t i = 0; i < loaded.size(); ++i) {
    if (loaded[i].failed) faults[static_cast<std::size_t>(step.own[i])] = static_cast<std::int32_t>(loaded[i].fault);
  }
  if (world.size() == 1 || faults.empty()) return faults;
  world.all_reduce(Tensor(faults.data(), DType::i32, {static_cast<std::int64_t>(faults.size())}), comm::ReduceOp::max);
  for (std::size_t i = 0; i < loaded.size(); ++i) {
    const std::int32_t fault = faults[static_cast<std::size_t>(step.own[i])];
    if (fault < 0) continue;
    loaded[i].failed = true;
    loaded[i].fault = static_cast<DataFault>(fault);
    std::ranges::fill(loaded[i].weights, 0.0F);
  }
  return faults;
}

plan::RowsPlan block_rows(const Model& model, std::span<const plan::SampleMeta> metas,
                          std::span<const std::int32_t> block, std::size_t module) {
  const std::int64_t quantum = model.row_quantum[module];
  return module < model.num_encoders()
             ? plan::encoder_rows(metas, block, static_cast<int>(module), model.encoder_rows[module], quantum)
             : plan::llm_rows(metas, block, model.llm_rows, quantum);
}

std::vector<plan::Program> lane_programs(const Model& model, plan::StageGraph& graph, bool train) {
  std::vector<int> places, rounds;
  for (const plan::LayoutStage& stage : model.layout.stages()) {
    places.push_back(stage.place);
    rounds.push_back(stage.round);
  }
  const bool chunked = std::ranges::any_of(rounds, [](int r) { return r > 0; });
  const plan::PipelineShape shape =
      plan::shape_of(graph, places, {}, chunked ? std::span<const int>(rounds) : std::span<const int>());
  plan::ScheduleOptions options = model.schedule;
  if (chunked) graph.credits = std::max(graph.credits, plan::credits_needed(shape, options.policy));
  options.credits = graph.credits;
  plan::PassOptions passes;
  passes.boundary = plan::boundary_of(options.policy);
  if (train) passes.end = model.end;
  passes.reduce_early = true;
  return plan::make_programs(graph, plan::generate(shape, options), passes);
}

}  // namespace mmt::app
