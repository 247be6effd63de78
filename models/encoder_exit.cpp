#include "models/encoder_exit.h"

#include "kernels/elementwise.h"
#include "kernels/gather.h"

#include <algorithm>

namespace mmt::models {
namespace {

/// The rows `k` behind: an index into x names them.
Tensor behind(const Tensor& x, std::int64_t k) {
  const std::int64_t first = std::min(k, x.rows());
  return x.row_range(first, x.rows() - first);
}

}  // namespace

EncoderExit::EncoderExit(const UnitPlanner::Setting& setting, const EncoderExitOptions& o, bool input_needs_grad)
    : hidden_(o.hidden),
      merge_(o.merge),
      pool_(o.pool),
      has_norm_(!o.norm.empty()),
      input_needs_grad_(input_needs_grad) {
  MMT_CHECK(merge_ == 1 || !has_norm_, "{}: a norm of merged rows", o.unit);
  MMT_CHECK(pool_ == 1 || merge_ == 1, "{}: rows are merged or averaged", o.unit);
  UnitPlanner planner(setting, o.unit);
  planner.input({.cols = hidden_, .dtype = setting.dtype, .needs_grad = input_needs_grad});
  // Of a mean: the sum and one summand, or its gradient over the number of them.
  const Linear of_out = run::arena_bytes(setting.dtype, RowCount::out, hidden_);
  Linear sums;
  if (pool_ > 1) sums = of_out;
  const DType master = master_of(setting.dtype);
  if (pool_ > 1 && setting.dtype != master) sums += run::arena_bytes(master, RowCount::out, hidden_);
  planner.scratch(Phase::forward, sums);
  if (pool_ > 1) planner.scratch(Phase::backward_input, of_out);
  if (has_norm_) {
    norm_ = Norm(
        planner,
        {.name = o.norm, .kind = NormKind::layer, .features = hidden_, .epsilon = o.epsilon, .count = RowCount::out},
        input_needs_grad);
    gathered_ = planner.tensor("rows that leave", hidden_, norm_.input_life(), RowCount::out);
    planner.scratch(Phase::recompute, of_out + sums);
    planner.scratch(Phase::backward_input, pool_ == 1 ? of_out : of_out + of_out);
  }
  planner.output({.cols = hidden_ * merge_, .dtype = setting.dtype, .count = RowCount::out});
  plan_ = planner.take();
}

Tensor EncoderExit::merged(const Ctx& ctx, const Tensor& x) const {
  const std::int64_t used = used_rows(*ctx.rows), out = ctx.rows->size.out;
  MMT_CHECK(used == out * merge_, "{}: {} rows leave as {} of {} each", plan_.name, used, out, merge_);
  return x.row_range(0, used).reshape({out, merge_ * hidden_});
}

/// Output rows before the norm.
void EncoderExit::gather(Ctx& ctx, const Tensor& to, const Tensor& x) const {
  if (pool_ == 1) return ops::gather_rows(ctx.stream, to, x, ctx.rows->out_rows);
  const ArenaScope scope(*ctx.scratch);
  const DType master = master_of(to.dtype);
  const Tensor part = ctx.scratch->take(to.dtype, {to.rows(), hidden_});
  const Tensor sum = to.dtype == master ? to : ctx.scratch->take(master, {to.rows(), hidden_});
  for (std::int64_t k = 0; k < pool_; ++k) {
    ops::gather_rows(ctx.stream, part, behind(x, k), ctx.rows->out_rows);
    if (k == 0)
      ops::copy(ctx.stream, sum, part);
    else
      ops::add(ctx.stream, sum, sum, part);
  }
  ops::scale(ctx.stream, sum, sum, 1.0 / static_cast<double>(pool_));
  if (to.dtype != master) ops::copy(ctx.stream, to, sum);
}

void EncoderExit::scatter(Ctx& ctx, const Tensor& dx, const Tensor& d) const {
  ops::fill(ctx.stream, dx, 0.0);
  if (pool_ == 1) return ops::scatter_rows(ctx.stream, dx, d, ctx.rows->out_rows);
  const ArenaScope scope(*ctx.scratch);
  const Tensor part = ctx.scratch->take(d.dtype, {d.rows(), hidden_});
  ops::scale(ctx.stream, part, d, 1.0 / static_cast<double>(pool_));
  for (std::int64_t k = 0; k < pool_; ++k) ops::scatter_rows(ctx.stream, behind(dx, k), part, ctx.rows->out_rows);
}

void EncoderExit::forward(Ctx& ctx, std::span<const Tensor> in, const Tensor& out, Saved& saved) const {
  if (merge_ > 1) {
    ops::copy(ctx.stream, out, merged(ctx, in[0]));
    return;
  }
  const Tensor to = has_norm_ ? saved[gathered_] : out;
  gather(ctx, to, in[0]);
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
  scatter(ctx, d_in[0], d);
}

void EncoderExit::backward_weight(Ctx& ctx, Saved& saved) const {
  if (has_norm_) norm_.backward_weight(ctx, saved);
}

}  // namespace mmt::models
