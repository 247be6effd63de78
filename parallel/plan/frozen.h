// What must flow backward when parts of a model are frozen, and what that costs.
//
// A node is whatever the caller plans by: a layer of a module, or one product inside a layer (LoRA). With f(v) = every
// parameter of v is frozen and p(v) = the input of v needs a gradient:
//   p(v) = some predecessor u has p(u) or not f(u)          Bw(v) = sum over v's trainable parameters
//   Bd(v) is paid where p(v)                                T(v) = F + Bd + Bw + [recomputed and any backward] F
#pragma once

#include "parallel/plan/cost.h"

#include <span>
#include <vector>

namespace mmt::plan {

/// A node's use of a parameter. A tied parameter is one number used by several nodes.
struct ParamUse {
  int param = 0;           ///< index into the list of trainable flags
  Linear backward_weight;  ///< FLOPs of its gradient for this use
};

/// FLOPs of a node as if everything were trainable.
struct FlowNode {
  std::vector<int> predecessors;  ///< indices of earlier nodes whose outputs it reads; empty: it reads the loader
  Linear forward;
  Linear backward_input;
  std::vector<ParamUse> params;
};

/// What remains of a node under the frozen pattern.
struct Flow {
  bool input_grad = false;  ///< p: a gradient of its inputs is computed
  bool trains = false;      ///< not f
  LayerCost cost;
  bool needs_backward() const { return input_grad || trains; }
  bool output_grad() const { return needs_backward(); }  ///< whoever reads its output must return a gradient
};

/// Throws std::logic_error when a predecessor is no earlier node or a parameter has no flag.
std::vector<Flow> frozen_flow(std::span<const FlowNode> nodes, const std::vector<bool>& trainable);

/// The nodes of one layer added up: for layers that are planned product by product.
Flow joined(std::span<const Flow> nodes);

}  // namespace mmt::plan
