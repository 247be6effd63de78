// Low-rank adapter of a linear layer (LoRA, Hu et al. 2021): y += scale * B A dropout(x), with A (rank, in) and B
// (out, rank). B starts at zero, so that a fresh adapter changes nothing.
//
// Under tensor parallelism it is cut as its layer is. Columns: A is whole, B holds the rank's outputs; the gradient of
// A is a partial sum, since the rank sees the gradient of its outputs alone. Rows: A holds the rank's inputs, and the
// partial B A x goes into the sum of the layer; B is whole, and its gradient is a partial sum over the inputs.
#pragma once

#include "models/layer.h"

namespace mmt::models {

/// The layer that an adapter stands beside.
struct AdapterPlace {
  std::string name;         ///< parameters "<name>.lora_A.weight" and "<name>.lora_B.weight"
  const ParamSpec& weight;  ///< of the layer: (out, in) with this rank's box
  Split split = Split::whole;
  RowCount count = RowCount::rows;  ///< rows or out
  bool input_needs_grad = false;
};

class Adapter {
 public:
  Adapter() = default;
  Adapter(UnitPlanner& planner, const run::AdapterSpec& spec, const AdapterPlace& place);

  bool present() const { return rank_ > 0; }
  bool trains() const { return a_trains_ || b_trains_; }
  /// How long it reads x and dy.
  Life input_life() const { return a_trains_ ? Life::held : Life::scratch; }
  Life grad_life() const { return b_trains_ ? Life::stash : Life::scratch; }
  Linear forward_scratch() const { return forward_scratch_; }
  Linear backward_scratch() const { return backward_scratch_; }
  Linear weight_scratch() const { return weight_scratch_; }

  /// y (the compute dtype or f32) += scale * B A dropout(x).
  void forward(Ctx& ctx, Saved& saved, const Tensor& y, const Tensor& x) const;
  /// Only what forward saves.
  void recompute(Ctx& ctx, Saved& saved, const Tensor& x) const;
  /// dx (may be absent, may be f32 beside bf16) += its part of the input gradient.
  void backward_input(Ctx& ctx, Saved& saved, const Tensor& dx, const Tensor& dy) const;
  void backward_weight(Ctx& ctx, Saved& saved, const Tensor& dy, const Tensor& x) const;

 private:
  bool drops(const Ctx& ctx) const;
  /// y = or += dropout(x).
  void drop(Ctx& ctx, const Tensor& y, const Tensor& x, Accumulate accumulate) const;
  /// x itself, or what dropout leaves of it, in scratch memory.
  Tensor input(Ctx& ctx, const Tensor& x) const;
  /// scale * A dropout(x) (rows, rank), in the saved tensor or in scratch memory.
  Tensor inner(Ctx& ctx, Saved& saved, const Tensor& x) const;

  std::string id_;  ///< of its draws
  std::int64_t rank_ = 0, features_ = 0, first_col_ = 0;
  double scale_ = 1.0, dropout_ = 0.0;
  RowCount count_ = RowCount::rows;
  bool input_needs_grad_ = false, a_trains_ = false, b_trains_ = false;
  ParamId a_ = kNone, b_ = kNone;
  SlotId inner_ = kNone, d_inner_ = kNone;  ///< scale * A x where B trains; scale * B^T dy where A trains
  Linear forward_scratch_, backward_scratch_, weight_scratch_;
};

}  // namespace mmt::models
