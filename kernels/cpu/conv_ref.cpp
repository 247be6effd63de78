#include "kernels/cpu/clips.h"
#include "kernels/cpu/tables.h"

namespace mmt::cpu {
namespace {

// f(output row, tap, input row) for every pair that lies inside a clip, and with input row -1 for the zero padding.
template <class F> void each_tap(const Tensor& clips, int stride, F&& f) {
  std::int64_t out = 0;
  for (std::int64_t i = 0; i < clips.rows(); ++i) {
    const Clip clip = clips_of(clips)[i];
    for (std::int64_t t = 0; t < ops::conv_output_rows(clip.rows, stride); ++t, ++out)
      for (int k = 0; k < kConvTaps; ++k) {
        const std::int64_t in = t * stride + k - 1;
        f(out, k, in >= 0 && in < clip.rows ? clip.first + in : -1);
      }
  }
}

void im2col(const Stream&, const Tensor& columns, const Tensor& x, const Tensor& clips, int stride) {
  check_clips(clips, x.rows(), columns.rows(), stride);
  visit_float(x.dtype, [&]<class T>() {
    each_tap(clips, stride, [&](std::int64_t out, int k, std::int64_t in) {
      for (std::int64_t c = 0; c < x.cols(); ++c)
        columns.row<T>(out)[c * kConvTaps + k] = in < 0 ? T(0.0) : x.row<T>(in)[c];
    });
  });
}

void col2im(const Stream&, const Tensor& dx, const Tensor& dcolumns, const Tensor& clips, int stride,
            Accumulate accumulate) {
  check_clips(clips, dx.rows(), dcolumns.rows(), stride);
  visit_float(dx.dtype, [&]<class T>() {
    // Gathered by input row, so that the sum is rounded once.
    for (std::int64_t r = 0; r < dx.rows(); ++r)
      for (std::int64_t c = 0; c < dx.cols(); ++c) {
        double sum = accumulate == Accumulate::add ? static_cast<double>(dx.row<T>(r)[c]) : 0.0;
        std::int64_t base = 0;
        for (std::int64_t i = 0; i < clips.rows(); ++i) {
          const Clip clip = clips_of(clips)[i];
          const std::int64_t outputs = ops::conv_output_rows(clip.rows, stride), in = r - clip.first;
          if (in >= 0 && in < clip.rows)
            for (int k = 0; k < kConvTaps; ++k) {
              const std::int64_t start = in + 1 - k;  // t * stride
              if (start >= 0 && start % stride == 0 && start / stride < outputs)
                sum += static_cast<double>(dcolumns.row<T>(base + start / stride)[c * kConvTaps + k]);
            }
          base += outputs;
        }
        dx.row<T>(r)[c] = T(sum);
      }
  });
}

}  // namespace

ConvTable reference_conv() { return {.im2col = im2col, .col2im = col2im}; }

}  // namespace mmt::cpu
