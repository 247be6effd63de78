#include "core/data/media/resize.h"

#include "core/error.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace mmt::data {
namespace {

constexpr int kPrecisionBits = 22;  // 32 - 8 bits of a pixel - 2 bits for overshoot of the negative lobes

double bilinear(double x) {
  x = std::abs(x);
  return x < 1.0 ? 1.0 - x : 0.0;
}

/// Keys' cubic with a = -0.5.
double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
  if (x < 2.0) return (((x - 5.0) * x + 8.0) * x - 4.0) * a;
  return 0.0;
}

std::uint8_t clip8(std::int32_t sum) { return static_cast<std::uint8_t>(std::clamp(sum >> kPrecisionBits, 0, 255)); }

constexpr std::int32_t kHalf = 1 << (kPrecisionBits - 1);

/// A run of rows in memory whose first pixel is (first_col, first_row) of the picture.
struct Pixels {
  const std::uint8_t* data;
  std::int64_t stride;  // bytes from row to row
  std::int64_t first_row;
  std::int64_t first_col;
};

/// Resizes `num_rows` rows from their first on.
void horizontal_pass(const Pixels& in, const ResizeTaps& taps, std::int64_t num_rows, std::uint8_t* out) {
  for (std::int64_t y = 0; y < num_rows; ++y) {
    const std::uint8_t* row = in.data + y * in.stride;
    for (std::int64_t x = 0; x < taps.count; ++x, out += 3) {
      const auto i = static_cast<std::size_t>(x);
      const std::uint8_t* from = row + 3 * (taps.start[i] - in.first_col);
      const std::int32_t* weights = taps.weights.data() + x * taps.width;
      std::int32_t r = kHalf;
      std::int32_t g = kHalf;
      std::int32_t b = kHalf;
      for (std::int32_t k = 0; k < taps.length[i]; ++k, from += 3) {
        r += from[0] * weights[k];
        g += from[1] * weights[k];
        b += from[2] * weights[k];
      }
      out[0] = clip8(r), out[1] = clip8(g), out[2] = clip8(b);
    }
  }
}

/// Resizes `num_cols` columns from their first on.
void vertical_pass(const Pixels& in, const ResizeTaps& taps, std::int64_t num_cols, std::uint8_t* out) {
  const std::int64_t row_bytes = 3 * num_cols;
  std::vector<std::int32_t> sums(static_cast<std::size_t>(row_bytes));
  for (std::int64_t y = 0; y < taps.count; ++y, out += row_bytes) {
    const auto i = static_cast<std::size_t>(y);
    const std::uint8_t* from = in.data + (taps.start[i] - in.first_row) * in.stride;
    const std::int32_t* weights = taps.weights.data() + y * taps.width;
    std::fill(sums.begin(), sums.end(), kHalf);
    for (std::int32_t k = 0; k < taps.length[i]; ++k, from += in.stride) {
      for (std::int64_t x = 0; x < row_bytes; ++x) sums[static_cast<std::size_t>(x)] += from[x] * weights[k];
    }
    for (std::int64_t x = 0; x < row_bytes; ++x) out[x] = clip8(sums[static_cast<std::size_t>(x)]);
  }
}

/// Pillow's rule, found by comparing both orders with its results over thousands of sizes.
bool vertical_first(const ResizeTaps& horizontal, const ResizeTaps& vertical, PassOrder order) {
  const std::int64_t rows_lost = vertical.in_size - vertical.out_size;
  const std::int64_t cols_lost = horizontal.in_size - horizontal.out_size;
  return order == PassOrder::pillow_13 && rows_lost > 0 && rows_lost > 2 * cols_lost;
}

}  // namespace

std::int64_t ResizeTaps::first_input() const { return identity() ? first : start.front(); }
std::int64_t ResizeTaps::end_input() const { return identity() ? first + count : start.back() + length.back(); }

