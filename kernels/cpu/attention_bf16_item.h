// One item of bf16 attention (attention_bf16.h), over the products of the header that was included before: dot products
// or tiles. Internal.
#pragma once

#include "kernels/cpu/attention_bf16.h"
#include "kernels/cpu/attention_bf16_vec.h"
#include "kernels/cpu/attention_cover.h"
#include "kernels/cpu/attention_rows.h"

namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE {

using Cover = CoverOf<kGroup>;

/// Weights stay relative to an earlier maximum until a row exceeds it by more than this power of two: the sums so far
/// need not be multiplied then, and weights up to 2^8 are as precise as others.
inline constexpr float kSlack = 8.0f;

static inline const std::uint16_t* bf16_row(const RowsIn& rows, int64_t row) {
  return static_cast<const std::uint16_t*>(rows.data) + row * rows.stride;
}

// ---------------------------------------------------------------------------------------------------------- packing

static void pack_words(const RowsIn& from, int64_t rows, int head_dim, uint32_t* to) {
  const int64_t words = padded(head_dim) / 2;
  for (int64_t i = 0; i < rows; ++i) {
    const float* row = bits_of(bf16_row(from, i));
    for (int w = 0; w < words; w += 16) {
      const int left = head_dim / 2 - w;
      const F16 x = load_part(row + w, left < 16 ? left : 16);
      store_up_to(bits_of(to + i * words + w), x, static_cast<int>(words) - w);
    }
  }
}

/// Row i, or zeros behind the last.
MMT_SIMD_INLINE const std::uint16_t* row_or_zeros(const RowsIn& from, int i, int rows) {
  alignas(64) static constexpr std::uint16_t kZeros[kMaxHeadDim] = {};
  return i < rows ? bf16_row(from, i) : kZeros;
}

/// to[d][j] = the word of rows 2 j and 2 j + 1 at feature d, rows beyond `rows` zero.
static void pack_transposed(const RowsIn& from, int rows, int head_dim, uint32_t* to) {
  for (int j = 0; j < rows; j += 32) {
    const std::uint16_t* row[32];
    for (int i = 0; i < 32; ++i) row[i] = row_or_zeros(from, j + i, rows);
    for (int d = 0; d < head_dim; d += 16) {
      F16 x[16];
#pragma GCC unroll 16
      for (int p = 0; p < 16; ++p) x[p] = zip(row[2 * p] + d, row[2 * p + 1] + d, head_dim - d);
      transpose(x, bits_of(to + d * kWordsOfKeys + j / 2), kWordsOfKeys, head_dim - d < 16 ? 8 : 16);
    }
  }
}

/// lanes[p][i] = row i's word p of features, 16 rows at a time; missing rows, and words up to the next multiple of 8,
/// are zero. `negate`: all signs.
static void pack_lanes(const RowsIn& from, int rows, int head_dim, bool negate, uint32_t* lanes) {
  for (int i0 = 0; i0 < rows; i0 += 16) {
    const std::uint16_t* row[16];
    for (int i = 0; i < 16; ++i) row[i] = row_or_zeros(from, i0 + i, rows);
    for (int w = 0; 2 * w < head_dim; w += 16) {
      const int columns = head_dim / 2 - w < 16 ? head_dim / 2 - w : 16;
      F16 x[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) x[i] = load_part(bits_of(row[i]) + w, columns);
      transpose(x, bits_of(lanes + w * kLanes + i0), kLanes, columns > 8 ? 16 : 8);
    }
  }
  if (negate)
    for (int64_t i = 0; i < padded(head_dim) / 2 * kLanes; ++i) lanes[i] ^= 0x80008000u;
}

/// to[i][d] = the word of rows 2 i and 2 i + 1 at feature d; zeros up to whole stripes of rows.
static void pack_pairs(const RowsIn& from, int rows, int head_dim, uint32_t* to) {
  const int64_t dp = padded(head_dim);
  const int end = (rows + 15) / 16 * 16;
  for (int i = 0; i < end; i += 2) {
    const std::uint16_t* even = row_or_zeros(from, i, rows);
    const std::uint16_t* odd = row_or_zeros(from, i + 1, rows);
    for (int d = 0; d < head_dim; d += 16) store(bits_of(to + i / 2 * dp + d), zip(even + d, odd + d, head_dim - d));
  }
}

/// to[row][d] = factor[row] * lanes[d][row] for one stripe of rows.
static void transpose_back(const float* lanes, F16 factor, int head_dim, float* to, int64_t stride) {
  for (int d = 0; d < head_dim; d += 16) {
    F16 x[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) x[i] = mul(load(lanes + (d + i) * kLanes), factor);
    transpose(x, to + d, stride, 16);
  }
}

// ---------------------------------------------------------------------------------------------------------- forward

struct Bf16ForwardState {
  alignas(64) uint32_t lanes[kMaxHeadDim / 2 * kLanes];
  alignas(64) float tile[kTileKeys * kLanes];    // scores; then, from its beginning, weights as pairs of keys
  alignas(64) float sums[kMaxHeadDim * kLanes];  // of weight * v, [feature][query]
  alignas(64) float maximum[kTileQueries];       // that weights are relative to, in powers of two
  alignas(64) float weight[kTileQueries];        // sum of weights so far
  alignas(64) uint32_t keys[(kTileKeys + kSpareKeys) * kMaxHeadDim / 2];  // where they are not packed beforehand
  alignas(64) uint32_t values[kMaxHeadDim * kWordsOfKeys];
  alignas(64) float rows[16 * kMaxHeadDim];
};

/// Scores to weights for one stripe. `factor` >= 0: from scores to powers of two.
template <bool kPartial>
static void soften_bf16(Bf16ForwardState& st, int s, Span keys, const uint64_t* bits, float factor, int head_dim) {
  const F16 lowest = set1(-__builtin_inff()), f = set1(factor);
  float* tile = st.tile + 16 * s;
  F16 high = lowest, high1 = lowest;
  const auto score = [&](int j) __attribute__((always_inline)) {
    const F16 x = load(tile + j * kLanes);
    if constexpr (kPartial) return select(stripe_bits(bits, j, s), x, lowest);
    return x;
  };
  int j = keys.first;
  for (; j + 1 < keys.last; j += 2) {
    high = max(high, score(j));
    high1 = max(high1, score(j + 1));
  }
  if (j < keys.last) high = max(high, score(j));
  high = max(high, high1);
  high = select(equal(high, lowest), lowest, mul(high, f));  // a factor of zero too

  F16 now = load(st.maximum + 16 * s), weight = load(st.weight + 16 * s), weight1 = zero();
  const F16 limit = add(now, set1(kSlack));
  if (equal(max(limit, high), limit) != 0xffffu) {
    const F16 before = now;
    now = max(before, high);
    // A row that has seen no key yet keeps its sums of zero; one whose scores overflowed becomes NaN, here or below.
    const F16 finite = select(equal(now, lowest), zero(), now);
    const F16 shrink = exp2(sub(before, finite));
    weight = add(mul(weight, shrink), sub(finite, finite));
    if (equal(before, lowest) != 0xffffu)  // else the sums are zero
      for (int d = 0; d < head_dim; ++d) {
        float* sum = st.sums + d * kLanes + 16 * s;
        store(sum, mul(load(sum), shrink));
      }
    store(st.maximum + 16 * s, now);
  }
  const F16 shift = sub(zero(), now);
  const auto weight_of = [&](int i) __attribute__((always_inline)) {
    const F16 p = exp2(fma(load(tile + i * kLanes), f, shift));
    if constexpr (kPartial) return select(stripe_bits(bits, i, s), p, zero());
    return p;
  };
  uint32_t* pairs = reinterpret_cast<uint32_t*>(tile);
  for (j = keys.first; j + 1 < keys.last; j += 2) {
    const F16 p = weight_of(j), p1 = weight_of(j + 1);
    weight = add(weight, p);
    weight1 = add(weight1, p1);
    store_pairs(pairs + j / 2 * kLanes, p, p1);
  }
  if (j < keys.last) {
    const F16 p = weight_of(j);
    weight = add(weight, p);
    store_pairs(pairs + j / 2 * kLanes, p, zero());
    j += 2;
  }
  for (; j % kGroup != 0; j += 2) store(bits_of(pairs + j / 2 * kLanes), zero());
  store(st.weight + 16 * s, add(weight, weight1));
}

static void forward_tile_bf16(Bf16ForwardState& st, const Bf16Forward& w, int queries, int key_block,
                              const uint64_t* bits) {
  const int64_t dp = padded(w.head_dim), words = dp / 2;
  const int key0 = w.lists.key_start[key_block], keys = w.lists.key_start[key_block + 1] - key0;
  const int stripes = (queries + 15) / 16;
  const uint32_t* k = st.keys;
  const uint32_t* v = st.values;
  if (w.k) {
    k = w.k + (key0 - w.key_base) * words;
    v = w.v + (key_block - w.block_base) * dp * kWordsOfKeys;
  } else {
    pack_words(from_row(w.k_rows, key0), keys, w.head_dim, st.keys);
    pack_transposed(from_row(w.v_rows, key0), keys, w.head_dim, st.values);
  }
  const float factor = __builtin_fabsf(w.scale) * kLog2E;
  if (!bits) {
    const int rows = (keys + kGroup - 1) / kGroup * kGroup;
    product<false>(rows, stripes, w.head_dim / 2, k, words, st.lanes, kLanes, st.tile, kLanes);
    for (int s = 0; s < stripes; ++s) {
      soften_bf16<false>(st, s, {0, keys}, bits, factor, w.head_dim);
    }
    product<true>(w.head_dim, stripes, (keys + 1) / 2, v, kWordsOfKeys, reinterpret_cast<uint32_t*>(st.tile), kLanes,
                  st.sums, kLanes);
    return;
  }
  Cover c;
  cover_partial(bits, keys, c);
  for (int g = 0; g * kGroup < keys; ++g) {
    const Span s = c.stripes[g];
    if (s.first == s.last) continue;
    product<false>(kGroup, s.last - s.first, w.head_dim / 2, k + g * kGroup * words, words, st.lanes + 16 * s.first,
                   kLanes, st.tile + g * kGroup * kLanes + 16 * s.first, kLanes);
  }
  for (int s = 0; s < stripes; ++s)
    if (c.keys[s].first < c.keys[s].last) soften_bf16<true>(st, s, c.keys[s], bits, factor, w.head_dim);
  for (int s = 0, next = 0; s < stripes; s = next) {
    const Span span = c.keys[s];
    for (next = s + 1; next < stripes && c.keys[next].first == span.first && c.keys[next].last == span.last;) ++next;
    if (span.first == span.last) continue;
    product<true>(w.head_dim, next - s, (span.last - span.first + 1) / 2, v + span.first / 2, kWordsOfKeys,
                  reinterpret_cast<uint32_t*>(st.tile) + span.first / 2 * kLanes + 16 * s, kLanes, st.sums + 16 * s,
                  kLanes);
  }
}

/// Asks for the next tile's keys and values while this one is computed: a long head exceeds the nearest caches.
static void fetch_keys_bf16(const Bf16Forward& w, int key_block) {
  const int64_t dp = padded(w.head_dim);
  const uint32_t* k = w.k + (w.lists.key_start[key_block] - w.key_base) * dp / 2;
  const uint32_t* v = w.v + (key_block - w.block_base) * dp * kWordsOfKeys;
  for (int64_t x = 0; x < dp * kWordsOfKeys; x += 16) {
    __builtin_prefetch(k + x, 0, 2);
    __builtin_prefetch(v + x, 0, 2);
  }
}

static void write_stripe(Bf16ForwardState& st, const Bf16Forward& w, int query0, int s, int rows) {
  const F16 weight = load(st.weight + 16 * s);
  const F16 value = mul(add(load(st.maximum + 16 * s), log2(weight)), set1(kLn2));
  const std::uint32_t blind = equal(weight, zero());
  alignas(64) float lse[16];
  store(lse, select(blind, set1(-__builtin_inff()), value));
  const F16 inverse = select(blind, zero(), div(set1(1.0f), weight));
  const int64_t dp = padded(w.head_dim);
  transpose_back(st.sums + 16 * s, inverse, w.head_dim, st.rows, dp);
  unpack(st.rows, 1, 0, rows, w.head_dim, from_row(w.out, query0 + 16 * s));
  for (int i = 0; i < rows; ++i) w.lse[query0 + 16 * s + i] = lse[i];
}

static void forward_block_bf16(Bf16ForwardState& st, const Bf16Forward& w) {
  const int64_t dp = padded(w.head_dim);
  const int query0 = w.lists.query_start[w.item.query_block];
  const int queries = w.lists.query_start[w.item.query_block + 1] - query0;
  const int stripes = (queries + 15) / 16;
  pack_lanes(from_row(w.q, query0), queries, w.head_dim, w.scale < 0, st.lanes);
  for (int i = 0; i < kTileQueries; ++i) {
    st.maximum[i] = -__builtin_inff();
    st.weight[i] = 0;
  }
  clear(st.sums, dp * kLanes);

  int tile = 0;
  const TileLists& l = w.lists;
  for (int r = l.first_run[w.item.query_block]; r < l.first_run[w.item.query_block + 1]; ++r) {
    const TileRun& run = l.runs[r];
    for (int k = run.first; k < run.last; ++k, ++tile) {
      if (tile < w.item.first || tile >= w.item.last) continue;
      if (w.k && k + 1 < run.last && w.fetch) fetch_keys_bf16(w, k + 1);
      const bool full = run.kind == TileClass::full;
      forward_tile_bf16(st, w, queries, k, full ? nullptr : l.bits + l.patterns[run.pattern + k - run.first]);
    }
  }
  for (int s = 0; s < stripes; ++s) {
    if (w.partial)
      transpose_back(st.sums + 16 * s, set1(1.0f), static_cast<int>(dp), w.partial + 16 * s * dp, dp);
    else
      write_stripe(st, w, query0, s, queries - 16 * s < 16 ? queries - 16 * s : 16);
  }
  if (w.partial) {
    float* rest = w.partial + kTileQueries * dp;
    for (int i = 0; i < kTileQueries; ++i) {
      rest[i] = st.maximum[i];
      rest[kTileQueries + i] = st.weight[i];
    }
  }
}

static void forward_item_bf16(const Bf16Forward& w) {
  begin_products();
  Bf16ForwardState st;
  forward_block_bf16(st, w);
  end_products();
}

}  // namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE
