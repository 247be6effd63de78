#include "models/norm.h"

#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/rotary.h"

#include <algorithm>

namespace mmt::models {

Norm::Norm(UnitPlanner& planner, const NormOptions& options, bool input_needs_grad)
    : kind_(options.kind),
      features_(options.features),
      heads_(options.heads),
      epsilon_(options.epsilon),
      input_needs_grad_(input_needs_grad) {
  const auto declare = [&](const char* suffix, Init::Kind init, bool& trains, SlotId& grad) {
    ParamSpec spec{.name = options.name + suffix, .shape = {features_}, .init = {init}, .decay = false};
    if (planner.tp() > 1) {
      auto& axes = options.partial_over_tp ? spec.partial_over : spec.replica_over;
      axes = {{Axis::tp, 0}};
    }
    const ParamId id = planner.param(std::move(spec));
    trains = planner.trains(id);
    if (trains && !options.backward_in_forward) grad = plan_row_gradient(planner, options.name + suffix, features_);
    return id;
  };
  weight_ = declare(".weight", Init::Kind::ones, weight_trains_, weight_grad_);
  if (kind_ == NormKind::layer) bias_ = declare(".bias", Init::Kind::zeros, bias_trains_, bias_grad_);
  if (input_life() == Life::scratch) return;
  const DType master = master_of(planner.dtype());
  const std::int64_t vectors = std::max<std::int64_t>(heads_, 1);
  const Life life = options.backward_in_forward ? Life::scratch : Life::kept;
  rstd_ = planner.tensor(options.name + " rstd", master, vectors, life, options.count);
  if (kind_ == NormKind::layer) mean_ = planner.tensor(options.name + " mean", master, vectors, life, options.count);
}

Tensor Norm::shaped(const Tensor& x) const {
  if (heads_ == 0) return x;
  // Layer norms take whole rows: parts of rows that lie one after the other are rows.
  return kind_ == NormKind::rms ? ops::split_heads(x, heads_) : x.reshape({x.rows() * heads_, features_});
}

Tensor Norm::stat(const Saved& saved, SlotId slot) const {
  if (slot == kNone) return {};
  return saved[slot].reshape({saved[slot].numel()});
}

void Norm::forward(Ctx& ctx, Saved& saved, const Tensor& y, const Tensor& x) const {
  const Tensor rstd = stat(saved, rstd_);
  if (kind_ == NormKind::rms)
    ops::rms_norm_forward(ctx.stream, shaped(y), rstd, shaped(x), ctx.weight(weight_), epsilon_);
  else
    ops::layer_norm_forward(ctx.stream, shaped(y), stat(saved, mean_), rstd, shaped(x), ctx.weight(weight_),
                            ctx.weight(bias_), epsilon_);
}

void Norm::backward_input(Ctx& ctx, Saved& saved, const Tensor& dx, const Tensor& dy, const Tensor& x,
                          Accumulate accumulate) const {
  const auto row = [&](SlotId slot) { return slot == kNone ? Tensor{} : saved[slot].reshape({features_}); };
  const Tensor rstd = stat(saved, rstd_);
  // The weight gradients first: dx may be dy.
  if (kind_ == NormKind::rms) {
    if (weight_grad_ != kNone)
      ops::rms_norm_backward_weight(ctx.stream, row(weight_grad_), shaped(dy), shaped(x), rstd);
    if (dx.defined())
      ops::rms_norm_backward_input(ctx.stream, shaped(dx), shaped(dy), shaped(x), rstd, ctx.weight(weight_),
                                   accumulate);
    return;
  }
  const Tensor mean = stat(saved, mean_);
  if (bias_grad_ != kNone) ops::linear_backward_bias(ctx.stream, row(bias_grad_), shaped(dy));
  if (weight_grad_ != kNone)
    ops::layer_norm_backward_weight(ctx.stream, row(weight_grad_), {}, shaped(dy), shaped(x), mean, rstd);
  if (dx.defined())
    ops::layer_norm_backward_input(ctx.stream, shaped(dx), shaped(dy), shaped(x), mean, rstd, ctx.weight(weight_),
                                   accumulate);
}

void Norm::backward_weight(Ctx& ctx, Saved& saved) const {
  if (weight_grad_ != kNone) move_row_gradient(ctx, weight_, saved[weight_grad_]);
  if (bias_grad_ != kNone) move_row_gradient(ctx, bias_, saved[bias_grad_]);
}

void Norm::backward_weight_now(Ctx& ctx, Saved& saved, const Tensor& dy, const Tensor& x) const {
  const Tensor rstd = stat(saved, rstd_);
  if (weight_trains_) {
    const run::GradTarget dw = ctx.grad(weight_);
    if (kind_ == NormKind::rms)
      ops::rms_norm_backward_weight(ctx.stream, dw.view, shaped(dy), shaped(x), rstd, dw.mode);
    else
      ops::layer_norm_backward_weight(ctx.stream, dw.view, {}, shaped(dy), shaped(x), stat(saved, mean_), rstd,
                                      dw.mode);
  }
  if (bias_trains_) {
    const run::GradTarget db = ctx.grad(bias_);
    ops::linear_backward_bias(ctx.stream, db.view, shaped(dy), db.mode);
  }
}

}  // namespace mmt::models