ResizeTaps resize_taps(Resample kind, std::int64_t in_size, std::int64_t out_size, std::int64_t first,
                       std::int64_t count) {
  MMT_CHECK(in_size > 0 && in_size <= INT32_MAX && out_size > 0 && first >= 0 && count > 0 && count <= out_size - first,
            "resize {} to {}, positions {}+{}", in_size, out_size, first, count);
  ResizeTaps taps;
  taps.in_size = in_size;
  taps.out_size = out_size;
  taps.first = first;
  taps.count = count;
  if (taps.identity()) return taps;

  const double scale = static_cast<double>(in_size) / static_cast<double>(out_size);
  const double stretch = std::max(scale, 1.0);
  const double support = (kind == Resample::bicubic ? 2.0 : 1.0) * stretch;
  taps.width = static_cast<std::int64_t>(std::ceil(support)) * 2 + 1;
  const auto num = static_cast<std::size_t>(count);
  taps.start.resize(num);
  taps.length.resize(num);
  taps.weights.assign(num * static_cast<std::size_t>(taps.width), 0);
  const double inverse = 1.0 / stretch;
  std::vector<double> exact(static_cast<std::size_t>(taps.width));
  for (std::size_t i = 0; i < num; ++i) {
    const double center = (static_cast<double>(first + static_cast<std::int64_t>(i)) + 0.5) * scale;
    // Conversions cut towards zero, also for the negative values at the left end.
    const auto begin = std::max<std::int64_t>(static_cast<std::int64_t>(center - support + 0.5), 0);
    const auto end = std::min<std::int64_t>(static_cast<std::int64_t>(center + support + 0.5), in_size);
    const std::int64_t n = end - begin;
    double sum = 0.0;
    for (std::int64_t k = 0; k < n; ++k) {
      const double x = (static_cast<double>(k + begin) - center + 0.5) * inverse;
      const double w = kind == Resample::bicubic ? bicubic(x) : bilinear(x);
      exact[static_cast<std::size_t>(k)] = w;
      sum += w;
    }
    taps.start[i] = static_cast<std::int32_t>(begin);
    taps.length[i] = static_cast<std::int32_t>(n);
    std::int32_t* weights = taps.weights.data() + i * static_cast<std::size_t>(taps.width);
    for (std::int64_t k = 0; k < n; ++k) {
      const double w = exact[static_cast<std::size_t>(k)];
      const double scaled = (sum != 0.0 ? w / sum : w) * (1 << kPrecisionBits);
      weights[k] = static_cast<std::int32_t>(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
    }
  }
  return taps;
}

void resize_window(const Image& image, const ResizeTaps& horizontal, const ResizeTaps& vertical, PassOrder order,
                   std::vector<std::uint8_t>& scratch, std::span<std::uint8_t> out) {
  MMT_CHECK(image.width == horizontal.in_size && image.height == vertical.in_size, "picture {} x {}, taps {} x {}",
            image.width, image.height, horizontal.in_size, vertical.in_size);
  MMT_CHECK(static_cast<std::int64_t>(out.size()) == 3 * horizontal.count * vertical.count, "{} bytes for {} x {}",
            out.size(), horizontal.count, vertical.count);
  const std::int64_t first_row = vertical.first_input();
  const std::int64_t first_col = horizontal.first_input();
  const std::int64_t num_rows = vertical.end_input() - first_row;
  const std::int64_t num_cols = horizontal.end_input() - first_col;
  const std::int64_t stride = std::int64_t{3} * image.width;
  const Pixels source{image.rgb.data() + first_row * stride + 3 * first_col, stride, first_row, first_col};

  if (horizontal.identity() && vertical.identity()) {
    for (std::int64_t y = 0; y < num_rows; ++y) {
      std::memcpy(out.data() + 3 * y * num_cols, source.data + y * stride, static_cast<std::size_t>(3 * num_cols));
    }
  } else if (vertical.identity()) {
    horizontal_pass(source, horizontal, num_rows, out.data());
  } else if (horizontal.identity()) {
    vertical_pass(source, vertical, num_cols, out.data());
  } else if (vertical_first(horizontal, vertical, order)) {
    scratch.resize(static_cast<std::size_t>(3 * num_cols * vertical.count));
    vertical_pass(source, vertical, num_cols, scratch.data());
    horizontal_pass({scratch.data(), 3 * num_cols, 0, first_col}, horizontal, vertical.count, out.data());
  } else {
    scratch.resize(static_cast<std::size_t>(3 * num_rows * horizontal.count));
    horizontal_pass(source, horizontal, num_rows, scratch.data());
    vertical_pass({scratch.data(), 3 * horizontal.count, first_row, 0}, vertical, horizontal.count, out.data());
  }
}

}  // namespace mmt::data
