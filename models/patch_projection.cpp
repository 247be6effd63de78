#include "models/patch_projection.h"

#include "kernels/elementwise.h"

namespace mmt::models {

PatchProjection::PatchProjection(const UnitPlanner::Setting& setting, const PatchProjectionOptions& o) {
  UnitPlanner planner(setting, o.unit);
  const std::int64_t width = std::int64_t{o.channels} * o.frames * o.patch * o.patch;
  patch_ = LinearLayer(planner,
                       {.name = "patch_embed.proj",
                        .in = width,
                        .out = o.hidden,
                        .weight_shape = {o.hidden, o.channels, o.frames, o.patch, o.patch},
                        .count = RowCount::source},
                       false);
  if (planner.dtype() != master_of(planner.dtype()))
    pixels_ = planner.tensor("pixels", width, patch_.input_life(), RowCount::source);
  planner.output({.cols = o.hidden, .dtype = setting.dtype, .keep_grad = patch_.grad_life()});
  plan_ = planner.take();
}

Tensor PatchProjection::pixels(Ctx& ctx, const Saved& saved) const {
  return pixels_ == kNone ? ctx.rows->source : saved[pixels_];
}

void PatchProjection::forward(Ctx& ctx, std::span<const Tensor>, const Tensor& out, Saved& saved) const {
  const run::Rows& rows = *ctx.rows;
  MMT_CHECK(used_rows(rows) == rows.size.source, "{}: {} patches for {} rows", plan_.name, rows.size.source,
            used_rows(rows));
  if (pixels_ != kNone) ops::copy(ctx.stream, saved[pixels_], rows.source);
  patch_.forward(ctx, saved, out.row_range(0, rows.size.source), pixels(ctx, saved));
  zero_tail(ctx, out);
}

void PatchProjection::recompute(Ctx& ctx, Saved& saved) const {
  if (plan_.trains() && pixels_ != kNone) ops::copy(ctx.stream, saved[pixels_], ctx.rows->source);
}

void PatchProjection::backward_input(Ctx& ctx, const Tensor& d_out, std::span<const Tensor>, Saved& saved) const {
  if (plan_.trains()) patch_.backward_input(ctx, saved, {}, d_out.row_range(0, ctx.rows->size.source));
}

void PatchProjection::backward_weight(Ctx& ctx, Saved& saved) const {
  if (plan_.trains())
    patch_.backward_weight(ctx, saved, saved.d_out.row_range(0, ctx.rows->size.source), pixels(ctx, saved));
}

}  // namespace mmt::models
