#include "kernels/cross_entropy.h"

#include "kernels/dispatch.h"

#include <algorithm>

namespace mmt::ops {
namespace {

constexpr std::int64_t kColumnMultiple = 64;  // row stride of the logits: whole cache lines and vectors

std::int64_t padded(std::int64_t vocabulary) {
  return (vocabulary + kColumnMultiple - 1) / kColumnMultiple * kColumnMultiple;
}

void check_logits(const Stream& stream, const Tensor& logits, const Tensor& dlogits, const Tensor& labels) {
  check_compute(stream, logits, "cross_entropy: logits");
  check_tensor(stream, logits, 2, logits.dtype, "cross_entropy: logits");
  check_vector(stream, labels, logits.rows(), DType::i32, "cross_entropy: labels");
  if (!dlogits.defined()) return;
  MMT_CHECK(dlogits.rank == 2 && dlogits.rows() == logits.rows() && dlogits.cols() == logits.cols() &&
                (dlogits.dtype == logits.dtype || (logits.dtype == DType::f32 && dlogits.dtype == DType::bf16)),
            "cross_entropy: dlogits {} of logits {}", dlogits.describe(), logits.describe());
}

}  // namespace

void cross_entropy(const Stream& stream, const Tensor& loss, const Tensor& dlogits, const Tensor& logits,
                   const Tensor& labels, const Tensor& weight) {
  check_logits(stream, logits, dlogits, labels);
  check_vector(stream, loss, logits.rows(), master_of(logits.dtype), "cross_entropy: loss");
  if (dlogits.defined()) check_vector(stream, weight, logits.rows(), master_of(logits.dtype), "cross_entropy: weight");
  table_for(stream, logits.dtype).cross_entropy.cross_entropy(stream, loss, dlogits, logits, labels, weight);
}

void cross_entropy_stats(const Stream& stream, const Tensor& stats, const Tensor& logits, const Tensor& labels,
                         std::int32_t first) {
  check_logits(stream, logits, {}, labels);
  check_tensor(stream, stats, 2, master_of(logits.dtype), "cross_entropy: stats");
  check_shape(stats, {logits.rows(), kCrossEntropyStats}, "cross_entropy: stats");
  table_for(stream, logits.dtype).cross_entropy.stats(stream, stats, logits, labels, first);
}

void cross_entropy_gradient(const Stream& stream, const Tensor& dlogits, const Tensor& logits, const Tensor& labels,
                            const Tensor& weight, const Tensor& lse, std::int32_t first) {
  MMT_CHECK(dlogits.defined(), "cross_entropy: a gradient without dlogits");
  check_logits(stream, logits, dlogits, labels);
  check_vector(stream, weight, logits.rows(), master_of(logits.dtype), "cross_entropy: weight");
  check_vector(stream, lse, logits.rows(), master_of(logits.dtype), "cross_entropy: lse");
  table_for(stream, logits.dtype).cross_entropy.gradient(stream, dlogits, logits, labels, weight, lse, first);
}

void cross_entropy_combine(const Stream& stream, const Tensor& loss, const Tensor& lse, const Tensor& predicted,
                           const Tensor& stats, const Tensor& largest, const Tensor& labels) {
  const std::int64_t rows = labels.rows();
  check_vector(stream, labels, rows, DType::i32, "cross_entropy: labels");
  check_vector(stream, loss, rows, stats.dtype, "cross_entropy: loss");
  check_vector(stream, lse, rows, stats.dtype, "cross_entropy: lse");
  check_tensor(stream, stats, 2, stats.dtype, "cross_entropy: stats");
  MMT_CHECK(stats.cols() == kCrossEntropyStats && (rows == 0 ? stats.rows() == 0 : stats.rows() % rows == 0),
            "cross_entropy: stats {} of {} rows", stats.describe(), rows);
  if (predicted.defined()) {
    check_vector(stream, predicted, rows, DType::i32, "cross_entropy: predicted");
    check_vector(stream, largest, stats.rows(), DType::i32, "cross_entropy: largest");
  }
  table_for(stream, stats.dtype).cross_entropy.combine(stream, loss, lse, predicted, stats, largest, labels);
}

void argmax_rows(const Stream& stream, const Tensor& index, const Tensor& x, std::int32_t first) {
  check_compute(stream, x, "argmax_rows: x");
  check_tensor(stream, x, 2, x.dtype, "argmax_rows: x");
  MMT_CHECK(x.cols() > 0, "argmax_rows: {}", x.describe());
  check_vector(stream, index, x.rows(), DType::i32, "argmax_rows: index");
  table_for(stream, x.dtype).cross_entropy.argmax(stream, index, x, first);
}

std::size_t linear_cross_entropy_scratch(DType compute, std::int64_t rows, std::int64_t vocabulary,
                                         std::int64_t chunk) {
  const std::int64_t elements = std::min(rows, chunk) * padded(vocabulary);
  std::size_t bytes = Arena::footprint(static_cast<std::size_t>(elements * size_of(master_of(compute))));
  if (compute == DType::bf16) bytes += Arena::footprint(static_cast<std::size_t>(elements * size_of(compute)));
  return bytes;
}

void linear_cross_entropy(const Stream& stream, Arena& scratch, const Tensor& loss, const Tensor& predicted,
                          const Tensor& dx, const Tensor& dw, const LinearCrossEntropy& in, Accumulate accumulate) {
  const Tensor &x = in.x, &w = in.w;
  check_tensor(stream, x, 2, w.dtype, "linear_cross_entropy: x");
  check_tensor(stream, w, 2, w.dtype, "linear_cross_entropy: w");
  MMT_CHECK(in.chunk > 0, "linear_cross_entropy: chunks of {} rows", in.chunk);
  const std::int64_t rows = x.rows(), vocabulary = w.rows();
  const DType master = master_of(x.dtype);
  check_vector(stream, loss, rows, master, "linear_cross_entropy: loss");
  check_vector(stream, in.labels, rows, DType::i32, "linear_cross_entropy: labels");
  const bool backward = dx.defined() || dw.defined();
  if (backward) check_vector(stream, in.weight, rows, master, "linear_cross_entropy: weight");
  if (predicted.defined()) check_vector(stream, predicted, rows, DType::i32, "linear_cross_entropy: predicted");
  if (dw.defined()) check_tensor(stream, dw, 2, master, "linear_cross_entropy: dw");
  if (rows == 0) {
    if (dw.defined() && accumulate == Accumulate::overwrite) fill(stream, dw, 0.0);
    return;
  }

  const ArenaScope scope(scratch);
  const std::int64_t most = std::min(rows, in.chunk), width = padded(vocabulary);
  const Tensor logits_buffer = scratch.take(master, {most, width});
  Tensor gradient_buffer = logits_buffer;
  if (backward && x.dtype == DType::bf16) gradient_buffer = scratch.take(DType::bf16, {most, width});
  for (std::int64_t first = 0; first < rows; first += most) {
    const std::int64_t count = std::min(most, rows - first);
    const auto chunk = [&](const Tensor& t) { return t.defined() ? t.row_range(first, count) : Tensor{}; };
    const Tensor logits = logits_buffer.row_range(0, count).col_range(0, vocabulary);
    const Tensor dlogits = backward ? gradient_buffer.row_range(0, count).col_range(0, vocabulary) : Tensor{};
    gemm(stream, Transpose::no, Transpose::yes, logits, chunk(x), w, {.packed = in.packed_forward});
    if (predicted.defined()) argmax_rows(stream, chunk(predicted), logits);
    cross_entropy(stream, chunk(loss), dlogits, logits, chunk(in.labels), chunk(in.weight));
    if (dx.defined()) gemm(stream, Transpose::no, Transpose::no, chunk(dx), dlogits, w, {.packed = in.packed_input});
    if (dw.defined())
      gemm(stream, Transpose::yes, Transpose::no, dw, dlogits, chunk(x),
           {.accumulate = first == 0 ? accumulate : Accumulate::add, .bias = {}});
  }
}

}  // namespace mmt::ops
