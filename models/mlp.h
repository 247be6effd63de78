// The MLP of a transformer block: gated (Shazeer 2020: down(silu(gate(x)) * up(x))) or plain (down(act(up(x)))).
#pragma once

#include "kernels/activation.h"
#include "models/linear.h"

namespace mmt::models {

struct MlpOptions {
  std::string gate, up, down;  ///< parameter names; `gate` empty: plain
  std::int64_t hidden = 0;
  std::int64_t inner = 0;
  bool bias = false;
  Activation activation = Activation::gelu_erf;  ///< plain only; gated ones are SwiGLU
  double init_scale = 0;                         ///< 0: by the layer's width
};

class Mlp {
 public:
  Mlp() = default;
  Mlp(UnitPlanner& planner, const MlpOptions& options, bool input_needs_grad);

  bool output_needs_grad() const { return down_.output_needs_grad(); }
  Life input_life() const { return longer(up_.input_life(), gated_ ? gate_.input_life() : Life::scratch); }
  Life grad_life() const { return down_.grad_life(); }
  Linear forward_scratch() const {
    return larger(larger(gate_.forward_scratch(), up_.forward_scratch()), down_.forward_scratch());
  }
  Linear backward_scratch() const { return scratch_; }
  Linear weight_scratch() const {
    return larger(larger(gate_.weight_scratch(), up_.weight_scratch()), down_.weight_scratch());
  }

  /// y may be absent (recompute): then only the saved tensors are filled.
  void forward(Ctx& ctx, Saved& saved, const Tensor& y, const Tensor& x) const;
  /// The activation again, where it is stored and what it is made of, too (selective recompute).
  void recompute_cheap(Ctx& ctx, Saved& saved) const;
  /// dx may be absent, when no input gradient is needed.
  void backward_input(Ctx& ctx, Saved& saved, const Tensor& dx, const Tensor& dy) const;
  void backward_weight(Ctx& ctx, Saved& saved, const Tensor& dy, const Tensor& x) const;

 private:
  bool cheap_ = false;
  bool gated_ = false, middle_needs_grad_ = false, gate_needs_grad_ = false;
  Activation activation_ = Activation::gelu_erf;
  LinearLayer gate_, up_, down_;
  SlotId gate_out_ = kNone, up_out_ = kNone, middle_ = kNone;
  SlotId d_gate_ = kNone, d_up_ = kNone;  ///< where the weights train
  TpSum input_sum_;
  Linear scratch_;
};

}  // namespace mmt::models
