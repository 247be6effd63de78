#include "core/data/resize.h"

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

void horizontal_pass(const Image& image, const ResizeTaps& taps, std::int64_t first_row, std::int64_t num_rows,
                     std::uint8_t* out) {
  const std::int64_t stride = std::int64_t{3} * image.width;
  for (std::int64_t y = 0; y < num_rows; ++y) {
    const std::uint8_t* row = image.rgb.data() + (first_row + y) * stride;
    for (std::int64_t x = 0; x < taps.count; ++x, out += 3) {
      const auto i = static_cast<std::size_t>(x);
      const std::uint8_t* from = row + std::int64_t{3} * taps.start[i];
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

/// `rows` holds input rows from `first_row` on, `row_bytes` long each.
void vertical_pass(const std::uint8_t* rows, std::int64_t first_row, std::int64_t row_bytes, const ResizeTaps& taps,
                   std::uint8_t* out) {
  std::vector<std::int32_t> sums(static_cast<std::size_t>(row_bytes));
  for (std::int64_t y = 0; y < taps.count; ++y, out += row_bytes) {
    const auto i = static_cast<std::size_t>(y);
    const std::uint8_t* from = rows + (taps.start[i] - first_row) * row_bytes;
    const std::int32_t* weights = taps.weights.data() + y * taps.width;
    std::fill(sums.begin(), sums.end(), kHalf);
    for (std::int32_t k = 0; k < taps.length[i]; ++k, from += row_bytes) {
      for (std::int64_t x = 0; x < row_bytes; ++x) sums[static_cast<std::size_t>(x)] += from[x] * weights[k];
    }
    for (std::int64_t x = 0; x < row_bytes; ++x) out[x] = clip8(sums[static_cast<std::size_t>(x)]);
  }
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

void resize_window(const Image& image, const ResizeTaps& horizontal, const ResizeTaps& vertical,
                   std::vector<std::uint8_t>& scratch, std::span<std::uint8_t> out) {
  MMT_CHECK(image.width == horizontal.in_size && image.height == vertical.in_size, "picture {} x {}, taps {} x {}",
            image.width, image.height, horizontal.in_size, vertical.in_size);
  const std::int64_t row_bytes = 3 * horizontal.count;
  MMT_CHECK(static_cast<std::int64_t>(out.size()) == row_bytes * vertical.count, "{} bytes for {} x {}", out.size(),
            horizontal.count, vertical.count);
  const std::int64_t first_row = vertical.first_input();
  const std::int64_t num_rows = vertical.end_input() - first_row;

  std::uint8_t* middle = out.data();
  if (!vertical.identity()) {
    scratch.resize(static_cast<std::size_t>(num_rows * row_bytes));
    middle = scratch.data();
  }
  if (horizontal.identity()) {
    for (std::int64_t y = 0; y < num_rows; ++y) {
      const std::uint8_t* from = image.rgb.data() + 3 * ((first_row + y) * image.width + horizontal.first);
      std::memcpy(middle + y * row_bytes, from, static_cast<std::size_t>(row_bytes));
    }
  } else {
    horizontal_pass(image, horizontal, first_row, num_rows, middle);
  }
  if (!vertical.identity()) vertical_pass(middle, first_row, row_bytes, vertical, out.data());
}

}  // namespace mmt::data
