// What a layer costs under its frozen pattern, as integer functions of a block's sizes.
#pragma once

#include <cstdint>

namespace mmt::plan {

/// Sizes of one block that costs and memory are functions of.
struct BlockSize {
  std::int64_t rows = 0;        ///< rows of the module's layers (LLM: text and media rows)
  std::int64_t supervised = 0;  ///< rows whose output predicts a label
  std::int64_t source = 0;      ///< rows of the loader's media (patches, mel frames)
  std::int64_t out = 0;         ///< rows that leave over the module's edges
  std::int64_t tiles = 0;       ///< non-empty attention tiles
  friend bool operator==(const BlockSize&, const BlockSize&) = default;
};

/// A linear integer function of a block's sizes: FLOPs or bytes.
struct Linear {
  std::int64_t constant = 0;
  std::int64_t per_row = 0;
  std::int64_t per_supervised = 0;
  std::int64_t per_source = 0;
  std::int64_t per_out = 0;
  std::int64_t per_tile = 0;

  std::int64_t operator()(const BlockSize& s) const {
    return constant + per_row * s.rows + per_supervised * s.supervised + per_source * s.source + per_out * s.out +
           per_tile * s.tiles;
  }
  Linear& operator+=(const Linear& o);
};

/// FLOPs of one layer: F, Bd (products that compute an input gradient inside it) and Bw, as its frozen pattern needs
/// them. Recompute costs F again.
struct LayerCost {
  Linear forward{};
  Linear backward_input{};
  Linear backward_weight{};
  LayerCost& operator+=(const LayerCost& o);
};

}  // namespace mmt::plan
