#include "models/vision.h"

#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/linear.h"

namespace mmt::models {

PatchEmbedding::PatchEmbedding(const UnitPlanner::Setting& setting, const PatchEmbeddingOptions& o)
    : hidden_(o.hidden), class_token_(o.class_token), pre_norm_(o.pre_norm) {
  UnitPlanner planner(setting, o.unit);
  const std::int64_t width = std::int64_t{o.channels} * o.patch * o.patch;
  const auto whole = [&](ParamSpec spec) {
    if (planner.tp() > 1) spec.replica_over = {{Axis::tp, 0}};
    return planner.param(std::move(spec));
  };
  if (class_token_) {
    class_ = whole({.name = "embeddings.class_embedding", .shape = {hidden_}, .init = {.scale = o.init_scale}});
    if (planner.trains(class_)) class_grad_ = plan_row_gradient(planner, "class_embedding", hidden_);
  }
  patch_ = LinearLayer(planner,
                       {.name = "embeddings.patch_embedding",
                        .in = width,
                        .out = hidden_,
                        .bias = o.bias,
                        .weight_shape = {hidden_, o.channels, o.patch, o.patch},
                        .count = RowCount::source},
                       false);
  positions_ = whole({.name = "embeddings.position_embedding.weight",
                      .shape = {o.max_positions, hidden_},
                      .init = {.scale = o.init_scale}});
  positions_train_ = planner.trains(positions_);
  patches_train_ = patch_.output_needs_grad();
  const bool embedded_needs_grad = patches_train_ || positions_train_ || class_grad_ != kNone;
  if (pre_norm_)
    norm_ = Norm(planner, {.name = "pre_layrnorm", .kind = NormKind::layer, .features = hidden_, .epsilon = o.epsilon},
                 embedded_needs_grad);

  if (planner.dtype() != master_of(planner.dtype()))
    pixels_ = planner.tensor("pixels", width, patch_.input_life(), RowCount::source);
  patches_ = planner.tensor("patches", hidden_, Life::scratch, RowCount::source);
  if (pre_norm_) embedded_ = planner.tensor("embedded", hidden_, norm_.input_life());

  if (patch_.weight_trains()) d_patches_ = planner.tensor("d patches", hidden_, Life::stash, RowCount::source);
  Linear need;
  if (patches_train_ && d_patches_ == kNone) need += run::arena_bytes(setting.dtype, RowCount::source, hidden_);
  Life keep_grad = Life::scratch;
  if (pre_norm_ && positions_train_)
    d_embedded_ = planner.tensor("d embedded", hidden_, Life::stash);
  else if (pre_norm_ && embedded_needs_grad)
    need += run::arena_bytes(setting.dtype, RowCount::rows, hidden_);
  else if (positions_train_)
    keep_grad = Life::stash;
  planner.scratch(Phase::backward_input, need);
  if (pre_norm_) planner.scratch(Phase::recompute, run::arena_bytes(setting.dtype, RowCount::rows, hidden_));
  planner.output({.cols = hidden_, .dtype = setting.dtype, .keep_grad = keep_grad});
  plan_ = planner.take();
}

Tensor PatchEmbedding::pixels(Ctx& ctx, const Saved& saved) const {
  return pixels_ == kNone ? ctx.rows->source : saved[pixels_];
}

template <class F> void PatchEmbedding::each_tile(const run::Rows& rows, F&& use) const {
  const std::int64_t before = class_token_ ? 1 : 0;
  for (const plan::ItemPlan& item : rows.plan->items) {
    const std::int64_t patches = item.source.count / item.tiles;
    MMT_CHECK(item.source.count == item.tiles * patches && item.rows.count == item.tiles * (patches + before),
              "{}: an item of {} patches in {} tiles has {} rows", plan_.name, item.source.count, item.tiles,
              item.rows.count);
    for (std::int64_t tile = 0; tile < item.tiles; ++tile)
      use(item.rows.first + tile * (patches + before), item.source.first + tile * patches, patches);
  }
}

void PatchEmbedding::embed(Ctx& ctx, const Tensor& x, Saved& saved) const {
  const run::Rows& rows = *ctx.rows;
  if (pixels_ != kNone) ops::copy(ctx.stream, saved[pixels_], rows.source);
  patch_.forward(ctx, saved, saved[patches_], pixels(ctx, saved));
  const std::int64_t before = class_token_ ? 1 : 0;
  each_tile(rows, [&](std::int64_t row, std::int64_t patch, std::int64_t patches) {
    if (class_token_) ops::copy(ctx.stream, x.row_range(row, 1), ctx.weight(class_).reshape({1, hidden_}));
    ops::copy(ctx.stream, x.row_range(row + before, patches), saved[patches_].row_range(patch, patches));
  });
  const std::int64_t used = used_rows(rows);
  ops::add_table_rows(ctx.stream, x.row_range(0, used), x.row_range(0, used), ctx.weight(positions_),
                      rows.positions.reshape({rows.positions.rows()}).row_range(0, used));
  zero_tail(ctx, x);
}

void PatchEmbedding::forward(Ctx& ctx, std::span<const Tensor>, const Tensor& out, Saved& saved) const {
  embed(ctx, pre_norm_ ? saved[embedded_] : out, saved);
  if (!pre_norm_) return;
  norm_.forward(ctx, saved, out, saved[embedded_]);
  zero_tail(ctx, out);
}

void PatchEmbedding::recompute(Ctx& ctx, Saved& saved) const {
  if (!plan_.trains()) return;
  if (!pre_norm_) {
    if (pixels_ != kNone) ops::copy(ctx.stream, saved[pixels_], ctx.rows->source);
    return;
  }
  embed(ctx, saved[embedded_], saved);
  const ArenaScope scope(*ctx.scratch);
  const Tensor out = ctx.scratch->take(saved[embedded_].dtype, {saved[embedded_].rows(), hidden_});
  norm_.forward(ctx, saved, out, saved[embedded_]);
}

void PatchEmbedding::backward_input(Ctx& ctx, const Tensor& d_out, std::span<const Tensor>, Saved& saved) const {
  if (!plan_.trains()) return;
  const ArenaScope scope(*ctx.scratch);
  const run::Rows& rows = *ctx.rows;
  Tensor d = d_out;
  if (pre_norm_) {
    d = {};
    if (d_embedded_ != kNone)
      d = saved[d_embedded_];
    else if (patches_train_ || class_grad_ != kNone)
      d = ctx.scratch->take(d_out.dtype, {d_out.rows(), hidden_});
    norm_.backward_input(ctx, saved, d, d_out, saved[embedded_]);
  }
  if (class_grad_ != kNone) {
    const Tensor sum = saved[class_grad_].reshape({hidden_});
    ops::fill(ctx.stream, saved[class_grad_], 0.0);
    each_tile(rows, [&](std::int64_t row, std::int64_t, std::int64_t) {
      ops::linear_backward_bias(ctx.stream, sum, d.row_range(row, 1), Accumulate::add);
    });
  }
  if (patches_train_) {
    const Tensor d_patches =
        d_patches_ != kNone ? saved[d_patches_] : ctx.scratch->take(d_out.dtype, {rows.size.source, hidden_});
    each_tile(rows, [&](std::int64_t row, std::int64_t patch, std::int64_t patches) {
      ops::copy(ctx.stream, d_patches.row_range(patch, patches), d.row_range(row + (class_token_ ? 1 : 0), patches));
    });
    patch_.backward_input(ctx, saved, {}, d_patches);
  }
}

void PatchEmbedding::backward_weight(Ctx& ctx, Saved& saved) const {
  if (!plan_.trains()) return;
  const run::Rows& rows = *ctx.rows;
  if (pre_norm_) norm_.backward_weight(ctx, saved);
  if (class_grad_ != kNone) move_row_gradient(ctx, class_, saved[class_grad_]);
  patch_.backward_weight(ctx, saved, d_patches_ == kNone ? Tensor{} : saved[d_patches_], pixels(ctx, saved));
  if (positions_train_) {
    const run::GradTarget target = ctx.grad(positions_);
    const std::int64_t used = used_rows(rows);
    const Tensor d = pre_norm_ ? saved[d_embedded_] : saved.d_out;
    ops::embedding_backward(ctx.stream, target.view, d.row_range(0, used),
                            rows.positions.reshape({rows.positions.rows()}).row_range(0, used), target.mode);
  }
}

}  // namespace mmt::models
