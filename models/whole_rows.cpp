#include "models/whole_rows.h"

#include "kernels/elementwise.h"

namespace mmt::models {
namespace {

Linear bytes_of(const PortPlan& port) { return run::arena_bytes(port.dtype, RowCount::rows, port.cols); }

run::InnerEvent gather_event(DType dtype, std::int64_t cols) {
  return {.op = run::InnerEvent::Op::all_gather, .axis = Axis::tp, .bytes = {.per_row = cols * size_of(dtype)}};
}

}  // namespace

run::InnerEvent rows_gather(const UnitPlanner& planner, std::int64_t cols) {
  return gather_event(planner.dtype(), cols);
}

void gather_rows_over_tp(Ctx& ctx, const Tensor& share, const Tensor& whole) {
  ctx.comm(Axis::tp).all_gather(share, whole, ctx.stream);
}

Tensor own_rows(const Ctx& ctx, const Tensor& whole) {
  const comm::Communicator& tp = ctx.comm(Axis::tp);
  const std::int64_t rows = whole.rows() / tp.size();
  return whole.row_range(tp.rank() * rows, rows);
}

WholeRows::WholeRows(const UnitPlanner::Setting& setting, std::unique_ptr<run::Unit> unit) : unit_(std::move(unit)) {
  plan_ = unit_->plan();
  const RowCount share(RowCount::rows, setting.degrees[Axis::tp]);
  const auto events = [&](Phase phase) -> auto& { return plan_.events[static_cast<std::size_t>(phase)]; };
  const auto scratch = [&](Phase phase) -> auto& { return plan_.scratch[static_cast<std::size_t>(phase)]; };
  for (std::size_t i = 0; i < plan_.inputs.size(); ++i) {
    PortPlan& port = plan_.inputs[i];
    if (port.count != RowCount::rows) continue;
    MMT_CHECK(port.keep == Life::scratch && !port.add_grad && shared_input_ == kNone,
              "{}: input {} of all rows is read after the forward", plan_.name, port.name);
    shared_input_ = static_cast<int>(i);
    port.count = share;
    for (const Phase phase : {Phase::forward, Phase::recompute}) {
      events(phase).insert(events(phase).begin(), gather_event(port.dtype, port.cols));
      scratch(phase) += bytes_of(port);
    }
    if (port.needs_grad) scratch(Phase::backward_input) += bytes_of(port);
  }
  if (!plan_.has_output() || plan_.output.count != RowCount::rows) return;
  shares_output_ = true;
  PortPlan& out = plan_.output;
  out.count = share;
  scratch(Phase::forward) += bytes_of(out);
  if (!plan_.needs_backward()) return;
  events(Phase::backward_input).insert(events(Phase::backward_input).begin(), gather_event(out.dtype, out.cols));
  if (out.keep_grad == Life::stash) {
    d_out_ = static_cast<SlotId>(plan_.tensors.size());
    plan_.tensors.push_back({"d out of all rows", out.dtype, RowCount::rows, out.cols, Life::stash});
    out.keep_grad = Life::scratch;
  } else {
    scratch(Phase::backward_input) += bytes_of(out);
  }
}

std::vector<Tensor> WholeRows::gathered(Ctx& ctx, std::span<const Tensor> in) const {
  std::vector<Tensor> inputs(in.begin(), in.end());
  if (shared_input_ == kNone) return inputs;
  Tensor& x = inputs[static_cast<std::size_t>(shared_input_)];
  const Tensor whole = ctx.scratch->take(x.dtype, {ctx.rows->size.rows, x.cols()});
  gather_rows_over_tp(ctx, x, whole);
  x = whole;
  return inputs;
}

void WholeRows::forward(Ctx& ctx, std::span<const Tensor> in, const Tensor& out, Saved& saved) const {
  const ArenaScope scope(*ctx.scratch);
  const std::vector<Tensor> inputs = gathered(ctx, in);
  Tensor whole = out;
  if (shares_output_) whole = ctx.scratch->take(out.dtype, {ctx.rows->size.rows, out.cols()});
  unit_->forward(ctx, inputs, whole, saved);
  if (shares_output_) ops::copy(ctx.stream, out, own_rows(ctx, whole));
}

void WholeRows::recompute(Ctx& ctx, Saved& saved) const {
  const ArenaScope scope(*ctx.scratch);
  std::vector<Tensor> inputs = gathered(ctx, saved.in);
  std::swap(saved.in, inputs);
  unit_->recompute(ctx, saved);
  std::swap(saved.in, inputs);
}

void WholeRows::backward_input(Ctx& ctx, const Tensor& d_out, std::span<const Tensor> d_in, Saved& saved) const {
  if (!plan_.needs_backward()) return;
  const ArenaScope scope(*ctx.scratch);
  const auto all = [&](const Tensor& share) {
    return ctx.scratch->take(share.dtype, {ctx.rows->size.rows, share.cols()});
  };
  Tensor d = d_out;
  if (shares_output_) {
    d = d_out_ == kNone ? all(d_out) : saved[d_out_];
    gather_rows_over_tp(ctx, d_out, d);
  }
  std::vector<Tensor> gradients(d_in.begin(), d_in.end());
  const bool shares = shared_input_ != kNone && gradients[static_cast<std::size_t>(shared_input_)].defined();
  if (shares) gradients[static_cast<std::size_t>(shared_input_)] = all(d_in[static_cast<std::size_t>(shared_input_)]);
  unit_->backward_input(ctx, d, gradients, saved);
  if (!shares) return;
  const auto at = static_cast<std::size_t>(shared_input_);
  ops::copy(ctx.stream, d_in[at], own_rows(ctx, gradients[at]));
}

void WholeRows::backward_weight(Ctx& ctx, Saved& saved) const {
  if (d_out_ == kNone) return unit_->backward_weight(ctx, saved);
  const Tensor share = saved.d_out;
  saved.d_out = saved[d_out_];
  unit_->backward_weight(ctx, saved);
  saved.d_out = share;
}

std::unique_ptr<run::Unit> among_shares(const UnitPlanner::Setting& setting, std::unique_ptr<run::Unit> unit) {
  if (!setting.sequence_parallel || setting.replicate_tp || setting.degrees[Axis::tp] == 1) return unit;
  return std::make_unique<WholeRows>(setting, std::move(unit));
}

}  // namespace mmt::models
