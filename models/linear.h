// Linear layer y = x W^T + b over rows, whole or cut over the tensor-parallel axis, with an adapter where the setting
// has one for it (not where the weight has more dims: a convolution).
#pragma once

#include "kernels/activation.h"
#include "models/adapter.h"

namespace mmt::models {

struct LinearOptions {
  std::string name;      ///< parameters "<name>.weight" and "<name>.bias"
  std::int64_t in = 0;   ///< of the whole layer
  std::int64_t out = 0;  ///< of the whole layer
  bool bias = false;
  Split split = Split::whole;
  /// columns: this many consecutive tp ranks hold the same range (key and value heads that are fewer than the ranks).
  int copies = 1;
  std::vector<std::int64_t> weight_shape{};  ///< where a checkpoint stores more dims than (out, in)
  RowCount count = RowCount::rows;
  bool in_recompute = true;  ///< its output is needed to fill the saved tensors again
  Init init{};               ///< of the weight; scale 0 means 1 / sqrt(3 in). The bias starts at zero
};

class LinearLayer {
 public:
  LinearLayer() = default;
  LinearLayer(UnitPlanner& planner, const LinearOptions& options, bool input_needs_grad);

  std::int64_t in() const { return in_; }                ///< of this rank's part
  std::int64_t out() const { return out_; }              ///< of this rank's part
  bool weight_trains() const { return weight_trains_; }  ///< its own, whatever the adapter does
  bool output_needs_grad() const {
    return input_needs_grad_ || weight_trains_ || bias_grad_ != kNone || adapter_.trains();
  }
  /// How long the layer reads x and dy.
  Life input_life() const { return longer(weight_trains_ ? Life::held : Life::scratch, adapter_.input_life()); }
  Life grad_life() const { return longer(weight_trains_ ? Life::stash : Life::scratch, adapter_.grad_life()); }
  /// What F and R, BI, BW take of Ctx::scratch.
  Linear forward_scratch() const { return sum_.scratch() + adapter_.forward_scratch(); }
  Linear backward_scratch() const { return adapter_.backward_scratch(); }
  Linear weight_scratch() const { return adapter_.weight_scratch(); }

  void forward(Ctx& ctx, Saved& saved, const Tensor& y, const Tensor& x) const;
  /// pre = x W^T + b, y = activation(pre); `pre` may be absent. Not for row splits, whose product is a partial sum.
  void forward(Ctx& ctx, Saved& saved, const Tensor& y, const Tensor& pre, const Tensor& x,
               Activation activation) const;
  /// Where the output is not wanted again: what forward saves beside it.
  void recompute(Ctx& ctx, Saved& saved, const Tensor& x) const;
  /// dx (may be absent, may be f32 beside bf16) = or += dy W; leaves the bias gradient in the stash.
  void backward_input(Ctx& ctx, Saved& saved, const Tensor& dx, const Tensor& dy,
                      Accumulate accumulate = Accumulate::overwrite) const;
  void backward_weight(Ctx& ctx, Saved& saved, const Tensor& dy, const Tensor& x) const;

 private:
  Tensor weight(Ctx& ctx) const;

  std::int64_t in_ = 0, out_ = 0;
  ParamId weight_ = kNone, bias_ = kNone;
  SlotId bias_grad_ = kNone;
  bool weight_trains_ = false, input_needs_grad_ = false, first_rank_ = true;
  TpSum sum_;
  Adapter adapter_;
};

}  // namespace mmt::models
