#include "apps/mmtrain/planned_run.h"

#include "apps/mmtrain/memory.h"
#include "apps/mmtrain/signals.h"
#include "kernels/backend.h"
#include "parallel/run/param_bytes.h"

#include <algorithm>

namespace mmt::app {
namespace {

/// The end of a step as the stores will have it: buckets are closed at so many bytes.
plan::StepEnd planned_end(const Model& model) {
  plan::StepEnd end;
  for (const run::Tie& tie : run::find_ties(model.uses)) end.ties.push_back(tie.stages);
  const std::int64_t bucket = run::StoreOptions().bucket_bytes;
  for (const run::Stage& stage : model.stages) {
    const std::int64_t bytes = run::param_bytes(stage, cpu_stream()).gradients;
    end.buckets.push_back(static_cast<int>((bytes + bucket - 1) / bucket));
  }
  end.update = true;
  return end;
}

}  // namespace

PlanInput read_plan_input(Job& job, const Arguments& a) {
  PlanInput in;
  in.config = job.read_for(a.config, a.overrides, static_cast<int>(a.ranks));
  Config& c = in.config;
  in.ranks = std::max(1, c.parallel.num_ranks());
  std::unique_ptr<Preparer> preparer;
  in_agreement(job.world(), [&] { preparer = std::make_unique<Preparer>(c); });
  set_vocabulary(c, preparer->tokenizer());
  const std::vector<data::DatasetIndex> indexes =
      open_indexes(c, c.data.sets, *preparer, job.world(), &stop_requested(), true);
  const std::vector<data::DatasetIndex> evals =
      open_indexes(c, c.eval.sets, *preparer, job.world(), &stop_requested(), false);
  std::vector<data::SampledSet> sets;
  std::vector<const data::DatasetIndex*> all;
  for (std::size_t s = 0; s < indexes.size(); ++s) {
    sets.push_back({static_cast<std::int64_t>(indexes[s].usable().size()), data::to_ppm(c.data.sets[s].weight)});
    all.push_back(&indexes[s]);
  }
  for (const data::DatasetIndex& index : evals) all.push_back(&index);
  const data::Sampler sampler(c.run.seed, std::move(sets), c.data.shuffle);
  in.workload = workload_of(c, sampler, indexes, row_caps(c, all), preparer->preparation());
  in.machine = machine_of(c, in.ranks, job.world());
  return in;
}

PlannedRun plan_run(const Config& c, const Workload& workload, const Machine& machine) {
  PlannedRun run;
  run.choice = make_layout(c, workload, machine);
  const int first = run.choice.layout.meshes().back().ranks().front();
  run.model = std::make_unique<Model>(build_model(c, run.choice.layout, first));
  Model& model = *run.model;
  run.choice.apply(model);
  model.end = planned_end(model);
  BlockSizes sizes;
  for (const plan::BlockSize& size : workload.block)
    sizes.emplace_back(static_cast<std::size_t>(workload.num_blocks), size);
  run.graph = plan::lane_graph(model.layout, model.lane, model.traits, sizes, true);
  run.programs = lane_programs(model, run.graph, true);
  const Predictor predictor(c, model, workload.caps, machine, cpu_stream());
  run.timeline = predictor.timeline(run.graph, run.programs, sizes);
  run.memory = predictor.memory(workload.most_blocks);
  return run;
}

std::vector<std::string> PlannedRun::stage_names(const Config& c) const { return app::stage_names(c, model->layout); }

std::string memory_advice(const Config& c) {
  std::string text = "more stages (pp) or tensor parallelism (tp)";
  if (!c.train.recompute_auto && c.recompute_of(c.encoders.size()) != run::Recompute::full)
    text += ", train.recompute: full or auto";
  if (!c.parallel.meshes.empty() && c.parallel.meshes.front().dp > 1 &&
      std::ranges::find(c.parallel.zero, false) != c.parallel.zero.end())
    text += ", parallel.zero: 1 for what trains";
  text += ", or a lower train.tokens_per_microbatch";
  if (c.train.precision == DType::f32) text += ", or train.precision: bf16";
  return text + " would lower it";
}

}  // namespace mmt::app
