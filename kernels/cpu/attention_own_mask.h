// Which part of a sample of few rows is computed. Internal; for the units of one instruction set (see simd.h).
#pragma once

#include "kernels/cpu/attention_cover.h"

namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE {

inline constexpr int kOwnStripes = kOwnRows / 16;
inline constexpr int kOwnGroup = 8;  // queries, or keys, that are left out together
inline constexpr int kOwnGroups = kOwnRows / kOwnGroup;

/// The mask of all of its rows in one piece, whatever the blocks. Spans count rows, unless said otherwise.
struct OwnMask {
  alignas(64) std::uint16_t bits[kOwnStripes][kOwnRows];  // bit i of [s][j]: query 16 s + i sees key j
  int queries, keys;
  int stripes;                           // of queries
  Span keys_of_stripe[kOwnStripes];      // whole groups, but at the end
  int full_to[kOwnStripes];              // keys from keys_of_stripe.first on that the whole stripe sees
  Span keys_of_queries[kOwnGroups];      // of a group of queries: whole groups, but at the end
  Span queries_of_keys[kOwnGroups];      // of a group of keys: the same
  Span stripes_of_keys[2 * kOwnGroups];  // in stripes, of as many keys as a product takes: 8, or 16
};

static inline void widen(Span& s, int first, int last) {
  if (s.first == s.last) {
    s = {first, last};
    return;
  }
  if (first < s.first) s.first = first;
  if (last > s.last) s.last = last;
}

/// `rows_of_product`: keys of one entry of stripes_of_keys.
static void make_own_mask(const TileLists& lists, const OwnItem& item, int rows_of_product, OwnMask& m) {
  const int query0 = lists.query_start[item.first_query], key0 = lists.key_start[item.first_key];
  m.queries = lists.query_start[item.last_query] - query0;
  m.keys = lists.key_start[item.last_key] - key0;
  m.stripes = (m.queries + 15) / 16;
  static_assert(kOwnGroup * sizeof(m.bits[0][0]) == 2 * sizeof(uint64_t));
  for (int s = 0; s < m.stripes; ++s) __builtin_memset(m.bits[s], 0, sizeof m.bits[s]);
  for (int b = item.first_query; b < item.last_query; ++b) {
    const int stripe0 = (lists.query_start[b] - query0) / 16;  // blocks before it are whole
    const int rows = lists.query_start[b + 1] - lists.query_start[b];
    const uint64_t all = (uint64_t{1} << rows) - 1;
    for (int r = lists.first_run[b]; r < lists.first_run[b + 1]; ++r) {
      const TileRun& run = lists.runs[r];
      for (int k = run.first; k < run.last; ++k) {
        const int key = lists.key_start[k] - key0, count = lists.key_start[k + 1] - lists.key_start[k];
        const uint64_t* bits =
            run.kind == TileClass::full ? nullptr : lists.bits + lists.patterns[run.pattern + k - run.first];
        for (int j = 0; j < count; ++j)
          for (int s = 0; 16 * s < rows; ++s)
            m.bits[stripe0 + s][key + j] = static_cast<std::uint16_t>((bits ? bits[j] : all) >> (16 * s));
      }
    }
  }
  for (Span& s : m.keys_of_queries) s = {};
  for (Span& s : m.queries_of_keys) s = {};
  for (Span& s : m.stripes_of_keys) s = {};
  for (int s = 0; s < m.stripes; ++s) {
    const int rows = m.queries - 16 * s;
    const unsigned none = rows < 16 ? 0xffffu << rows & 0xffffu : 0;  // rows that do not exist see what they like
    m.keys_of_stripe[s] = {};
    m.full_to[s] = -1;
    for (int g = 0; g * kOwnGroup < m.keys; ++g) {
      const int first = g * kOwnGroup, last = first + kOwnGroup < m.keys ? first + kOwnGroup : m.keys;
      uint64_t word[2];  // of four keys each
      __builtin_memcpy(word, m.bits[s] + first, sizeof word);
      const auto fold = [](uint64_t x, uint64_t y, auto with) {
        const uint64_t four = with(x, y), two = with(four, four >> 32);
        return static_cast<unsigned>(with(two, two >> 16) & 0xffffu);
      };
      const unsigned any = fold(word[0], word[1], [](uint64_t x, uint64_t y) { return x | y; });
      const bool whole = last - first == kOwnGroup;
      const unsigned every = whole ? fold(word[0], word[1], [](uint64_t x, uint64_t y) { return x & y; }) | none : 0;
      if (any == 0) continue;
      if (m.full_to[s] < 0) m.full_to[s] = first;
      if (every == 0xffffu && m.full_to[s] == first) m.full_to[s] = last;
      widen(m.keys_of_stripe[s], first, last);
      widen(m.stripes_of_keys[first / rows_of_product], s, s + 1);
      for (int half = 0; half < 2; ++half) {
        if ((any >> (8 * half) & 0xffu) == 0) continue;
        const int query = 16 * s + 8 * half;
        widen(m.keys_of_queries[query / 8], first, last);
        widen(m.queries_of_keys[g], query, query + 8 < m.queries ? query + 8 : m.queries);
      }
    }
    if (m.full_to[s] < 0) m.full_to[s] = 0;
  }
}

static inline Span within(Span s, Span bounds) {
  const Span both{s.first > bounds.first ? s.first : bounds.first, s.last < bounds.last ? s.last : bounds.last};
  return both.first < both.last ? both : Span{};
}

}  // namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE
