// Self attention over packed rows: grouped query heads, optional biases, per-head norms of q and k, rotary positions.
#pragma once

#include "kernels/attention.h"
#include "models/linear.h"
#include "models/norm.h"

namespace mmt::models {

struct AttentionOptions {
  std::string q, k, v, o;      ///< parameter names
  std::string q_norm, k_norm;  ///< empty: none
  std::int64_t hidden = 0;
  int heads = 0;
  int kv_heads = 0;
  std::int64_t head_dim = 0;  ///< heads * head_dim may differ from hidden
  bool q_bias = false, k_bias = false, v_bias = false, o_bias = false;
  double norm_epsilon = 1e-6;
  bool rotary = false;  ///< by Rows::rotary
  int mask = 0;         ///< index into Rows::masks
  double init_scale = 0;
};

class SelfAttention {
 public:
  SelfAttention() = default;
  SelfAttention(UnitPlanner& planner, const AttentionOptions& options, bool input_needs_grad);

  bool output_needs_grad() const { return o_.output_needs_grad(); }
  Life input_life() const { return longer(longer(q_.input_life(), k_.input_life()), v_.input_life()); }
  Life grad_life() const { return o_.grad_life(); }
  Linear forward_scratch() const {
    return larger(larger(q_.forward_scratch(), k_.forward_scratch()),
                  larger(v_.forward_scratch(), o_.forward_scratch()));
  }
  Linear backward_scratch() const { return scratch_; }
  Linear weight_scratch() const {
    return larger(larger(q_.weight_scratch(), k_.weight_scratch()), larger(v_.weight_scratch(), o_.weight_scratch()));
  }

  void forward(Ctx& ctx, Saved& saved, const Tensor& y, const Tensor& x) const;
  void backward_input(Ctx& ctx, Saved& saved, const Tensor& dx, const Tensor& dy) const;
  void backward_weight(Ctx& ctx, Saved& saved, const Tensor& dy, const Tensor& x) const;

 private:
  AttentionMask mask_of(const Ctx& ctx) const;
  Tensor log_sum_exp(const Saved& saved) const;

  AttentionShape shape_;
  int mask_ = 0;
  bool rotary_ = false, needs_dq_ = false, needs_dk_ = false, needs_dv_ = false;
  bool input_needs_grad_ = false, has_norms_ = false;
  LinearLayer q_, k_, v_, o_;
  Norm q_norm_, k_norm_;
  SlotId q_in_ = kNone, k_in_ = kNone;  ///< before their norms
  SlotId q_out_ = kNone, k_out_ = kNone, v_out_ = kNone, mix_ = kNone, lse_ = kNone;
  SlotId d_q_ = kNone, d_k_ = kNone, d_v_ = kNone;  ///< where the weights train
  TpSum input_sum_;
  Linear scratch_;
};

}  // namespace mmt::models
