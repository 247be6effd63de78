// Linear layer y = x W^T + b over rows, whole or cut over the tensor-parallel axis.
#pragma once

#include "kernels/activation.h"
#include "models/layer.h"

namespace mmt::models {

enum class Split : std::uint8_t {
  whole,    ///< every tp rank holds all of it and computes the same
  columns,  ///< a rank holds a range of the outputs; the input gradient is a partial sum, which the caller adds up
  rows,     ///< a rank holds a range of the inputs; the product is summed over tp here
};

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

  std::int64_t in() const { return in_; }    ///< of this rank's part
  std::int64_t out() const { return out_; }  ///< of this rank's part
  bool weight_trains() const { return weight_trains_; }
  bool output_needs_grad() const { return input_needs_grad_ || weight_trains_ || bias_grad_ != kNone; }
  /// How long the layer reads x and dy.
  Life input_life() const { return weight_trains_ ? Life::held : Life::scratch; }
  Life grad_life() const { return weight_trains_ ? Life::stash : Life::scratch; }
  Linear forward_scratch() const { return sum_.scratch(); }

  void forward(Ctx& ctx, const Tensor& y, const Tensor& x) const;
  /// pre = x W^T + b, y = activation(pre); `pre` may be absent. Not for row splits, whose product is a partial sum.
  void forward(Ctx& ctx, const Tensor& y, const Tensor& pre, const Tensor& x, Activation activation) const;
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
};

}  // namespace mmt::models
