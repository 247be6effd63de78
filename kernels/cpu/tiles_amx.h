// The tile instructions of AMX with BF16 that attention uses. Internal; for units compiled for it, and with
// MMT_EMULATED_TILES defined for tests: the same instructions in plain code, so that what is built on them is proven on
// machines that lack them. Each wrapper takes the number of a tile, 0 .. 7, as a template argument.
//
// A tile has up to 16 rows of up to 64 bytes; the configuration says how many of each. A load fills the rows and zeroes
// the rest. tile_dot<c, a, b>: c[m][n] += sum over k of a[m][2k] b[k][2n] + a[m][2k+1] b[k][2n+1], a and b in bf16, c
// in f32; denormals are zeros (Intel's instruction set reference, TDPBF16PS).
#pragma once

#include "kernels/cpu/simd.h"

namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE {

/// The memory image that the processor reads.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

#if !defined(MMT_EMULATED_TILES)

// Written as assembly: the compiler's own macros do not say that they read and write memory (g++ 12).
MMT_SIMD_INLINE void tile_configure(const TileConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config) : "memory"); }
MMT_SIMD_INLINE void tile_release() { asm volatile("tilerelease" ::: "memory"); }
template <int kTile> MMT_SIMD_INLINE void tile_zero() { asm volatile("tilezero %%tmm%c0" ::"i"(kTile)); }
template <int kTile> MMT_SIMD_INLINE void tile_load(const void* from, std::int64_t row_bytes) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(from), "r"(row_bytes) : "memory");
}
template <int kTile> MMT_SIMD_INLINE void tile_store(void* to, std::int64_t row_bytes) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(kTile), "r"(to), "r"(row_bytes) : "memory");
}
template <int kC, int kA, int kB> MMT_SIMD_INLINE void tile_dot() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
}

#else

/// Tiles of this thread. `broken`: an instruction that the processor would have refused, or a planted fault is on.
struct EmulatedTiles {
  enum class Fault : std::uint8_t { none, no_zeroing, swapped_pairs, short_sum };
  TileConfig config;
  bool configured = false;
  bool refused = false;
  Fault fault = Fault::none;  ///< a mutation, for the tests of the tests
  std::int64_t dots = 0;
  unsigned char data[8][16][64];
};
static EmulatedTiles& emulated_tiles() {
  static thread_local EmulatedTiles tiles;
  return tiles;
}

static void tile_configure(const TileConfig& config) {
  EmulatedTiles& t = emulated_tiles();
  t.config = config;
  t.configured = true;
  for (int i = 0; i < 8; ++i)
    if (config.palette != 1 || config.rows[i] > 16 || config.row_bytes[i] > 64 || config.row_bytes[i] % 4 != 0)
      t.refused = true;
  std::memset(t.data, 0, sizeof t.data);
}
static void tile_release() { emulated_tiles().configured = false; }
static void tile_check(int tile) {
  EmulatedTiles& t = emulated_tiles();
  if (!t.configured || t.config.rows[tile] == 0 || t.config.row_bytes[tile] == 0) t.refused = true;
}
template <int kTile> static void tile_zero() {
  tile_check(kTile);
  EmulatedTiles& t = emulated_tiles();
  if (t.fault != EmulatedTiles::Fault::no_zeroing) std::memset(t.data[kTile], 0, sizeof t.data[kTile]);
}
template <int kTile> static void tile_load(const void* from, std::int64_t row_bytes) {
  tile_check(kTile);
  EmulatedTiles& t = emulated_tiles();
  std::memset(t.data[kTile], 0, sizeof t.data[kTile]);
  for (int r = 0; r < t.config.rows[kTile]; ++r)
    std::memcpy(t.data[kTile][r], static_cast<const char*>(from) + r * row_bytes, t.config.row_bytes[kTile]);
}
template <int kTile> static void tile_store(void* to, std::int64_t row_bytes) {
  tile_check(kTile);
  const EmulatedTiles& t = emulated_tiles();
  for (int r = 0; r < t.config.rows[kTile]; ++r)
    std::memcpy(static_cast<char*>(to) + r * row_bytes, t.data[kTile][r], t.config.row_bytes[kTile]);
}
static float tile_bf16(const unsigned char* row, int place) {
  std::uint16_t half;
  std::memcpy(&half, row + 2 * place, 2);
  if ((half & 0x7f80u) == 0) half &= 0x8000u;
  const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
template <int kC, int kA, int kB> static void tile_dot() {
  EmulatedTiles& t = emulated_tiles();
  tile_check(kC);
  tile_check(kA);
  tile_check(kB);
  const TileConfig& f = t.config;
  const int pairs = f.row_bytes[kA] / 4, lanes = f.row_bytes[kC] / 4;
  if (f.rows[kC] != f.rows[kA] || f.row_bytes[kB] != f.row_bytes[kC] || f.rows[kB] != pairs) t.refused = true;
  const int swap = t.fault == EmulatedTiles::Fault::swapped_pairs ? 1 : 0;
  const int counted = t.fault == EmulatedTiles::Fault::short_sum ? pairs - 1 : pairs;
  ++t.dots;
  for (int m = 0; m < f.rows[kC]; ++m)
    for (int n = 0; n < lanes; ++n) {
      float even = 0, odd = 0, c;  // each product exact in double, each sum rounded once
      for (int k = 0; k < counted; ++k) {
        const double a0 = tile_bf16(t.data[kA][m], 2 * k + swap), a1 = tile_bf16(t.data[kA][m], 2 * k + 1 - swap);
        even = static_cast<float>(even + a0 * static_cast<double>(tile_bf16(t.data[kB][k], 2 * n)));
        odd = static_cast<float>(odd + a1 * static_cast<double>(tile_bf16(t.data[kB][k], 2 * n + 1)));
      }
      std::memcpy(&c, t.data[kC][m] + 4 * n, 4);
      c += even + odd;
      std::memcpy(t.data[kC][m] + 4 * n, &c, 4);
    }
}

#endif

}  // namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE
