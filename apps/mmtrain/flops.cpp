#include "apps/mmtrain/flops.h"

#include <algorithm>

namespace mmt::app {
namespace {

/// Without the rows that fill a block up to its quantum.
plan::BlockSize required(const plan::RowsPlan& block) {
  plan::BlockSize size = block.size;
  size.rows = 0;
  for (const plan::ItemPlan& item : block.items) size.rows = std::max(size.rows, item.rows.first + item.rows.count);
  for (const plan::SamplePlan& s : block.samples) size.rows = std::max(size.rows, s.rows.first + s.rows.count);
  return size;
}

}  // namespace

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
    for (const plan::RowsPlan& block : step.rows[model.module_of(s)]) {
      const plan::BlockSize size = required(block);
      flops += cost.forward(size) + cost.backward_input(size) + cost.backward_weight(size);
    }
  }
  return static_cast<double>(flops);
}

}  // namespace mmt::app
