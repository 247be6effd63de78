// im2col and col2im: rows over the threads.
#include "kernels/cpu/clips.h"
#include "kernels/cpu/driver.h"
#include "kernels/cpu/tables.h"

namespace mmt::cpu {
namespace {

template <Isa kLevel>
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
          inner_of<T>(kLevel).interleave_taps(out.base + t * out.stride, row(t * stride - 1), row(t * stride),
                                              row(t * stride + 1), x.cols());
      });
      out = advance(out, outputs, 0);
    }
  });
}

// The rows of columns that read input row t of a clip with `outputs` rows: as tap k, row (t + 1 - k) / stride.
template <class T> struct Readers { const T* tap[kConvTaps]; };

template <class T> Readers<T> readers_of(Rows<const T> d, std::int64_t t, std::int64_t outputs, int stride) {
  Readers<T> readers{};
  for (int k = 0; k < kConvTaps; ++k) {
    const std::int64_t start = t + 1 - k;
    if (start >= 0 && start % stride == 0 && start / stride < outputs)
      readers.tap[k] = d.base + start / stride * d.stride;
  }
  return readers;
}

template <Isa kLevel> void col2im(const Stream& stream, const Tensor& dx, const Tensor& dcolumns, const Tensor& clips,
                                  int stride, Accumulate accumulate) {
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
          inner_of<T>(kLevel).sum_taps(to, readers.tap[0], readers.tap[1], readers.tap[2], add, dx.cols());
        }
      });
      end = std::int64_t{clip.first} + clip.rows;
      d = advance(d, outputs, 0);
    }
    zero_until(dx.rows());
  });
}

}  // namespace

ConvTable cpu_conv(Isa level) {
  return for_level(level, []<Isa kLevel>() { return ConvTable{.im2col = im2col<kLevel>, .col2im = col2im<kLevel>}; });
}

}  // namespace mmt::cpu
