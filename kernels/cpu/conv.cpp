// im2col and col2im: rows over the threads. Plain loops: they move data.
#include "kernels/cpu/clips.h"
#include "kernels/cpu/driver.h"
#include "kernels/cpu/tables.h"

namespace mmt::cpu {
namespace {

template <class T> void im2col_row(T* out, const T* previous, const T* here, const T* next, std::int64_t channels) {
  for (std::int64_t c = 0; c < channels; ++c) {
    out[c * kConvTaps] = previous ? previous[c] : T(0.0f);
    out[c * kConvTaps + 1] = here[c];
    out[c * kConvTaps + 2] = next ? next[c] : T(0.0f);
  }
}

void im2col(const Stream&, const Tensor& columns, const Tensor& x, const Tensor& clips, int stride) {
  check_clips(clips, x.rows(), columns.rows(), stride);
  visit_fast(x.dtype, [&]<class T>() {
    const auto px = rows_of<const T>(x);
    auto out = rows_of<T>(columns);
    for (std::int64_t i = 0; i < clips.rows(); ++i) {
      const Clip clip = clips_of(clips)[i];
      const std::int64_t outputs = ops::conv_output_rows(clip.rows, stride);
      const auto row = [&](std::int64_t t) {
        return t >= 0 && t < clip.rows ? px.base + (clip.first + t) * px.stride : nullptr;
      };
      parallel_shares(outputs, 1, outputs * columns.cols(), [&](std::int64_t first, std::int64_t count) {
        for (std::int64_t t = first; t < first + count; ++t)
          im2col_row(out.base + t * out.stride, row(t * stride - 1), row(t * stride), row(t * stride + 1), x.cols());
      });
      out = advance(out, outputs, 0);
    }
  });
}

// One row of dx: the taps that exist, in the order of k, in f32.
template <class T, bool kAdd, int kMask> void col2im_row(T* to, const T* const* tap, std::int64_t channels) {
  for (std::int64_t c = 0; c < channels; ++c) {
    float sum = kAdd ? static_cast<float>(to[c]) : 0.0f;
    if constexpr ((kMask & 1) != 0) sum += static_cast<float>(tap[0][c * kConvTaps]);
    if constexpr ((kMask & 2) != 0) sum += static_cast<float>(tap[1][c * kConvTaps]);
    if constexpr ((kMask & 4) != 0) sum += static_cast<float>(tap[2][c * kConvTaps]);
    to[c] = T(sum);
  }
}

template <class T, bool kAdd> void col2im_row(T* to, const T* const* tap, std::int64_t channels) {
  using Row = void (*)(T*, const T* const*, std::int64_t);
  static constexpr Row kRows[8] = {col2im_row<T, kAdd, 0>, col2im_row<T, kAdd, 1>, col2im_row<T, kAdd, 2>,
                                   col2im_row<T, kAdd, 3>, col2im_row<T, kAdd, 4>, col2im_row<T, kAdd, 5>,
                                   col2im_row<T, kAdd, 6>, col2im_row<T, kAdd, 7>};
  kRows[(tap[0] ? 1 : 0) | (tap[1] ? 2 : 0) | (tap[2] ? 4 : 0)](to, tap, channels);
}

// The outputs that read input row t of a clip with `outputs` rows: tap k of output (t + 1 - k) / stride.
template <class T> struct Readers { const T* tap[kConvTaps]; };

template <class T> Readers<T> readers_of(Rows<const T> d, std::int64_t t, std::int64_t outputs, int stride) {
  Readers<T> readers{};
  for (int k = 0; k < kConvTaps; ++k) {
    const std::int64_t start = t + 1 - k;
    if (start >= 0 && start % stride == 0 && start / stride < outputs)
      readers.tap[k] = d.base + start / stride * d.stride + k;
  }
  return readers;
}

void col2im(const Stream& stream, const Tensor& dx, const Tensor& dcolumns, const Tensor& clips, int stride,
            Accumulate accumulate) {
  check_clips(clips, dx.rows(), dcolumns.rows(), stride);
  const bool add = accumulate == Accumulate::add;
  visit_fast(dx.dtype, [&]<class T>() {
    const auto out = rows_of<T>(dx);
    auto d = rows_of<const T>(dcolumns);
    std::int64_t end = 0;
    const auto zero_until = [&](std::int64_t row) {
      if (!add && row > end) reference_elementwise().fill(stream, dx.row_range(end, row - end), 0.0);
    };
    for (std::int64_t i = 0; i < clips.rows(); ++i) {
      const Clip clip = clips_of(clips)[i];
      const std::int64_t outputs = ops::conv_output_rows(clip.rows, stride);
      zero_until(clip.first);
      parallel_shares(clip.rows, 1, clip.rows * dcolumns.cols(), [&](std::int64_t first, std::int64_t count) {
        for (std::int64_t t = first; t < first + count; ++t) {
          const Readers<T> readers = readers_of(d, t, outputs, stride);
          T* to = out.base + (clip.first + t) * out.stride;
          if (add)
            col2im_row<T, true>(to, readers.tap, dx.cols());
          else
            col2im_row<T, false>(to, readers.tap, dx.cols());
        }
      });
      end = std::int64_t{clip.first} + clip.rows;
      d = advance(d, outputs, 0);
    }
    zero_until(dx.rows());
  });
}

}  // namespace

ConvTable cpu_conv() { return {.im2col = im2col, .col2im = col2im}; }

}  // namespace mmt::cpu
