#include "models/audio.h"

#include "kernels/activation.h"
#include "kernels/conv.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"

#include <cmath>

namespace mmt::models {
namespace {

constexpr Activation kGelu = Activation::gelu_erf;

}  // namespace

AudioStem::AudioStem(const UnitPlanner::Setting& setting, const AudioStemOptions& o)
    : hidden_(o.hidden), mels_(o.mels) {
  UnitPlanner planner(setting, o.unit);
  // He's scale: the sinusoids have size one, and smaller convolutions drown in them (trained from scratch, the quick
  // start's speech takes about twice the steps with the scale of other layers).
  const auto conv = [&](const char* name, std::int64_t channels, RowCount count, bool input_needs_grad) {
    return LinearLayer(planner,
                       {.name = name,
                        .in = channels * kConvTaps,
                        .out = hidden_,
                        .bias = true,
                        .weight_shape = {hidden_, channels, kConvTaps},
                        .count = count,
                        .init = {.scale = std::sqrt(2.0 / static_cast<double>(channels * kConvTaps))}},
                       input_needs_grad);
  };
  conv1_ = conv("conv1", mels_, RowCount::source, false);
  conv1_needs_grad_ = conv1_.output_needs_grad();
  conv2_ = conv("conv2", hidden_, RowCount::rows, conv1_needs_grad_);
  conv2_needs_grad_ = conv2_.output_needs_grad();
  ParamSpec spec{.name = "embed_positions.weight",
                 .shape = {o.max_positions, hidden_},
                 .init = {Init::Kind::sinusoid},
                 .trainable = o.train_positions};
  if (planner.tp() > 1) spec.replica_over = {{Axis::tp, 0}};
  positions_ = planner.param(std::move(spec));
  positions_train_ = planner.trains(positions_);

  const DType dtype = setting.dtype;
  if (dtype != master_of(dtype)) frames_ = planner.tensor("frames", mels_, conv1_.input_life(), RowCount::source);
  pre1_ = planner.tensor("conv1", hidden_, conv1_needs_grad_ ? Life::kept : Life::scratch, RowCount::source);
  act1_ = planner.tensor("gelu 1", hidden_, conv2_.input_life(), RowCount::source);
  pre2_ = planner.tensor("conv2", hidden_, conv2_needs_grad_ ? Life::kept : Life::scratch);
  if (conv1_.weight_trains()) d_pre1_ = planner.tensor("d conv1", hidden_, Life::stash, RowCount::source);
  if (conv2_.weight_trains()) d_pre2_ = planner.tensor("d conv2", hidden_, Life::stash);

  const Linear columns1 = run::arena_bytes(dtype, RowCount::source, mels_ * kConvTaps);
  const Linear columns2 = run::arena_bytes(dtype, RowCount::rows, hidden_ * kConvTaps);
  for (const Phase phase : {Phase::forward, Phase::recompute, Phase::backward_weight}) {
    planner.scratch(phase, columns1);
    planner.scratch(phase, columns2);
  }
  planner.scratch(Phase::backward_input, columns2 + run::arena_bytes(dtype, RowCount::rows, hidden_) +
                                             run::arena_bytes(dtype, RowCount::source, hidden_));
  planner.output({.cols = hidden_, .dtype = dtype, .keep_grad = positions_train_ ? Life::stash : Life::scratch});
  plan_ = planner.take();
}

Tensor AudioStem::frames(Ctx& ctx, const Saved& saved) const {
  return frames_ == kNone ? ctx.rows->source : saved[frames_];
}

Tensor AudioStem::columns(Ctx& ctx, const Tensor& x, int stride) const {
  const std::int64_t rows = stride == 1 ? ctx.rows->size.source : used_rows(*ctx.rows);
  const Tensor c = ctx.scratch->take(x.dtype, {rows, x.cols() * kConvTaps});
  ops::im2col(ctx.stream, c, x, stride == 1 ? ctx.rows->source_spans : ctx.rows->halved_spans, stride);
  return c;
}

/// The spans of conv2's output are those of the rows only when clips are packed without gaps.
void AudioStem::check_items(const run::Rows& rows) const {
  std::int64_t source = 0, row = 0;
  for (const plan::ItemPlan& item : rows.plan->items) {
    const std::int64_t frames = item.source.count;
    MMT_CHECK(item.source.first == source && item.rows.first == row &&
                  (item.rows.count == ops::conv_output_rows(frames, 2) || 2 * item.rows.count + 1 == frames),
              "{}: frames [{}, +{}) have rows [{}, +{})", plan_.name, item.source.first, item.source.count,
              item.rows.first, item.rows.count);
    source += item.source.count;
    row += item.rows.count;
  }
  MMT_CHECK(source == rows.size.source, "{}: {} of {} frames belong to items", plan_.name, source, rows.size.source);
}

void AudioStem::convolve(Ctx& ctx, Saved& saved) const {
  check_items(*ctx.rows);
  const std::int64_t used = used_rows(*ctx.rows);
  if (frames_ != kNone) ops::copy(ctx.stream, saved[frames_], ctx.rows->source);
  {
    const ArenaScope scope(*ctx.scratch);
    conv1_.forward(ctx, saved, saved[pre1_], columns(ctx, frames(ctx, saved), 1));
  }
  ops::activation_forward(ctx.stream, saved[act1_], saved[pre1_], kGelu);
  {
    const ArenaScope scope(*ctx.scratch);
    conv2_.forward(ctx, saved, saved[pre2_].row_range(0, used), columns(ctx, saved[act1_], 2));
  }
  zero_tail(ctx, saved[pre2_]);
}

void AudioStem::forward(Ctx& ctx, std::span<const Tensor>, const Tensor& out, Saved& saved) const {
  const run::Rows& rows = *ctx.rows;
  convolve(ctx, saved);
  const Tensor x = out.row_range(0, used_rows(rows));
  ops::activation_forward(ctx.stream, x, saved[pre2_].row_range(0, x.rows()), kGelu);
  ops::add_table_rows(ctx.stream, x, x, ctx.weight(positions_),
                      rows.positions.reshape({rows.positions.rows()}).row_range(0, x.rows()));
  zero_tail(ctx, out);
}

void AudioStem::recompute(Ctx& ctx, Saved& saved) const {
  if (conv2_needs_grad_) convolve(ctx, saved);
}

void AudioStem::backward_input(Ctx& ctx, const Tensor& d_out, std::span<const Tensor>, Saved& saved) const {
  if (!conv2_needs_grad_) return;
  const ArenaScope scope(*ctx.scratch);
  const auto buffer = [&](SlotId slot, std::int64_t rows) {
    return slot != kNone ? saved[slot] : ctx.scratch->take(d_out.dtype, {rows, hidden_});
  };
  const std::int64_t used = used_rows(*ctx.rows);
  const Tensor d_pre2 = buffer(d_pre2_, d_out.rows());
  ops::activation_backward(ctx.stream, d_pre2, d_out, saved[pre2_], kGelu);
  const Tensor d2 = d_pre2.row_range(0, used);
  if (!conv1_needs_grad_) {
    conv2_.backward_input(ctx, saved, {}, d2);
    return;
  }
  const Tensor d_pre1 = buffer(d_pre1_, ctx.rows->size.source);
  {
    const ArenaScope inner(*ctx.scratch);
    const Tensor d_columns = ctx.scratch->take(d_out.dtype, {used, hidden_ * kConvTaps});
    conv2_.backward_input(ctx, saved, d_columns, d2);
    ops::col2im(ctx.stream, d_pre1, d_columns, ctx.rows->halved_spans, 2);
  }
  ops::activation_backward(ctx.stream, d_pre1, d_pre1, saved[pre1_], kGelu);
  conv1_.backward_input(ctx, saved, {}, d_pre1);
}

void AudioStem::backward_weight(Ctx& ctx, Saved& saved) const {
  if (!plan_.trains()) return;
  const std::int64_t used = used_rows(*ctx.rows);
  {
    const ArenaScope scope(*ctx.scratch);
    const Tensor x = conv1_.weight_trains() ? columns(ctx, frames(ctx, saved), 1) : Tensor{};
    conv1_.backward_weight(ctx, saved, d_pre1_ == kNone ? Tensor{} : saved[d_pre1_], x);
  }
  {
    const ArenaScope scope(*ctx.scratch);
    const Tensor x = conv2_.weight_trains() ? columns(ctx, saved[act1_], 2) : Tensor{};
    conv2_.backward_weight(ctx, saved, d_pre2_ == kNone ? Tensor{} : saved[d_pre2_].row_range(0, used), x);
  }
  if (positions_train_) {
    const run::GradTarget target = ctx.grad(positions_);
    ops::embedding_backward(ctx.stream, target.view, saved.d_out.row_range(0, used),
                            ctx.rows->positions.reshape({ctx.rows->positions.rows()}).row_range(0, used), target.mode);
  }
}

}  // namespace mmt::models
