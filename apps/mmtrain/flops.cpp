#include "apps/mmtrain/flops.h"

namespace mmt::app {

RequiredFlops::RequiredFlops(const Config& config, const Model& model) {
  const Model whole = build_model(config);  // one stage a module
  for (const int s : model.own) {
    if (!model.leads(s)) continue;
    const plan::UnitSpan& span = model.layout.stages()[static_cast<std::size_t>(s)].units;
    const run::Stage& stage = whole.stages[static_cast<std::size_t>(span.module)];
    plan::LayerCost& cost = costs_[s];
    for (int u = span.first; u < span.last; ++u) cost += stage.units[static_cast<std::size_t>(u)]->plan().cost;
  }
}

double RequiredFlops::of(const Model& model, const PlannedStep& step) const {
  std::int64_t flops = 0;
  for (const auto& [s, cost] : costs_) {
    for (const plan::RowsPlan& block : step.rows[model.module_of(s)])
      flops += cost.forward(block.size) + cost.backward_input(block.size) + cost.backward_weight(block.size);
  }
  return static_cast<double>(flops);
}

}  // namespace mmt::app
