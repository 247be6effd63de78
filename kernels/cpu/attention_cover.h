// Which part of an attention tile is computed. Internal; for the units of one instruction set (see simd.h).
#pragma once

#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/simd.h"

namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE {

using std::uint64_t;

inline constexpr int kStripeCount = kTileQueries / 16;

/// first <= t < last.
struct Span {
  int first = 0, last = 0;
};

/// What of a tile is computed, in groups of kGroup keys or queries. `stripes[g]`: stripes of queries that key group g
/// needs. `keys[s]`, `group_keys[g]`: keys that stripe s, or query group g, needs.
template <int kGroup> struct CoverOf {
  static constexpr int kQueryGroups = kTileQueries / kGroup;
  static constexpr int kKeyGroups = kTileKeys / kGroup;
  Span stripes[kKeyGroups];
  Span keys[kStripeCount];
  Span group_keys[kQueryGroups];
};

template <int kGroup> static void cover_full(int queries, int keys, CoverOf<kGroup>& c) {
  const int stripes = (queries + 15) / 16;
  for (Span& s : c.stripes) s = {0, stripes};
  for (Span& s : c.keys) s = {0, keys};
  for (Span& s : c.group_keys) s = {0, keys};
}

template <int kGroup> static void cover_partial(const uint64_t* bits, int keys, CoverOf<kGroup>& c) {
  for (Span& s : c.keys) s = {};
  for (Span& s : c.group_keys) s = {};
  for (int g = 0; g * kGroup < keys; ++g) {
    uint64_t any = 0;
    const int end = (g + 1) * kGroup < keys ? (g + 1) * kGroup : keys;
    for (int j = g * kGroup; j < end; ++j) any |= bits[j];
    c.stripes[g] = any == 0 ? Span{} : Span{__builtin_ctzll(any) / 16, (63 - __builtin_clzll(any)) / 16 + 1};
    // Spans of keys are kept to whole groups: finer ones cost more to find than they save.
    for (int q = 0; q < kTileQueries / kGroup; ++q)
      if ((any >> (q * kGroup) & ((1u << kGroup) - 1)) != 0) {
        if (c.group_keys[q].last == 0) c.group_keys[q].first = g * kGroup;
        c.group_keys[q].last = end;
      }
  }
  for (int s = 0; s < kStripeCount; ++s)
    for (int q = 16 * s / kGroup; q < 16 * (s + 1) / kGroup; ++q) {
      const Span& from = c.group_keys[q];
      if (from.last == 0) continue;
      if (c.keys[s].last == 0 || from.first < c.keys[s].first) c.keys[s].first = from.first;
      if (from.last > c.keys[s].last) c.keys[s].last = from.last;
    }
}

static inline std::uint32_t stripe_bits(const uint64_t* bits, int key, int stripe) {
  return static_cast<std::uint32_t>(bits[key] >> (16 * stripe)) & 0xffffu;
}

}  // namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE
