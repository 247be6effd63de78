#include "models/adapter.h"

#include "core/philox.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/linear.h"

#include <cmath>

namespace mmt::models {

Adapter::Adapter(UnitPlanner& planner, const run::AdapterSpec& spec, const AdapterPlace& place)
    : id_(planner.setting().module + "/" + place.name),
      rank_(spec.rank),
      scale_(spec.scale),
      dropout_(spec.dropout),
      count_(place.count),
      input_needs_grad_(place.input_needs_grad) {
  const ParamSpec& w = place.weight;
  MMT_CHECK(rank_ >= 1 && dropout_ >= 0.0 && dropout_ < 1.0, "{}: an adapter of rank {} with dropout {}", place.name,
            rank_, dropout_);
  MMT_CHECK(w.shape.size() == 2 && (count_ == RowCount::rows || count_ == RowCount::out), "{}: no place for an adapter",
            place.name);
  const std::int64_t in = w.box.shape[1], out = w.box.shape[0];
  features_ = w.shape[1];
  first_col_ = w.box.offset[1];

  ParamSpec a{.name = place.name + ".lora_A.weight",
              .shape = {rank_, w.shape[1]},
              .box = {{0, first_col_}, {rank_, in}},
              // Kaiming's uniform range with a = sqrt(5): sqrt(6 / ((1 + a^2) in)).
              .init = {Init::Kind::uniform, 1.0 / std::sqrt(static_cast<double>(features_))}};
  ParamSpec b{.name = place.name + ".lora_B.weight",
              .shape = {w.shape[0], rank_},
              .box = {{w.box.offset[0], 0}, {out, rank_}},
              .init = {Init::Kind::zeros}};
  switch (place.split) {
    case Split::whole:
      a.partial_over = b.partial_over = w.partial_over;
      a.replica_over = b.replica_over = w.replica_over;
      break;
    case Split::columns:
      a.partial_over = {{Axis::tp, 0}};
      b.partial_over = w.partial_over;
      b.replica_over = w.replica_over;
      break;
    case Split::rows: b.partial_over = {{Axis::tp, 0}}; break;
  }
  a.forward_product = b.forward_product = true;
  a.input_product = input_needs_grad_;
  a_ = planner.param(std::move(a));
  a_trains_ = planner.trains(a_);
  b.input_product = a_trains_ || input_needs_grad_;
  b_ = planner.param(std::move(b));
  b_trains_ = planner.trains(b_);
  if (!trains()) dropout_ = 0.0;  // what is frozen runs as in evaluation

  const DType dtype = planner.dtype();
  const auto bytes = [&](DType type, std::int64_t cols) { return run::arena_bytes(type, count_, cols); };
  if (b_trains_)
    inner_ = planner.tensor(place.name + " inner", rank_, Life::held, count_);
  else
    forward_scratch_ += bytes(dtype, rank_);
  if (dropout_ > 0.0) forward_scratch_ += bytes(dtype, in);
  if (a_trains_)
    d_inner_ = planner.tensor("d " + place.name + " inner", rank_, Life::stash, count_);
  else if (input_needs_grad_)
    backward_scratch_ += bytes(dtype, rank_);
  if (dropout_ > 0.0 && input_needs_grad_) backward_scratch_ += bytes(planner.tp() > 1 ? master_of(dtype) : dtype, in);
  if (dropout_ > 0.0 && a_trains_) weight_scratch_ += bytes(dtype, in);

  const Linear down = product_flops(count_, in, rank_), up = product_flops(count_, rank_, out);
  plan::LayerCost cost{.forward = down + up};
  if (a_trains_ || input_needs_grad_) cost.backward_input += up;
  if (input_needs_grad_) cost.backward_input += down;
  if (a_trains_) cost.backward_weight += down;
  if (b_trains_) cost.backward_weight += up;
  planner.cost(cost);
}

bool Adapter::drops(const Ctx& ctx) const { return dropout_ > 0.0 && ctx.mode == run::Mode::train; }

void Adapter::drop(Ctx& ctx, const Tensor& y, const Tensor& x, Accumulate accumulate) const {
  ops::dropout(ctx.stream, y, x, count_ == RowCount::out ? ctx.rows->out_address : ctx.rows->address,
               {.key = random_key(ctx.seed, "dropout", id_),
                .step = ctx.step,
                .probability = dropout_,
                .features = features_,
                .first_col = first_col_,
                .accumulate = accumulate});
}

Tensor Adapter::input(Ctx& ctx, const Tensor& x) const {
  if (!drops(ctx)) return x;
  const Tensor y = ctx.scratch->take(x.dtype, {x.rows(), x.cols()});
  drop(ctx, y, x, Accumulate::overwrite);
  return y;
}

Tensor Adapter::inner(Ctx& ctx, Saved& saved, const Tensor& x) const {
  const Tensor u = inner_ != kNone ? saved[inner_] : ctx.scratch->take(x.dtype, {x.rows(), rank_});
  ops::linear_forward(ctx.stream, u, input(ctx, x), ctx.weight(a_), {}, ctx.packed(a_, Transpose::yes));
  if (scale_ != 1.0) ops::scale(ctx.stream, u, u, scale_);
  return u;
}

void Adapter::forward(Ctx& ctx, Saved& saved, const Tensor& y, const Tensor& x) const {
  const ArenaScope scope(*ctx.scratch);
  const Tensor u = inner(ctx, saved, x);
  ops::gemm(ctx.stream, Transpose::no, Transpose::yes, y, u, ctx.weight(b_),
            {.accumulate = Accumulate::add, .packed = ctx.packed(b_, Transpose::yes)});
}

void Adapter::recompute(Ctx& ctx, Saved& saved, const Tensor& x) const {
  if (inner_ == kNone) return;
  const ArenaScope scope(*ctx.scratch);
  inner(ctx, saved, x);
}

void Adapter::backward_input(Ctx& ctx, Saved& saved, const Tensor& dx, const Tensor& dy) const {
  if (d_inner_ == kNone && !dx.defined()) return;
  const ArenaScope scope(*ctx.scratch);
  const Tensor du = d_inner_ != kNone ? saved[d_inner_] : ctx.scratch->take(dy.dtype, {dy.rows(), rank_});
  ops::linear_backward_input(ctx.stream, du, dy, ctx.weight(b_), Accumulate::overwrite, ctx.packed(b_, Transpose::no));
  if (scale_ != 1.0) ops::scale(ctx.stream, du, du, scale_);
  if (!dx.defined()) return;
  const Tensor packed = ctx.packed(a_, Transpose::no);
  if (!drops(ctx)) {
    ops::linear_backward_input(ctx.stream, dx, du, ctx.weight(a_), Accumulate::add, packed);
    return;
  }
  const Tensor d = ctx.scratch->take(dx.dtype, {dx.rows(), dx.cols()});
  ops::linear_backward_input(ctx.stream, d, du, ctx.weight(a_), Accumulate::overwrite, packed);
  drop(ctx, dx, d, Accumulate::add);
}

void Adapter::backward_weight(Ctx& ctx, Saved& saved, const Tensor& dy, const Tensor& x) const {
  if (b_trains_) {
    const run::GradTarget target = ctx.grad(b_);
    ops::linear_backward_weight(ctx.stream, target.view, dy, saved[inner_], target.mode);
  }
  if (a_trains_) {
    const ArenaScope scope(*ctx.scratch);
    const run::GradTarget target = ctx.grad(a_);
    ops::linear_backward_weight(ctx.stream, target.view, saved[d_inner_], input(ctx, x), target.mode);
  }
}

}  // namespace mmt::models
