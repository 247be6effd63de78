#include "models/linear.h"

#include "kernels/linear.h"

#include <cmath>

namespace mmt::models {

LinearLayer::LinearLayer(UnitPlanner& planner, const LinearOptions& options, bool input_needs_grad)
    : in_(options.in), out_(options.out), input_needs_grad_(input_needs_grad), first_rank_(planner.tp_rank() == 0) {
  const int tp = planner.tp();
  const Split split = tp == 1 ? Split::whole : options.split;
  ParamSpec weight{.name = options.name + ".weight", .shape = options.weight_shape, .init = options.init};
  ParamSpec bias{.name = options.name + ".bias", .shape = {options.out}, .init = {Init::Kind::zeros}, .decay = false};
  if (weight.shape.empty()) weight.shape = {options.out, options.in};
  if (weight.init.scale == 0) weight.init.scale = 1.0 / std::sqrt(3.0 * static_cast<double>(options.in));
  const RowCount sum_count = options.count == RowCount::rows ? planner.between_layers() : options.count;
  weight.box = {std::vector<std::int64_t>(weight.shape.size(), 0), weight.shape};
  bias.box = {{0}, bias.shape};

  switch (split) {
    case Split::whole:
      if (tp > 1) weight.replica_over = bias.replica_over = {{Axis::tp, 0}};
      break;
    case Split::columns: {
      const int parts = tp / options.copies;
      MMT_CHECK(options.copies >= 1 && tp % options.copies == 0 && options.out % parts == 0,
                "{}: {} outputs over {} ranks with {} copies", options.name, options.out, tp, options.copies);
      out_ = options.out / parts;
      const std::int64_t first = planner.tp_rank() / options.copies * out_;
      weight.box.offset[0] = bias.box.offset[0] = first;
      weight.box.shape[0] = bias.box.shape[0] = out_;
      if (options.copies > 1) weight.partial_over = bias.partial_over = {{Axis::tp, options.copies}};
      break;
    }
    case Split::rows:
      MMT_CHECK(options.in % tp == 0 && weight.shape.size() == 2, "{}: {} inputs over {} ranks", options.name,
                options.in, tp);
      in_ = options.in / tp;
      weight.box.offset[1] = planner.tp_rank() * in_;
      weight.box.shape[1] = in_;
      bias.replica_over = {{Axis::tp, 0}};
      if (options.in_recompute)
        sum_ = TpSum(planner, sum_count, out_, {Phase::forward, Phase::recompute});
      else
        sum_ = TpSum(planner, sum_count, out_, {Phase::forward});
      break;
  }

  std::optional<run::AdapterSpec> adapter;
  if (weight.shape.size() == 2 && planner.setting().adapter)
    adapter = planner.setting().adapter(planner.setting().module + "/" + options.name);
  const ParamSpec placed = weight;
  weight.forward_product = true;
  weight.input_product = input_needs_grad;
  weight_ = planner.param(std::move(weight));
  weight_trains_ = planner.trains(weight_);
  if (options.bias) {
    bias_ = planner.param(std::move(bias));
    if (planner.trains(bias_)) bias_grad_ = plan_row_gradient(planner, options.name + ".bias", out_);
  }
  const Linear flops = product_flops(options.count, in_, out_);
  planner.cost({.forward = flops,
                .backward_input = input_needs_grad ? flops : Linear{},
                .backward_weight = weight_trains_ ? flops : Linear{}});
  if (adapter) {
    adapter_ = Adapter(planner, *adapter,
                       {.name = options.name,
                        .weight = placed,
                        .split = split,
                        .count = options.count,
                        .input_needs_grad = input_needs_grad});
  }
}

Tensor LinearLayer::weight(Ctx& ctx) const { return ctx.weight(weight_).reshape({out_, in_}); }

void LinearLayer::forward(Ctx& ctx, Saved& saved, const Tensor& y, const Tensor& x) const {
  const ArenaScope scope(*ctx.scratch);
  const Tensor partial = sum_.begin(ctx, y);
  // One rank adds the bias, before the sum, so that the result is rounded once.
  const bool with_bias = bias_ != kNone && (!sum_.active() || first_rank_);
  ops::linear_forward(ctx.stream, partial, x, weight(ctx), with_bias ? ctx.weight(bias_) : Tensor{},
                      ctx.packed(weight_, Transpose::yes));
  if (adapter_.present()) adapter_.forward(ctx, saved, partial, x);
  sum_.end(ctx, partial, y);
}

void LinearLayer::forward(Ctx& ctx, Saved& saved, const Tensor& y, const Tensor& pre, const Tensor& x,
                          Activation activation) const {
  MMT_CHECK(!sum_.active(), "an activation of a partial sum");
  if (adapter_.present()) {
    const Tensor sum = pre.defined() ? pre : y;
    forward(ctx, saved, sum, x);
    ops::activation_forward(ctx.stream, y, sum, activation);
    return;
  }
  ops::linear_activation_forward(ctx.stream, y, pre, x, weight(ctx), bias_ != kNone ? ctx.weight(bias_) : Tensor{},
                                 activation, ctx.packed(weight_, Transpose::yes));
}

void LinearLayer::recompute(Ctx& ctx, Saved& saved, const Tensor& x) const {
  if (adapter_.present()) adapter_.recompute(ctx, saved, x);
}

void LinearLayer::backward_input(Ctx& ctx, Saved& saved, const Tensor& dx, const Tensor& dy,
                                 Accumulate accumulate) const {
  if (bias_grad_ != kNone)
    ops::linear_backward_bias(ctx.stream, saved[bias_grad_].reshape({out_}), dy, Accumulate::overwrite);
  if (dx.defined()) {
    MMT_CHECK(input_needs_grad_, "an input gradient that was not planned");
    ops::linear_backward_input(ctx.stream, dx, dy, weight(ctx), accumulate, ctx.packed(weight_, Transpose::no));
  }
  if (adapter_.present()) adapter_.backward_input(ctx, saved, dx, dy);
}

void LinearLayer::backward_weight(Ctx& ctx, Saved& saved, const Tensor& dy, const Tensor& x) const {
  if (bias_grad_ != kNone) move_row_gradient(ctx, bias_, saved[bias_grad_]);
  if (adapter_.present()) adapter_.backward_weight(ctx, saved, dy, x);
  if (!weight_trains_) return;
  const run::GradTarget target = ctx.grad(weight_);
  ops::linear_backward_weight(ctx.stream, target.view.reshape({out_, in_}), dy, x, target.mode);
}

}  // namespace mmt::models
