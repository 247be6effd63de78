#include "models/layer.h"

#include "kernels/elementwise.h"

#include <algorithm>

namespace mmt::models {

Linear product_flops(RowCount count, std::int64_t in, std::int64_t out) {
  const std::int64_t flops = 2 * in * out / count.parts;
  switch (count) {
    case RowCount::one: return {.constant = flops};
    case RowCount::rows: return {.per_row = flops};
    case RowCount::supervised: return {.per_supervised = flops};
    case RowCount::source: return {.per_source = flops};
    case RowCount::out: return {.per_out = flops};
    case RowCount::port: break;
  }
  MMT_CHECK(false, "no cost by the rows of a port");
  return {};
}

Linear larger(const Linear& a, const Linear& b) {
  return {.constant = std::max(a.constant, b.constant),
          .per_row = std::max(a.per_row, b.per_row),
          .per_supervised = std::max(a.per_supervised, b.per_supervised),
          .per_source = std::max(a.per_source, b.per_source),
          .per_out = std::max(a.per_out, b.per_out),
          .per_tile = std::max(a.per_tile, b.per_tile)};
}

SlotId plan_row_gradient(UnitPlanner& planner, const std::string& name, std::int64_t cols) {
  return planner.tensor("grad of " + name, master_of(planner.dtype()), cols, Life::stash, RowCount::one);
}

void move_row_gradient(Ctx& ctx, ParamId param, const Tensor& row) {
  const run::GradTarget target = ctx.grad(param);
  const Tensor as_row = target.view.reshape({1, target.view.numel()});
  if (target.mode == Accumulate::overwrite)
    ops::copy(ctx.stream, as_row, row);
  else
    ops::add_in_place(ctx.stream, as_row, row);
}

void zero_gradient(const Ctx& ctx, const run::GradTarget& target) {
  if (target.mode == Accumulate::overwrite)
    ops::fill(ctx.stream, target.view.reshape({target.view.rows(), target.view.cols()}), 0.0);
}

std::int64_t used_rows(const run::Rows& rows) {
  if (rows.plan == nullptr || (rows.plan->items.empty() && rows.plan->samples.empty())) return rows.size.rows;
  std::int64_t end = 0;
  for (const plan::ItemPlan& item : rows.plan->items) end = std::max(end, item.rows.first + item.rows.count);
  for (const plan::SamplePlan& sample : rows.plan->samples) end = std::max(end, sample.rows.first + sample.rows.count);
  return end;
}

void zero_tail(const Ctx& ctx, const Tensor& x) {
  const std::int64_t used = used_rows(*ctx.rows);
  if (used < x.rows()) ops::fill(ctx.stream, x.row_range(used, x.rows() - used), 0.0);
}

TpSum::TpSum(UnitPlanner& planner, RowCount count, std::int64_t cols, std::initializer_list<Phase> phases,
             std::uint8_t when)
    : active_(planner.tp() > 1), compute_(planner.dtype()), count_(count), cols_(cols) {
  if (!active_) return;
  // The message is the partial result of all rows in the master type; no rounding or guard zones in it.
  Linear bytes = product_flops(count.of, cols, 1);
  const std::int64_t size = size_of(master_of(compute_));
  for (std::int64_t* part : {&bytes.constant, &bytes.per_row, &bytes.per_supervised, &bytes.per_source, &bytes.per_out})
    *part = *part / 2 * size;
  for (const Phase phase : phases)
    planner.event(phase, {.op = count.parts > 1 ? run::InnerEvent::Op::reduce_scatter : run::InnerEvent::Op::all_reduce,
                          .axis = Axis::tp,
                          .bytes = bytes,
                          .when = when});
}

Linear TpSum::scratch() const {
  if (!active_ || (compute_ != DType::bf16 && count_.parts == 1)) return {};
  return run::arena_bytes(master_of(compute_), count_.of, cols_);
}

Tensor TpSum::begin(Ctx& ctx, const Tensor& out) const {
  if (!active_ || (compute_ != DType::bf16 && count_.parts == 1)) return out;
  return ctx.scratch->take(master_of(compute_), {out.rows() * count_.parts, out.cols()});
}

void TpSum::end(Ctx& ctx, const Tensor& partial, const Tensor& out) const {
  if (!active_) return;
  comm::Communicator& tp = ctx.comm(Axis::tp);
  if (count_.parts == 1) {
    tp.all_reduce(partial, comm::ReduceOp::sum, ctx.stream);
    if (partial.data != out.data) ops::copy(ctx.stream, out, partial);
    return;
  }
  const Tensor own = partial.row_range(tp.rank() * out.rows(), out.rows());
  const Tensor& sum = compute_ == DType::bf16 ? own : out;
  tp.reduce_scatter(partial, sum, comm::ReduceOp::sum, ctx.stream);
  if (sum.data != out.data) ops::copy(ctx.stream, out, sum);
}

}  // namespace mmt::models
