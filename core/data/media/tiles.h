// Pictures cut into tiles (LLaVA-NeXT's AnyRes): which of the sizes on offer a picture is fitted into, and which rows
// of its tiles are its own, not the padding's. Pure functions of integers, in Python's arithmetic (double, `//`
// floors).
#pragma once

#include "core/data/media/row_counts.h"

#include <cstdint>
#include <vector>

namespace mmt::data {

/// The size that holds most pixels of the picture (no more than it has), and of such the smallest one; the first of
/// equals.
PictureSize best_tiled_size(const std::vector<PictureSize>& sizes, int width, int height);

/// As large as fits into `size`, ratio kept; the free side is rounded up. The picture lies in the middle of `size`.
PictureSize fitted_into(PictureSize size, int width, int height);

/// How a picture is cut. The tower sees the whole picture made as small as one tile, and rows x cols tiles, row by row.
struct Tiling {
  int rows = 0, cols = 0;            ///< tiles
  int trim_rows = 0, trim_cols = 0;  ///< rows or columns of patches that are padding, at either end; one of both is 0
  std::int64_t count() const { return 1 + std::int64_t{rows} * cols; }
  bool operator==(const Tiling&) const = default;
};

/// `side` pixels a tile, whose multiples the sizes are; `patches` along its side.
Tiling tiling_of(const std::vector<PictureSize>& sizes, int side, std::int64_t patches, int width, int height);

/// Rows that the picture takes in the LLM: those of the small picture, those of the tiles without the padding, and a
/// newline behind each line of these.
std::int64_t tiled_rows(const Tiling& tiling, std::int64_t patches);

}  // namespace mmt::data
