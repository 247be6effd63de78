#include "models/mlp.h"

namespace mmt::models {

Mlp::Mlp(UnitPlanner& planner, const MlpOptions& options, bool input_needs_grad)
    : gated_(!options.gate.empty()), activation_(options.activation) {
  const LinearOptions in{.name = options.up,
                         .in = options.hidden,
                         .out = options.inner,
                         .bias = options.bias,
                         .split = Split::columns,
                         .init = {.scale = options.init_scale}};
  if (gated_) {
    LinearOptions gate = in;
    gate.name = options.gate;
    gate_ = LinearLayer(planner, gate, input_needs_grad);
  }
  up_ = LinearLayer(planner, in, input_needs_grad);
  middle_needs_grad_ = up_.output_needs_grad() || (gated_ && gate_.output_needs_grad());
  down_ = LinearLayer(planner,
                      {.name = options.down,
                       .in = options.inner,
                       .out = options.hidden,
                       .bias = options.bias,
                       .split = Split::rows,
                       .in_recompute = false,
                       .init = {.scale = options.init_scale}},
                      middle_needs_grad_);

  const std::int64_t inner = up_.out();
  const Life kept = middle_needs_grad_ ? Life::kept : Life::scratch;
  if (gated_) gate_out_ = planner.tensor("mlp gate", inner, kept);
  // silu(gate) alone turns d middle into d up.
  gate_needs_grad_ = gated_ && gate_.output_needs_grad();
  if (gated_ || middle_needs_grad_)
    up_out_ = planner.tensor("mlp up", inner, gated_ && !gate_needs_grad_ ? Life::scratch : kept);
  middle_ = planner.tensor("mlp middle", inner, down_.input_life());
  cheap_ = down_.input_life() != Life::scratch && middle_needs_grad_ && (!gated_ || gate_needs_grad_);
  if (cheap_) planner.cheap(middle_);

  const Linear buffer = run::arena_bytes(planner.dtype(), RowCount::rows, inner);
  if (gated_ && gate_.grad_life() == Life::stash)
    d_gate_ = planner.tensor("d mlp gate", inner, Life::stash);
  else if (gate_needs_grad_)
    scratch_ += buffer;
  if (up_.grad_life() == Life::stash)
    d_up_ = planner.tensor("d mlp up", inner, Life::stash);
  else
    scratch_ += buffer;
  scratch_ += larger(larger(gate_.backward_scratch(), up_.backward_scratch()), down_.backward_scratch());
  if (input_needs_grad) {
    input_sum_ = TpSum(planner, planner.between_layers(), options.hidden, {Phase::backward_input});
    scratch_ += input_sum_.scratch();
  }
}

void Mlp::forward(Ctx& ctx, Saved& saved, const Tensor& y, const Tensor& x) const {
  if (gated_) {
    gate_.forward(ctx, saved, saved[gate_out_], x);
    up_.forward(ctx, saved, saved[up_out_], x);
    ops::swiglu_forward(ctx.stream, saved[middle_], saved[gate_out_], saved[up_out_]);
  } else {
    const Tensor pre = up_out_ == kNone ? Tensor{} : saved[up_out_];
    up_.forward(ctx, saved, saved[middle_], pre, x, activation_);
  }
  if (y.defined())
    down_.forward(ctx, saved, y, saved[middle_]);
  else
    down_.recompute(ctx, saved, saved[middle_]);
}

void Mlp::recompute_cheap(Ctx& ctx, Saved& saved) const {
  if (!cheap_) return;
  if (gated_)
    ops::swiglu_forward(ctx.stream, saved[middle_], saved[gate_out_], saved[up_out_]);
  else
    ops::activation_forward(ctx.stream, saved[middle_], saved[up_out_], activation_);
}

void Mlp::backward_input(Ctx& ctx, Saved& saved, const Tensor& dx, const Tensor& dy) const {
  const ArenaScope scope(*ctx.scratch);
  const auto buffer = [&](SlotId slot) {
    return slot != kNone ? saved[slot] : ctx.scratch->take(dy.dtype, {dy.rows(), up_.out()});
  };
  if (!middle_needs_grad_) {
    down_.backward_input(ctx, saved, {}, dy);
    return;
  }
  // The gradient of the middle becomes that of `up` in place.
  const Tensor d_up = buffer(d_up_);
  down_.backward_input(ctx, saved, d_up, dy);
  Tensor d_gate;
  if (gate_needs_grad_) {
    d_gate = buffer(d_gate_);
    ops::swiglu_backward(ctx.stream, d_gate, d_up, d_up, saved[gate_out_], saved[up_out_]);
  } else if (gated_) {
    ops::swiglu_forward(ctx.stream, d_up, saved[gate_out_], d_up);
  } else {
    ops::activation_backward(ctx.stream, d_up, d_up, saved[up_out_], activation_);
  }
  Tensor partial;
  if (dx.defined()) partial = input_sum_.begin(ctx, dx);
  up_.backward_input(ctx, saved, partial, d_up);
  if (gate_needs_grad_) gate_.backward_input(ctx, saved, partial, d_gate, Accumulate::add);
  if (dx.defined()) input_sum_.end(ctx, partial, dx);
}

void Mlp::backward_weight(Ctx& ctx, Saved& saved, const Tensor& dy, const Tensor& x) const {
  const auto at = [&](SlotId slot) { return slot == kNone ? Tensor{} : saved[slot]; };
  if (gated_) gate_.backward_weight(ctx, saved, at(d_gate_), x);
  up_.backward_weight(ctx, saved, at(d_up_), x);
  down_.backward_weight(ctx, saved, dy, saved[middle_]);
}

}  // namespace mmt::models
