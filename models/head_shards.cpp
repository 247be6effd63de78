#include "models/head_shards.h"

#include "kernels/elementwise.h"
#include "kernels/linear.h"

#include <algorithm>

namespace mmt::models {
namespace {

using run::InnerEvent;
using run::Purpose;

constexpr std::int64_t kColumnMultiple = 64;  // row stride of the logits: whole cache lines and vectors

std::uint8_t bit(Purpose p) { return static_cast<std::uint8_t>(p); }

/// Bytes of a gathered tensor of `cols` columns, by supervised rows.
Linear gathered(DType dtype, std::int64_t cols) { return {.per_supervised = cols * size_of(dtype)}; }

}  // namespace

void cut_vocabulary(const UnitPlanner& planner, ParamSpec& spec) {
  const plan::Share share = vocabulary_share(planner, spec.shape[0]);
  MMT_CHECK(share.count > 0, "{}: a vocabulary of {} over {} ranks", spec.name, spec.shape[0], planner.tp());
  spec.box = {std::vector<std::int64_t>(spec.shape.size(), 0), spec.shape};
  spec.box.offset[0] = share.first;
  spec.box.shape[0] = share.count;
}

HeadShards::HeadShards(UnitPlanner& planner, std::int64_t vocabulary, std::int64_t hidden, std::int64_t chunk,
                       bool normed_needs_grad)
    : dtype_(planner.dtype()),
      ranks_(planner.tp()),
      share_(vocabulary_share(planner, vocabulary)),
      vocabulary_(vocabulary),
      chunk_(chunk) {
  if (!active()) return;
  const DType master = master_of(dtype_);
  for (const Phase phase : {Phase::forward, Phase::recompute}) {
    const auto gather = [&](DType dtype, std::int64_t cols, int when, std::int64_t rows) {
      planner.event(phase, {.op = InnerEvent::Op::all_gather,
                            .axis = Axis::tp,
                            .bytes = gathered(dtype, cols),
                            .when = static_cast<std::uint8_t>(when),
                            .chunk = rows});
    };
    gather(master, ranks_ * kCrossEntropyStats, bit(Purpose::train) | bit(Purpose::evaluate), chunk_);
    gather(DType::i32, ranks_, bit(Purpose::evaluate), chunk_);
    gather(master, vocabulary_, bit(Purpose::logits), shown_chunk());
  }
  if (normed_needs_grad)
    input_sum_ = TpSum(planner, RowCount::supervised, hidden, {Phase::forward, Phase::recompute}, bit(Purpose::train));
}

// Of the largest share, so that all ranks take the same memory.
std::int64_t HeadShards::width() const {
  const std::int64_t largest = plan::share_of(vocabulary_, 0, ranks_).count;
  return (largest + kColumnMultiple - 1) / kColumnMultiple * kColumnMultiple;
}

// Whole logits, once as they arrive and once in rows, take no more than the logits of a chunk in training.
std::int64_t HeadShards::shown_chunk() const { return std::max<std::int64_t>(1, chunk_ / (2 * ranks_)); }

std::int64_t HeadShards::scratch(std::int64_t rows) const {
  const auto bytes = [](DType dtype, std::int64_t elements) {
    return static_cast<std::int64_t>(Arena::footprint(static_cast<std::size_t>(elements * size_of(dtype))));
  };
  const DType master = master_of(dtype_);
  const std::int64_t most = std::min(rows, chunk_), shown = std::min(rows, shown_chunk());
  std::int64_t fused = bytes(master, most * width());
  if (dtype_ == DType::bf16) fused += bytes(dtype_, most * width());
  fused += bytes(master, most) + bytes(master, ranks_ * most * kCrossEntropyStats) + bytes(DType::i32, ranks_ * most);
  std::int64_t whole = bytes(master, shown * vocabulary_);
  for (int r = 0; r < ranks_; ++r) whole += bytes(master, shown * plan::share_of(vocabulary_, r, ranks_).count);
  return std::max(fused, whole);
}

void HeadShards::run(Ctx& ctx, const Tensor& loss, const Tensor& predicted, const Tensor& dx, const Tensor& dw,
                     const LinearCrossEntropy& in, Accumulate accumulate) const {
  const ArenaScope scope(*ctx.scratch);
  const std::int64_t rows = in.x.rows(), most = std::min(rows, chunk_);
  const DType master = master_of(dtype_);
  const bool backward = dx.defined() || dw.defined();
  comm::Communicator& tp = ctx.comm(Axis::tp);
  const auto first_class = static_cast<std::int32_t>(share_.first);
  Tensor partial;
  if (dx.defined()) partial = input_sum_.begin(ctx, dx);
  {
    const ArenaScope buffers(*ctx.scratch);
    const Tensor logits_buffer = ctx.scratch->take(master, {most, width()});
    Tensor gradient_buffer = logits_buffer;
    if (backward && dtype_ == DType::bf16) gradient_buffer = ctx.scratch->take(dtype_, {most, width()});
    const Tensor all_stats = ctx.scratch->take(master, {ranks_ * most, kCrossEntropyStats});
    const Tensor all_largest = ctx.scratch->take(DType::i32, {ranks_ * most});
    const Tensor all_lse = ctx.scratch->take(master, {most});
    for (std::int64_t first = 0; first < rows; first += most) {
      const std::int64_t count = std::min(most, rows - first);
      const auto chunk = [&](const Tensor& t) { return t.defined() ? t.row_range(first, count) : Tensor{}; };
      const Tensor logits = logits_buffer.row_range(0, count).col_range(0, share_.count);
      const Tensor stats = all_stats.row_range(0, ranks_ * count), largest = all_largest.row_range(0, ranks_ * count);
      const Tensor lse = all_lse.row_range(0, count);
      ops::gemm(ctx.stream, Transpose::no, Transpose::yes, logits, chunk(in.x), in.w, {.packed = in.packed_forward});
      const Tensor own_stats = stats.row_range(tp.rank() * count, count);
      ops::cross_entropy_stats(ctx.stream, own_stats, logits, chunk(in.labels), first_class);
      tp.all_gather(own_stats, stats, ctx.stream);
      if (predicted.defined()) {
        const Tensor own = largest.row_range(tp.rank() * count, count);
        ops::argmax_rows(ctx.stream, own, logits, first_class);
        tp.all_gather(own, largest, ctx.stream);
      }
      ops::cross_entropy_combine(ctx.stream, chunk(loss), lse, chunk(predicted), stats, largest, chunk(in.labels));
      if (!backward) continue;
      const Tensor dlogits = gradient_buffer.row_range(0, count).col_range(0, share_.count);
      ops::cross_entropy_gradient(ctx.stream, dlogits, logits, chunk(in.labels), chunk(in.weight), lse, first_class);
      if (dx.defined())
        ops::gemm(ctx.stream, Transpose::no, Transpose::no, chunk(partial), dlogits, in.w, {.packed = in.packed_input});
      if (dw.defined())
        ops::gemm(ctx.stream, Transpose::yes, Transpose::no, dw, dlogits, chunk(in.x),
                  {.accumulate = first == 0 ? accumulate : Accumulate::add, .bias = {}});
    }
  }
  if (rows == 0 && dw.defined() && accumulate == Accumulate::overwrite) ops::fill(ctx.stream, dw, 0.0);
  if (dx.defined()) input_sum_.end(ctx, partial, dx);
}

void HeadShards::show_logits(Ctx& ctx, const Tensor& loss, const Tensor& predicted,
                             const LinearCrossEntropy& in) const {
  const std::int64_t rows = in.x.rows();
  comm::Communicator& tp = ctx.comm(Axis::tp);
  for (std::int64_t first = 0; first < rows; first += shown_chunk()) {
    const ArenaScope scope(*ctx.scratch);
    const std::int64_t count = std::min(shown_chunk(), rows - first);
    const auto chunk = [&](const Tensor& t) { return t.row_range(first, count); };
    const DType master = master_of(dtype_);
    const Tensor logits = ctx.scratch->take(master, {count, vocabulary_});
    std::vector<Tensor> parts;
    for (int r = 0; r < ranks_; ++r)
      parts.push_back(ctx.scratch->take(master, {count, plan::share_of(vocabulary_, r, ranks_).count}));
    const Tensor& own = parts[static_cast<std::size_t>(tp.rank())];
    ops::linear_forward(ctx.stream, own, chunk(in.x), in.w, {}, in.packed_forward);
    tp.all_gather_v(own, parts, ctx.stream);
    std::int64_t column = 0;
    for (const Tensor& part : parts) {
      ops::copy(ctx.stream, logits.col_range(column, part.cols()), part);
      column += part.cols();
    }
    ops::cross_entropy(ctx.stream, chunk(loss), {}, logits, chunk(in.labels), {});
    if (predicted.defined()) ops::argmax_rows(ctx.stream, chunk(predicted), logits);
    (*ctx.logits)(first, logits);
  }
}

}  // namespace mmt::models
