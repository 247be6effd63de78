#include "kernels/conv.h"
#include "kernels/linear.h"
#include "tests/kernels/support.h"

#include <catch2/catch.hpp>

using namespace mmt;
using namespace mmt::test;

namespace {

struct Clips {
  std::vector<std::pair<int, int>> list;  // first, rows
  Matrix tensor() const {
    Matrix m = empty(DType::i32, {static_cast<std::int64_t>(list.size()), 2});
    std::vector<double> v;
    for (const auto& [first, rows] : list) v.insert(v.end(), {static_cast<double>(first), static_cast<double>(rows)});
    assign(m, v);
    return m;
  }
  std::int64_t outputs(int stride) const {
    std::int64_t n = 0;
    for (const auto& clip : list) n += ops::conv_output_rows(clip.second, stride);
    return n;
  }
};

// The convolution as its definition has it: y[t][o] = sum over c, k of w[o][c][k] x[t * stride + k - 1][c] inside a
// clip.
std::vector<double> convolved(const Clips& clips, const std::vector<double>& x, std::int64_t channels,
                              const std::vector<double>& w, std::int64_t out, int stride) {
  std::vector<double> y;
  for (const auto& [first, rows] : clips.list)
    for (int t = 0; t * stride < rows; ++t)
      for (std::int64_t o = 0; o < out; ++o) {
        double sum = 0;
        for (std::int64_t c = 0; c < channels; ++c)
          for (int k = 0; k < 3; ++k) {
            const int in = t * stride + k - 1;
            if (in < 0 || in >= rows) continue;
            sum += w[static_cast<std::size_t>((o * channels + c) * 3 + k)] *
                   x[static_cast<std::size_t>((first + in) * channels + c)];
          }
        y.push_back(sum);
      }
  return y;
}

}  // namespace

TEST_CASE("im2col and a product are the convolution of each clip by itself") {
  const Clips clips{{{0, 7}, {7, 1}, {8, 2}, {12, 6}, {20, 0}, {20, 40}}};
  for (const Backend& backend : backends())
    for (const DType dtype : kFastDTypes)
      for (const int stride : {1, 2}) {
        const Matrix x = random(dtype, {60, 5}, 1, 1, 2), w = random(dtype, {4, 15}, 2);
        const Matrix columns = empty(dtype, {clips.outputs(stride), 15}), y = empty(dtype, {clips.outputs(stride), 4});
        ops::im2col(backend.stream, columns, x, clips.tensor(), stride);
        ops::linear_forward(backend.stream, y, columns, w);
        // 15 products of numbers below 4 in f32.
        require_close(y, convolved(clips, values(x), 5, values(w), 4, stride), {15 * std::ldexp(60.0, -24)},
                      backend.name);
      }
}

TEST_CASE("col2im is the transpose of im2col, in overwrite and add mode") {
  const Clips clips{{{1, 5}, {6, 1}, {9, 4}}};
  for (const int stride : {1, 2}) {
    const Stream stream = reference_stream();
    const Matrix x = random(DType::f64, {14, 3}, 1), r = random(DType::f64, {clips.outputs(stride), 9}, 2),
                 columns = empty(DType::f64, {clips.outputs(stride), 9}), dx = empty(DType::f64, {14, 3});
    ops::col2im(stream, dx, r, clips.tensor(), stride);
    require_gradient(
        [&] {
          ops::im2col(stream, columns, x, clips.tensor(), stride);
          return dot(r, columns);
        },
        x, dx, "im2col");
    for (const Backend& backend : backends())
      for (const DType dtype : kFastDTypes) {
        const Matrix d = of(dtype, {clips.outputs(stride), 9}, values(r)), out = random(dtype, {14, 3}, 3, 1, 2);
        const Matrix exact = empty(DType::f64, {14, 3}), d64 = of(DType::f64, {clips.outputs(stride), 9}, values(d));
        std::vector<double> expected = values(out);
        ops::col2im(stream, exact, d64, clips.tensor(), stride);
        for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += values(exact)[i];
        ops::col2im(backend.stream, out, d, clips.tensor(), stride, Accumulate::add);
        require_close(out, expected, {std::ldexp(40.0, -24)}, backend.name + " add");
        ops::col2im(backend.stream, out, d, clips.tensor(), stride);
        require_close(out, values(exact), {std::ldexp(40.0, -24)}, backend.name);
        require_thread_independent([&] { ops::col2im(backend.stream, out, d, clips.tensor(), stride); }, {out},
                                   backend.name);
      }
  }
}

TEST_CASE("im2col and col2im around the width of every register, bit for bit") {
  const Clips clips{{{1, 9}, {12, 2}}};
  for (const Backend& backend : fast_backends())
    for (const DType dtype : kFastDTypes)
      for (const std::int64_t channels : {3, 4, 7, 8, 9, 15, 16, 17, 33, 80})
        for (const int stride : {1, 2}) {
          const std::int64_t outputs = clips.outputs(stride);
          const std::string what = backend.name + " " + std::to_string(channels);
          const Matrix x = random(dtype, {14, channels}, 1, 1, 3), a = empty(dtype, {outputs, 3 * channels}, 1),
                       b = empty(dtype, {outputs, 3 * channels});
          ops::im2col(backend.stream, a, x, clips.tensor(), stride);
          ops::im2col(reference_stream(), b, x, clips.tensor(), stride);
          require_bitwise(a, b, what);
          // Sums of at most four terms below 5.
          for (const Accumulate mode : {Accumulate::overwrite, Accumulate::add}) {
            const Matrix d = random(dtype, {outputs, 3 * channels}, 2, 1, 5), dx = random(dtype, {14, channels}, 3),
                         dx64 = of(DType::f64, {14, channels}, values(dx)),
                         d64 = of(DType::f64, {outputs, 3 * channels}, values(d));
            ops::col2im(reference_stream(), dx64, d64, clips.tensor(), stride, mode);
            ops::col2im(backend.stream, dx, d, clips.tensor(), stride, mode);
            require_close(dx, values(dx64), {std::ldexp(40.0, -24)}, what + " back");
          }
        }
}

TEST_CASE("clips that leave their tensors or overlap are refused") {
  for (const Backend& backend : backends()) {
    const Matrix x = random(DType::f32, {10, 2}, 1), columns = empty(DType::f32, {10, 6});
    REQUIRE_THROWS_AS(ops::im2col(backend.stream, columns, x, Clips{{{0, 11}}}.tensor(), 1), std::logic_error);
    REQUIRE_THROWS_AS(ops::im2col(backend.stream, columns, x, Clips{{{0, 6}, {5, 4}}}.tensor(), 1), std::logic_error);
    REQUIRE_THROWS_AS(ops::im2col(backend.stream, columns, x, Clips{{{0, 9}}}.tensor(), 1), std::logic_error);
    REQUIRE_THROWS_AS(ops::im2col(backend.stream, columns, x, Clips{{{0, 10}}}.tensor(), 3), std::logic_error);
  }
}
