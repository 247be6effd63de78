#include "models/newline.h"

#include "kernels/elementwise.h"
#include "kernels/gather.h"
#include "kernels/linear.h"

#include <cmath>

namespace mmt::models {

Newline::Newline(UnitPlanner& planner, std::int64_t cols) : cols_(cols) {
  ParamSpec spec{
      .name = "image_newline", .shape = {cols}, .init = {.scale = 1.0 / std::sqrt(static_cast<double>(cols))}};
  if (planner.tp() > 1) spec.replica_over = {{Axis::tp, 0}};
  param_ = planner.param(std::move(spec));
  if (planner.trains(param_)) grad_ = plan_row_gradient(planner, "image_newline", cols);
  scratch_ = run::arena_bytes(planner.dtype(), RowCount::out, cols);  // newlines are some of the rows
}

void Newline::write(Ctx& ctx, const Tensor& out) const {
  const Tensor& at = ctx.rows->newline_rows;
  if (at.rows() == 0) return;
  const ArenaScope scope(*ctx.scratch);
  const Tensor rows = ctx.scratch->take(out.dtype, {at.rows(), cols_});
  ops::fill(ctx.stream, rows, 0.0);
  ops::add_bias(ctx.stream, rows, rows, ctx.weight(param_));
  ops::scatter_rows(ctx.stream, out, rows, at);
}

void Newline::split(Ctx& ctx, Saved& saved, const Tensor& rest, const Tensor& d_out) const {
  const Tensor& at = ctx.rows->newline_rows;
  if (d_out.rows() > 0) ops::copy(ctx.stream, rest, d_out);
  if (at.rows() == 0) {
    if (trains()) ops::fill(ctx.stream, saved[grad_], 0.0);
    return;
  }
  const ArenaScope scope(*ctx.scratch);
  const Tensor rows = ctx.scratch->take(d_out.dtype, {at.rows(), cols_});
  if (trains()) {
    ops::gather_rows(ctx.stream, rows, d_out, at);
    ops::linear_backward_bias(ctx.stream, saved[grad_].reshape({cols_}), rows);
  }
  ops::fill(ctx.stream, rows, 0.0);
  ops::scatter_rows(ctx.stream, rest, rows, at);
}

void Newline::backward_weight(Ctx& ctx, Saved& saved) const {
  if (trains()) move_row_gradient(ctx, param_, saved[grad_]);
}

}  // namespace mmt::models
