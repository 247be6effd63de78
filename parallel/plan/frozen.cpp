#include "parallel/plan/frozen.h"

#include "core/error.h"

namespace mmt::plan {

std::vector<Flow> frozen_flow(std::span<const FlowNode> nodes, const std::vector<bool>& trainable) {
  std::vector<Flow> flows;
  flows.reserve(nodes.size());
  for (const FlowNode& node : nodes) {
    Flow flow;
    for (const int u : node.predecessors) {
      MMT_CHECK(u >= 0 && static_cast<std::size_t>(u) < flows.size(), "node {} reads node {}, which is not before it",
                flows.size(), u);
      flow.input_grad = flow.input_grad || flows[static_cast<std::size_t>(u)].output_grad();
    }
    flow.cost.forward = node.forward;
    if (flow.input_grad) flow.cost.backward_input = node.backward_input;
    for (const ParamUse& use : node.params) {
      MMT_CHECK(use.param >= 0 && static_cast<std::size_t>(use.param) < trainable.size(),
                "node {} uses parameter {} of {}", flows.size(), use.param, trainable.size());
      if (!trainable[static_cast<std::size_t>(use.param)]) continue;
      flow.trains = true;
      flow.cost.backward_weight += use.backward_weight;
    }
    flows.push_back(flow);
  }
  return flows;
}

Flow joined(std::span<const Flow> nodes) {
  Flow sum;
  for (const Flow& node : nodes) {
    sum.input_grad = sum.input_grad || node.input_grad;
    sum.trains = sum.trains || node.trains;
    sum.cost += node.cost;
  }
  return sum;
}

}  // namespace mmt::plan
