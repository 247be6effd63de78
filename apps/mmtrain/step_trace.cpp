#include "apps/mmtrain/step_trace.h"

#include "apps/mmtrain/layout.h"
#include "core/files.h"
#include "core/log.h"
#include "parallel/run/trace.h"

#include <algorithm>

namespace mmt::app {
namespace {

/// By module and block of a lane.
BlockSizes sizes_of(const PlanContext& c, const PlannedStep& step, int lane) {
  BlockSizes sizes(c.model->num_modules());
  for (const auto& block : step.assignment.samples[static_cast<std::size_t>(lane)]) {
    for (std::size_t m = 0; m < sizes.size(); ++m)
      sizes[m].push_back(block_rows(*c.model, step.metas, block, m).size);
  }
  return sizes;
}

/// A transfer's measured time is mostly waiting, which is no error of the prediction.
std::vector<plan::ActionError> errors_of(const plan::Timeline& predicted, const plan::Timeline& measured) {
  std::vector<plan::ActionError> errors = plan::compare(predicted, measured);
  std::erase_if(errors,
                [](const plan::ActionError& e) { return e.kind == plan::Kind::send || e.kind == plan::Kind::recv; });
  return errors;
}

}  // namespace

plan::Timeline predict_step(const PlanContext& c, const PlannedStep& step, const Predictor& predictor) {
  const Model& model = *c.model;
  plan::Timeline all;
  for (int lane = 0; lane < model.layout.lanes(); ++lane) {
    const BlockSizes sizes = sizes_of(c, step, lane);
    plan::StageGraph graph = plan::lane_graph(model.layout, lane, model.traits, sizes, c.train);
    const std::vector<plan::Program> programs = lane_programs(model, graph, c.train);
    plan::Timeline timeline = predictor.timeline(graph, programs, sizes);
    std::ranges::move(timeline.ranks, std::back_inserter(all.ranks));
    if (timeline.makespan <= all.makespan) continue;
    all.makespan = timeline.makespan;
    all.critical = std::move(timeline.critical);
  }
  std::ranges::sort(all.ranks, {}, &plan::RankTimeline::rank);
  summarise(all);
  return all;
}

struct StepTracer::Impl {
  Impl(const Config& c, const Model& m, const RowCaps& caps, Machine on, const data::Preparation& preparation,
       comm::Communicator& w, const Stream& stream)
      : config(c),
        model(m),
        world(w),
        row_caps(caps),
        machine(std::move(on)),
        predictor(c, m, row_caps, machine, stream),
        context{&c, &m, &preparation, true} {}

  const Config& config;
  const Model& model;
  comm::Communicator& world;
  RowCaps row_caps;
  Machine machine;
  Predictor predictor;
  PlanContext context;
};

StepTracer::StepTracer(const Config& config, const Model& model, const RowCaps& caps, Machine machine,
                       const data::Preparation& preparation, comm::Communicator& world, const Stream& stream)
    : impl_(std::make_unique<Impl>(config, model, caps, std::move(machine), preparation, world, stream)) {}
StepTracer::~StepTracer() = default;

void StepTracer::write(const PlannedStep& step, const Engine& engine, std::int64_t number) {
  const run::MeasuredTrace measured = run::gather_trace(impl_->world, engine.executor());
  if (impl_->world.rank() != 0) return;
  const plan::Timeline predicted = predict_step(impl_->context, step, impl_->predictor);
  plan::TimelinePage page;
  page.title = fmt::format("step {}", number);
  page.notes = {impl_->machine.text,
                fmt::format("predicted {}, measured {}; clocks of the ranks agree within {}",
                            plan::duration_text(predicted.makespan), plan::duration_text(measured.timeline.makespan),
                            plan::duration_text(*std::ranges::max_element(measured.clock_error)))};
  page.timelines = {{"predicted", &predicted, nullptr}, {"measured", &measured.timeline, &measured.cpu}};
  page.stage_names = stage_names(impl_->config, impl_->model.layout);
  page.errors = errors_of(predicted, measured.timeline);
  const std::string folder = impl_->config.run.output_dir;
  const std::string page_path = fmt::format("{}/timeline-step-{}.html", folder, number);
  try {
    files::write_atomic(fmt::format("{}/trace-step-{}.json", folder, number), plan::chrome_trace(page));
    files::write_atomic(page_path, plan::timeline_html(page));
    log::info("step {}: predicted {}, measured {}: {}", number, plan::duration_text(predicted.makespan),
              plan::duration_text(measured.timeline.makespan), page_path);
  } catch (const Error& e) {
    log::warning("no trace of step {}: {}", number, e.what());
  }
}

}  // namespace mmt::app
