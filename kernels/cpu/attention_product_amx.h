// The products of attention_bf16_item.h by AMX tiles. Internal; for the AMX unit and its emulated twin.
#pragma once

#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/tiles_amx.h"

namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE {

using std::int64_t;
using std::uint32_t;

inline constexpr int kGroup = 16;  // keys that are computed together: the rows of a tile

// Tiles 0 .. 2: 16 rows x 16 lanes of c each. 3 and 4: 16 pairs of a and b. 5 and 6: 8 pairs, for the end of a sum.
static void begin_products() {
  TileConfig config;
  for (int i = 0; i < 7; ++i) {
    config.rows[i] = i == 6 ? 8 : 16;
    config.row_bytes[i] = i == 5 ? 32 : 64;
  }
  tile_configure(config);
}
static void end_products() { tile_release(); }

template <int kA, int kB, int kStripes>
MMT_SIMD_INLINE void tile_step(const uint32_t* a, int64_t as, const uint32_t* b, int64_t bs) {
  tile_load<kA>(a, 4 * as);
  tile_load<kB>(b, 4 * bs);
  tile_dot<0, kA, kB>();
  if constexpr (kStripes > 1) {
    tile_load<kB>(b + 16, 4 * bs);
    tile_dot<1, kA, kB>();
  }
  if constexpr (kStripes > 2) {
    tile_load<kB>(b + 32, 4 * bs);
    tile_dot<2, kA, kB>();
  }
}

/// 16 rows x 16 kStripes lanes of c.
template <int kStripes, bool kAdd>
static void tile_block(int pairs, const uint32_t* a, int64_t as, const uint32_t* b, int64_t bs, float* c, int64_t cs) {
  if constexpr (kAdd) {
    tile_load<0>(c, 4 * cs);
    if constexpr (kStripes > 1) tile_load<1>(c + 16, 4 * cs);
    if constexpr (kStripes > 2) tile_load<2>(c + 32, 4 * cs);
  } else {
    tile_zero<0>();
    if constexpr (kStripes > 1) tile_zero<1>();
    if constexpr (kStripes > 2) tile_zero<2>();
  }
  for (; pairs > 8; pairs -= 16, a += 16, b += 16 * bs) tile_step<3, 4, kStripes>(a, as, b, bs);
  if (pairs > 0) tile_step<5, 6, kStripes>(a, as, b, bs);
  tile_store<0>(c, 4 * cs);
  if constexpr (kStripes > 1) tile_store<1>(c + 16, 4 * cs);
  if constexpr (kStripes > 2) tile_store<2>(c + 32, 4 * cs);
}

/// c (rows x 16 stripes) = or += sum over t < pairs of a[row][t] . b[t][lane], two products to a word. Rows are rounded
/// up to 16 and pairs to 8: c has the room, and the operands zeros behind the last pair.
template <bool kAdd> static void product(int rows, int stripes, int pairs, const uint32_t* a, int64_t as,
                                         const uint32_t* b, int64_t bs, float* c, int64_t cs) {
  for (; rows > 0; rows -= 16, a += 16 * as, c += 16 * cs)
    for (int s = 0, now = 0; s < stripes; s += now) {
      const int left = stripes - s;
      now = left == 4 ? 2 : left < 3 ? left : 3;  // four as 2 + 2: a row of tiles is loaded once for each part
      if (now == 3) tile_block<3, kAdd>(pairs, a, as, b + 16 * s, bs, c + 16 * s, cs);
      if (now == 2) tile_block<2, kAdd>(pairs, a, as, b + 16 * s, bs, c + 16 * s, cs);
      if (now == 1) tile_block<1, kAdd>(pairs, a, as, b + 16 * s, bs, c + 16 * s, cs);
    }
}

/// to(row, stripe, sum): the product, added to what `begin` holds (rows of bs floats, which are overwritten) or to zero
/// where it is null. At most kMaxHeadDim / 16 stripes; `a` and `begin` have whole tiles of rows.
template <class To> static void product_to(int rows, int stripes, int pairs, const uint32_t* a, int64_t as,
                                           const uint32_t* b, int64_t bs, float* begin, To to) {
  alignas(64) float own[16 * kMaxHeadDim];
  for (int r0 = 0; r0 < rows; r0 += 16, a += 16 * as) {
    float* const c = begin ? begin + r0 * bs : own;
    if (begin)
      product<true>(16, stripes, pairs, a, as, b, bs, c, bs);
    else
      product<false>(16, stripes, pairs, a, as, b, bs, c, bs);
    for (int r = r0; r < r0 + 16 && r < rows; ++r)
      for (int v = 0; v < stripes; ++v) to(r, v, simd::MMT_SIMD_NAMESPACE::load(c + (r - r0) * bs + 16 * v));
  }
}

}  // namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE
