#include "models/projector.h"

namespace mmt::models {

Projector::Projector(const UnitPlanner::Setting& setting, const ProjectorOptions& o, bool input_needs_grad)
    : two_(o.kind != ProjectorKind::linear),
      has_norm_(o.kind == ProjectorKind::merger),
      has_newline_(o.newline),
      activation_(o.activation) {
  UnitPlanner planner(setting, o.unit);
  const int x =
      planner.input({.cols = o.in, .dtype = setting.dtype, .count = RowCount::out, .needs_grad = input_needs_grad});
  if (has_norm_) {
    norm_ = Norm(planner,
                 {.name = "ln_q",
                  .kind = NormKind::layer,
                  .features = o.in / o.parts,
                  .epsilon = o.norm_epsilon,
                  .count = RowCount::out,
                  .heads = o.parts},
                 input_needs_grad);
    input_needs_grad = norm_.output_needs_grad();
  }
  const auto layer = [&](const char* name, std::int64_t in, std::int64_t out, bool needs_grad) {
    return LinearLayer(planner, {.name = name, .in = in, .out = out, .bias = o.bias, .count = RowCount::out},
                       needs_grad);
  };
  Linear scratch;
  if (two_) {
    first_ = layer(has_norm_ ? "mlp.0" : "linear_1", o.in, o.inner, input_needs_grad);
    middle_needs_grad_ = first_.output_needs_grad();
    last_ = layer(has_norm_ ? "mlp.2" : "linear_2", o.inner, o.out, middle_needs_grad_);
    planner.input_port(x).keep = has_norm_ ? norm_.input_life() : first_.input_life();
    if (has_norm_) normed_ = planner.tensor("normed", o.in, first_.input_life(), RowCount::out);
    if (middle_needs_grad_) pre_ = planner.tensor("linear_1", o.inner, Life::kept, RowCount::out);
    middle_ = planner.tensor("middle", o.inner, last_.input_life(), RowCount::out);
    scratch = larger(first_.backward_scratch(), last_.backward_scratch());
    if (first_.grad_life() == Life::stash)
      d_pre_ = planner.tensor("d linear_1", o.inner, Life::stash, RowCount::out);
    else if (middle_needs_grad_)
      scratch += run::arena_bytes(setting.dtype, RowCount::out, o.inner);
    if (has_norm_ && input_needs_grad) scratch += run::arena_bytes(setting.dtype, RowCount::out, o.in);
  } else {
    last_ = layer("linear", o.in, o.out, input_needs_grad);
    planner.input_port(x).keep = last_.input_life();
    scratch = last_.backward_scratch();
  }
  if (has_newline_) {
    newline_ = Newline(planner, o.out);
    planner.scratch(Phase::forward, newline_.scratch());
    scratch += newline_.scratch();
    if (last_.grad_life() == Life::stash)
      d_last_ = planner.tensor("d of the last layer", o.out, Life::stash, RowCount::out);
    else
      scratch += run::arena_bytes(setting.dtype, RowCount::out, o.out);
  }
  planner.scratch(Phase::backward_input, scratch);
  for (const LinearLayer* one : {&first_, &last_}) {
    for (const Phase phase : {Phase::forward, Phase::recompute}) planner.scratch(phase, one->forward_scratch());
    planner.scratch(Phase::backward_weight, one->weight_scratch());
  }
  planner.output({.cols = o.out,
                  .dtype = setting.dtype,
                  .count = RowCount::out,
                  .keep_grad = has_newline_ ? Life::scratch : last_.grad_life()});
  plan_ = planner.take();
}

void Projector::hide(Ctx& ctx, const Tensor& x, Saved& saved) const {
  if (has_norm_) norm_.forward(ctx, saved, saved[normed_], x);
  first_.forward(ctx, saved, saved[middle_], pre_ == kNone ? Tensor{} : saved[pre_], first_input(x, saved),
                 activation_);
}

void Projector::forward(Ctx& ctx, std::span<const Tensor> in, const Tensor& out, Saved& saved) const {
  if (two_) hide(ctx, in[0], saved);
  last_.forward(ctx, saved, out, two_ ? saved[middle_] : in[0]);
  if (has_newline_) newline_.write(ctx, out);
}

void Projector::recompute(Ctx& ctx, Saved& saved) const {
  if (two_) hide(ctx, saved.in[0], saved);
  last_.recompute(ctx, saved, two_ ? saved[middle_] : saved.in[0]);
}

void Projector::backward_input(Ctx& ctx, const Tensor& d_out, std::span<const Tensor> d_in, Saved& saved) const {
  if (!has_newline_) return layers_backward(ctx, d_out, d_in, saved);
  if (!plan_.needs_backward()) return;
  const ArenaScope scope(*ctx.scratch);
  const Tensor d_last =
      d_last_ != kNone ? saved[d_last_] : ctx.scratch->take(d_out.dtype, {d_out.rows(), d_out.cols()});
  newline_.split(ctx, saved, d_last, d_out);
  layers_backward(ctx, d_last, d_in, saved);
}

void Projector::layers_backward(Ctx& ctx, const Tensor& d_out, std::span<const Tensor> d_in, Saved& saved) const {
  const Tensor dx = plan_.inputs[0].needs_grad ? d_in[0] : Tensor{};
  if (!two_) {
    last_.backward_input(ctx, saved, dx, d_out);
    return;
  }
  if (!middle_needs_grad_) {
    last_.backward_input(ctx, saved, {}, d_out);
    return;
  }
  const ArenaScope scope(*ctx.scratch);
  const Tensor d = d_pre_ != kNone ? saved[d_pre_] : ctx.scratch->take(d_out.dtype, {d_out.rows(), first_.out()});
  last_.backward_input(ctx, saved, d, d_out);
  ops::activation_backward(ctx.stream, d, d, saved[pre_], activation_);
  if (!has_norm_) {
    first_.backward_input(ctx, saved, dx, d);
    return;
  }
  const bool through = norm_.output_needs_grad();
  const Tensor d_normed = through ? ctx.scratch->take(d_out.dtype, {d_out.rows(), first_.in()}) : Tensor{};
  first_.backward_input(ctx, saved, d_normed, d);
  if (through) norm_.backward_input(ctx, saved, dx, d_normed, saved.in[0]);
}

void Projector::backward_weight(Ctx& ctx, Saved& saved) const {
  if (has_norm_) norm_.backward_weight(ctx, saved);
  if (two_)
    first_.backward_weight(ctx, saved, d_pre_ == kNone ? Tensor{} : saved[d_pre_], first_input(saved.in[0], saved));
  const Tensor d_last = !has_newline_ ? saved.d_out : d_last_ != kNone ? saved[d_last_] : Tensor{};
  last_.backward_weight(ctx, saved, d_last, two_ ? saved[middle_] : saved.in[0]);
  if (has_newline_) newline_.backward_weight(ctx, saved);
}

}  // namespace mmt::models
