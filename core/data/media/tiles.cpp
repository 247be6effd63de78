#include "core/data/media/tiles.h"

#include "core/error.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace mmt::data {
namespace {

/// int(round(x, 7)) for x >= 0: a value that is whole but for rounding errors is that whole number.
std::int64_t whole(double x) {
  const double below = std::floor(x);
  return static_cast<std::int64_t>(below) + (below + 1.0 - x < 5e-8 ? 1 : 0);
}

}  // namespace

PictureSize best_tiled_size(const std::vector<PictureSize>& sizes, int width, int height) {
  MMT_CHECK(width > 0 && height > 0 && !sizes.empty(), "{} x {} into {} sizes", width, height, sizes.size());
  PictureSize best;
  std::int64_t most = 0, least_waste = std::numeric_limits<std::int64_t>::max();
  for (const PictureSize& size : sizes) {
    const double scale = std::min(static_cast<double>(size.width) / width, static_cast<double>(size.height) / height);
    const auto across = static_cast<std::int64_t>(width * scale), down = static_cast<std::int64_t>(height * scale);
    const std::int64_t pixels = std::min(across * down, std::int64_t{width} * height);
    const std::int64_t waste = std::int64_t{size.width} * size.height - pixels;
    if (pixels > most || (pixels == most && waste < least_waste)) {
      most = pixels;
      least_waste = waste;
      best = size;
    }
  }
  return best;
}

PictureSize fitted_into(PictureSize size, int width, int height) {
  const double across = static_cast<double>(size.width) / width, down = static_cast<double>(size.height) / height;
  if (across < down) return {size.width, static_cast<int>(std::min<double>(std::ceil(height * across), size.height))};
  return {static_cast<int>(std::min<double>(std::ceil(width * down), size.width)), size.height};
}

Tiling tiling_of(const std::vector<PictureSize>& sizes, int side, std::int64_t patches, int width, int height) {
  const PictureSize size = best_tiled_size(sizes, width, height);
  MMT_CHECK(side > 0 && size.width % side == 0 && size.height % side == 0, "{} x {} in tiles of {}", size.width,
            size.height, side);
  Tiling t{.rows = size.height / side, .cols = size.width / side};
  const std::int64_t rows = t.rows * patches, cols = t.cols * patches;
  const auto trim = [](std::int64_t all, double own) {
    return static_cast<int>(floor_div(std::max<std::int64_t>(all - whole(own), 0), 2));
  };
  const double w = width, h = height, across = static_cast<double>(cols), down = static_cast<double>(rows);
  if (w / h > across / down)
    t.trim_rows = trim(rows, h * (across / w));
  else
    t.trim_cols = trim(cols, w * (down / h));
  return t;
}

std::int64_t tiled_rows(const Tiling& t, std::int64_t patches) {
  const std::int64_t rows = t.rows * patches - 2 * t.trim_rows, cols = t.cols * patches - 2 * t.trim_cols;
  return patches * patches + rows * (cols + 1);
}

}  // namespace mmt::data
