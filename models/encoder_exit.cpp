#include "models/encoder_exit.h"

#include "kernels/elementwise.h"
#include "kernels/gather.h"

namespace mmt::models {

EncoderExit::EncoderExit(const UnitPlanner::Setting& setting, const EncoderExitOptions& o, bool input_needs_grad)
    : hidden_(o.hidden), merge_(o.merge), has_norm_(!o.norm.empty()), input_needs_grad_(input_needs_grad) {
  MMT_CHECK(merge_ == 1 || !has_norm_, "{}: a norm of merged rows", o.unit);
  UnitPlanner planner(setting, o.unit);
  planner.input({.cols = hidden_, .dtype = setting.dtype, .needs_grad = input_needs_grad});
  if (has_norm_) {
    norm_ = Norm(
        planner,
        {.name = o.norm, .kind = NormKind::layer, .features = hidden_, .epsilon = o.epsilon, .count = RowCount::out},
        input_needs_grad);
    gathered_ = planner.tensor("rows that leave", hidden_, norm_.input_life(), RowCount::out);
    const Linear buffer = run::arena_bytes(setting.dtype, RowCount::out, hidden_);
    planner.scratch(Phase::recompute, buffer);
    planner.scratch(Phase::backward_input, buffer);
  }
  planner.output({.cols = hidden_ * merge_, .dtype = setting.dtype, .count = RowCount::out});
  plan_ = planner.take();
}

Tensor EncoderExit::merged(const Ctx& ctx, const Tensor& x) const {
  const std::int64_t used = used_rows(*ctx.rows), out = ctx.rows->size.out;
  MMT_CHECK(used == out * merge_, "{}: {} rows leave as {} of {} each", plan_.name, used, out, merge_);
  return x.row_range(0, used).reshape({out, merge_ * hidden_});
}

void EncoderExit::forward(Ctx& ctx, std::span<const Tensor> in, const Tensor& out, Saved& saved) const {
  if (merge_ > 1) {
    ops::copy(ctx.stream, out, merged(ctx, in[0]));
    return;
  }
  const Tensor to = has_norm_ ? saved[gathered_] : out;
  ops::gather_rows(ctx.stream, to, in[0], ctx.rows->out_rows);
  if (has_norm_) norm_.forward(ctx, saved, out, to);
}

void EncoderExit::recompute(Ctx& ctx, Saved& saved) const {
  if (!has_norm_) return;
  const ArenaScope scope(*ctx.scratch);
  const Tensor gathered = saved[gathered_];
  forward(ctx, saved.in, ctx.scratch->take(gathered.dtype, {gathered.rows(), hidden_}), saved);
}

void EncoderExit::backward_input(Ctx& ctx, const Tensor& d_out, std::span<const Tensor> d_in, Saved& saved) const {
  if (!plan_.needs_backward()) return;
  const ArenaScope scope(*ctx.scratch);
  Tensor d = d_out;
  if (has_norm_) {
    d = input_needs_grad_ ? ctx.scratch->take(d_out.dtype, {d_out.rows(), hidden_}) : Tensor{};
    norm_.backward_input(ctx, saved, d, d_out, saved[gathered_]);
  }
  if (!input_needs_grad_) return;
  if (merge_ > 1) {
    ops::copy(ctx.stream, merged(ctx, d_in[0]), d);
    zero_tail(ctx, d_in[0]);
    return;
  }
  ops::fill(ctx.stream, d_in[0], 0.0);
  ops::scatter_rows(ctx.stream, d_in[0], d, ctx.rows->out_rows);
}

void EncoderExit::backward_weight(Ctx& ctx, Saved& saved) const {
  if (has_norm_) norm_.backward_weight(ctx, saved);
}

}  // namespace mmt::models
