#include "models/head.h"

#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/gather.h"
#include "kernels/linear.h"

#include <algorithm>

namespace mmt::models {

HeadUnit::HeadUnit(const UnitPlanner::Setting& setting, const HeadOptions& o, bool input_needs_grad)
    : hidden_(o.hidden), vocabulary_(o.vocabulary), chunk_(o.chunk), input_needs_grad_(input_needs_grad) {
  UnitPlanner planner(setting, o.unit);
  const DType dtype = setting.dtype;
  planner.input({.cols = hidden_, .dtype = dtype, .needs_grad = input_needs_grad});
  NormOptions norm = o.norm;
  norm.features = hidden_;
  norm.count = RowCount::supervised;
  norm.backward_in_forward = true;
  norm_ = Norm(planner, norm, input_needs_grad);
  ParamSpec spec{.name = o.head + ".weight", .shape = {vocabulary_, hidden_}, .init = {.scale = o.init_scale}};
  cut_vocabulary(planner, spec);
  spec.forward_product = true;
  spec.input_product = norm_.output_needs_grad();
  head_ = planner.param(std::move(spec));
  head_trains_ = planner.trains(head_);
  const std::int64_t classes = vocabulary_share(planner, vocabulary_).count;

  gathered_ = planner.tensor("supervised rows", hidden_, Life::scratch, RowCount::supervised);
  normed_ = planner.tensor("normed", hidden_, Life::scratch, RowCount::supervised);
  const Linear rows = run::arena_bytes(dtype, RowCount::supervised, hidden_);
  const Linear column = run::arena_bytes(master_of(dtype), RowCount::supervised, 1);
  Linear need = column + column;
  if (input_needs_grad)
    d_gathered_ = planner.tensor("d supervised rows", hidden_, Life::kept, RowCount::supervised);
  else if (norm_.trains())
    need += rows;
  shards_ = HeadShards(planner, vocabulary_, hidden_, chunk_, norm_.output_needs_grad());
  need += shards_.sum_scratch();
  for (const Phase phase : {Phase::forward, Phase::recompute}) planner.scratch(phase, need);
  planner.kernel_scratch([dtype, vocabulary = vocabulary_, chunk = chunk_, shards = shards_](
                             const Stream&, Phase phase, const plan::BlockSize& size, std::int64_t) {
    if (phase != Phase::forward && phase != Phase::recompute) return std::int64_t{0};
    if (shards.active()) return shards.scratch(size.supervised);
    return static_cast<std::int64_t>(ops::linear_cross_entropy_scratch(dtype, size.supervised, vocabulary, chunk));
  });

  // All of the head's work is done in F.
  const Linear product = product_flops(RowCount::supervised, hidden_, classes);
  Linear flops = product;
  if (norm_.output_needs_grad()) flops += product;
  if (head_trains_) flops += product;
  planner.cost({.forward = flops});
  plan_ = planner.take();
}

/// Where the loss is computed: Rows::loss itself, or scratch where the caller does not want it in the master type.
Tensor HeadUnit::store_loss(Ctx& ctx) const {
  const run::Rows& rows = *ctx.rows;
  const DType master = master_of(plan_.inputs[0].dtype);
  if (rows.loss.defined()) {
    MMT_CHECK(rows.loss.dtype == master && rows.loss.rows() == rows.size.supervised, "loss is {} for {} labels",
              rows.loss.describe(), rows.size.supervised);
    return rows.loss;
  }
  return ctx.scratch->take(master, {rows.size.supervised});
}

void HeadUnit::train(Ctx& ctx, const Tensor& x, Saved& saved, bool again) const {
  const run::Rows& rows = *ctx.rows;
  const std::int64_t count = rows.size.supervised;
  const DType master = master_of(x.dtype);
  const Tensor gathered = saved[gathered_], normed = saved[normed_];
  ops::gather_rows(ctx.stream, gathered, x, rows.supervised_rows);
  norm_.forward(ctx, saved, normed, gathered);

  const Tensor seed = ctx.scratch->take(master, {count, 1});
  ops::copy(ctx.stream, seed, rows.weights.reshape({count, 1}));
  ops::scale(ctx.stream, seed, seed, ctx.loss_scale);

  Tensor d;
  if (d_gathered_ != kNone)
    d = saved[d_gathered_];
  else if (norm_.trains())
    d = ctx.scratch->take(x.dtype, {count, hidden_});
  run::GradTarget dw;
  if (head_trains_ && !again) dw = ctx.grad(head_);
  const LinearCrossEntropy in{.x = normed,
                              .w = ctx.weight(head_),
                              .labels = rows.labels,
                              .weight = seed.reshape({count}),
                              .chunk = chunk_,
                              .packed_forward = ctx.packed(head_, Transpose::yes),
                              .packed_input = ctx.packed(head_, Transpose::no)};
  const Tensor loss = again ? ctx.scratch->take(master, {count}) : store_loss(ctx);
  if (shards_.active())
    shards_.run(ctx, loss, {}, d, dw.view, in, dw.mode);
  else
    ops::linear_cross_entropy(ctx.stream, *ctx.scratch, loss, {}, d, dw.view, in, dw.mode);
  if (norm_.trains() && !again) norm_.backward_weight_now(ctx, saved, d, gathered);
  if (d_gathered_ != kNone) norm_.backward_input(ctx, saved, d, d, gathered);
}

void HeadUnit::evaluate(Ctx& ctx, const Tensor& x, Saved& saved) const {
  const run::Rows& rows = *ctx.rows;
  const std::int64_t count = rows.size.supervised;
  const DType master = master_of(x.dtype);
  const Tensor gathered = saved[gathered_], normed = saved[normed_], loss = store_loss(ctx);
  ops::gather_rows(ctx.stream, gathered, x, rows.supervised_rows);
  norm_.forward(ctx, saved, normed, gathered);
  const LinearCrossEntropy in{.x = normed,
                              .w = ctx.weight(head_),
                              .labels = rows.labels,
                              .weight = {},
                              .chunk = chunk_,
                              .packed_forward = ctx.packed(head_, Transpose::yes)};
  if (shards_.active()) {
    if (ctx.logits == nullptr)
      shards_.run(ctx, loss, rows.predicted, {}, {}, in, Accumulate::overwrite);
    else
      shards_.show_logits(ctx, loss, rows.predicted, in);
    return;
  }
  if (ctx.logits == nullptr) {
    ops::linear_cross_entropy(ctx.stream, *ctx.scratch, loss, rows.predicted, {}, {}, in);
    return;
  }
  for (std::int64_t first = 0; first < count; first += chunk_) {
    const ArenaScope scope(*ctx.scratch);
    const std::int64_t n = std::min(chunk_, count - first);
    const auto part = [&](const Tensor& t) { return t.row_range(first, n); };
    const Tensor logits = ctx.scratch->take(master, {n, vocabulary_});
    ops::linear_forward(ctx.stream, logits, part(normed), in.w, {}, in.packed_forward);
    ops::cross_entropy(ctx.stream, part(loss), {}, logits, part(rows.labels), {});
    if (rows.predicted.defined()) ops::argmax_rows(ctx.stream, part(rows.predicted), logits);
    (*ctx.logits)(first, logits);
  }
}

void HeadUnit::forward(Ctx& ctx, std::span<const Tensor> in, const Tensor&, Saved& saved) const {
  const ArenaScope scope(*ctx.scratch);
  if (ctx.mode == run::Mode::train)
    train(ctx, in[0], saved, false);
  else
    evaluate(ctx, in[0], saved);
}

void HeadUnit::recompute(Ctx& ctx, Saved& saved) const {
  if (d_gathered_ == kNone) return;
  const ArenaScope scope(*ctx.scratch);
  train(ctx, saved.in[0], saved, true);
}

void HeadUnit::backward_input(Ctx& ctx, const Tensor&, std::span<const Tensor> d_in, Saved& saved) const {
  if (!input_needs_grad_) return;
  ops::fill(ctx.stream, d_in[0], 0.0);
  ops::scatter_rows(ctx.stream, d_in[0], saved[d_gathered_], ctx.rows->supervised_rows);
}

}  // namespace mmt::models
