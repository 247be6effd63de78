// One item of attention work (attention_tiles.h), written once and compiled per instruction set. Internal.
#pragma once

#include "kernels/cpu/attention_cover.h"
#include "kernels/cpu/attention_product.h"
#include "kernels/cpu/attention_rows.h"

namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE {

using std::uint64_t;

inline constexpr int kGroup = 8;  // keys, or queries, that are skipped together where a mask allows none
using Cover = CoverOf<kGroup>;

/// scores[key][query] = sum over d of rows[key][d] * lanes[d][query], where the cover needs it. `spare`: kSpareRows
/// rows behind the last key may be read; their scores are not used.
static void scores(const Cover& c, int keys, int head_dim, const float* rows, int64_t row_stride, bool spare,
                   const float* lanes, float* out) {
  for (int g = 0; g * kGroup < keys; ++g) {
    const Span s = c.stripes[g];
    if (s.first == s.last) continue;
    const int count = spare || keys - g * kGroup >= kGroup ? kGroup : keys - g * kGroup;
    product<false>(count, s.last - s.first, head_dim, rows + g * kGroup * row_stride, 1, row_stride,
                   lanes + 16 * s.first, kLanes, out + g * kGroup * kLanes + 16 * s.first, kLanes);
  }
}

/// lanes[d][i] = factor * row i's feature d, for 16 rows at a time; lanes of missing rows are zero.
template <class T>
static void transpose_rows(const T* rows, int64_t stride, int count, int head_dim, float factor, float* lanes) {
  const F16 f = set1(factor);
  for (int i0 = 0; i0 < count; i0 += 16)
    for (int d0 = 0; d0 < head_dim; d0 += 16) {
      const int columns = head_dim - d0 < 16 ? head_dim - d0 : 16;
      F16 x[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i)
        x[i] = i0 + i < count ? mul(load_part(rows + (i0 + i) * stride + d0, columns), f) : zero();
      transpose(x, lanes + d0 * kLanes + i0, kLanes, columns);
    }
}

// ---------------------------------------------------------------------------------------------------------- forward

struct ForwardState {
  alignas(64) float lanes[kMaxHeadDim * kLanes];                   // scale * log2(e) * q, transposed
  alignas(64) float tile[kTileKeys * kLanes];                      // scores, then weights
  alignas(64) float sums[kTileQueries * kMaxHeadDim];              // of weight * v
  alignas(64) float maximum[kTileQueries];                         // of the scores so far
  alignas(64) float weight[kTileQueries];                          // sum of weights so far
  alignas(64) float shrink[kTileQueries];                          // what the sums so far are multiplied by
  alignas(64) float keys[(kTileKeys + kSpareRows) * kMaxHeadDim];  // where they are not packed beforehand
  alignas(64) float values[kTileKeys * kMaxHeadDim];
};

/// Scores to weights for one stripe; returns whether a maximum grew.
template <bool kPartial> static bool soften(ForwardState& st, int s, Span keys, const uint64_t* bits) {
  const F16 lowest = set1(-__builtin_inff());
  float* tile = st.tile + 16 * s;
  F16 high = lowest;
  for (int j = keys.first; j < keys.last; ++j) {
    F16 x = load(tile + j * kLanes);
    if constexpr (kPartial) x = select(stripe_bits(bits, j, s), x, lowest);
    high = max(high, x);
  }
  const F16 before = load(st.maximum + 16 * s);
  const F16 now = max(before, high);
  // A row that has seen no key yet keeps its sums of zero; one whose scores all overflowed to -inf becomes NaN below.
  const F16 shrink = exp2(sub(before, select(equal(now, lowest), zero(), now)));
  F16 weight = mul(load(st.weight + 16 * s), shrink);
  for (int j = keys.first; j < keys.last; ++j) {
    F16 p = exp2(sub(load(tile + j * kLanes), now));
    if constexpr (kPartial) p = select(stripe_bits(bits, j, s), p, zero());
    store(tile + j * kLanes, p);
    weight = add(weight, p);
  }
  store(st.maximum + 16 * s, now);
  store(st.weight + 16 * s, weight);
  store(st.shrink + 16 * s, shrink);
  return equal(before, now) != 0xffffu;
}

static void forward_tile(ForwardState& st, const ForwardWork& w, int queries, int key_block, const uint64_t* bits) {
  const int64_t dp = padded(w.head_dim);
  const int key0 = w.lists.key_start[key_block], keys = w.lists.key_start[key_block + 1] - key0;
  Cover c;
  if (bits)
    cover_partial(bits, keys, c);
  else
    cover_full(queries, keys, c);
  const float* v = st.values;
  if (w.k) {
    v = w.v + (key0 - w.key_base) * dp;
    scores(c, keys, w.head_dim, w.k + (key0 - w.key_base) * dp, dp, true, st.lanes, st.tile);
  } else {
    if (w.k_rows.bf16) {
      pack(from_row(w.k_rows, key0), keys, w.head_dim, st.keys);
      scores(c, keys, w.head_dim, st.keys, dp, true, st.lanes, st.tile);
    } else {  // each key is read once: where it lies
      const RowsIn k = from_row(w.k_rows, key0);
      scores(c, keys, w.head_dim, static_cast<const float*>(k.data), k.stride, false, st.lanes, st.tile);
    }
    pack(from_row(w.v_rows, key0), keys, w.head_dim, st.values);
  }
  const int stripes = (queries + 15) / 16;
  for (int s = 0; s < stripes; ++s) {
    if (c.keys[s].first == c.keys[s].last) continue;
    const bool grew = bits ? soften<true>(st, s, c.keys[s], bits) : soften<false>(st, s, c.keys[s], bits);
    if (!grew) continue;
    for (int i = 16 * s; i < 16 * s + 16 && i < queries; ++i) {
      const F16 f = set1(st.shrink[i]);
      for (int64_t d = 0; d < dp; d += 16) store(st.sums + i * dp + d, mul(load(st.sums + i * dp + d), f));
    }
  }
  for (int g = 0; g * kGroup < queries; ++g) {
    const Span k = c.group_keys[g];
    if (k.first == k.last) continue;
    const int rows = queries - g * kGroup < kGroup ? queries - g * kGroup : kGroup;
    product<true>(rows, static_cast<int>(dp / 16), k.last - k.first, st.tile + k.first * kLanes + g * kGroup, kLanes, 1,
                  v + k.first * dp, dp, st.sums + g * kGroup * dp, dp);
  }
}

/// Asks for the next tile's keys and values while this one is computed: a long head exceeds the nearest caches.
static void fetch_keys(const ForwardWork& w, int key_block) {
  const int64_t dp = padded(w.head_dim);
  const int64_t from = w.lists.key_start[key_block] * dp, to = w.lists.key_start[key_block + 1] * dp;
  for (int64_t x = from; x < to; x += 16) {
    __builtin_prefetch(w.k + x, 0, 2);
    __builtin_prefetch(w.v + x, 0, 2);
  }
}

template <class T> static void write_rows(const ForwardState& st, const ForwardWork& w, int query0, int queries) {
  const int64_t dp = padded(w.head_dim);
  alignas(64) float lse[kTileQueries];
  for (int s = 0; s < (queries + 15) / 16; ++s) {
    const F16 weight = load(st.weight + 16 * s);
    const F16 value = mul(add(load(st.maximum + 16 * s), log2(weight)), set1(kLn2));
    store(lse + 16 * s, select(equal(weight, zero()), set1(-__builtin_inff()), value));
  }
  for (int i = 0; i < queries; ++i) {
    w.lse[query0 + i] = lse[i];
    const F16 f = set1(st.weight[i] == 0.0f ? 0.0f : 1.0f / st.weight[i]);
    T* out = static_cast<T*>(w.out.data) + (query0 + i) * w.out.stride;
    for (int d = 0; d < w.head_dim; d += 16) store_part(out + d, mul(load(st.sums + i * dp + d), f), w.head_dim - d);
  }
}

static void forward_block(ForwardState& st, const ForwardWork& w) {
  const int64_t dp = padded(w.head_dim);
  const int query0 = w.lists.query_start[w.item.query_block];
  const int queries = w.lists.query_start[w.item.query_block + 1] - query0;
  const float factor = w.scale * kLog2E;
  if (w.q.bf16)
    transpose_rows(static_cast<const std::uint16_t*>(w.q.data) + query0 * w.q.stride, w.q.stride, queries, w.head_dim,
                   factor, st.lanes);
  else
    transpose_rows(static_cast<const float*>(w.q.data) + query0 * w.q.stride, w.q.stride, queries, w.head_dim, factor,
                   st.lanes);
  for (int i = 0; i < kTileQueries; ++i) {
    st.maximum[i] = -__builtin_inff();
    st.weight[i] = 0;
  }
  for (int64_t i = 0; i < queries * dp; i += 16) store(st.sums + i, zero());

  int tile = 0;
  const TileLists& l = w.lists;
  for (int r = l.first_run[w.item.query_block]; r < l.first_run[w.item.query_block + 1]; ++r) {
    const TileRun& run = l.runs[r];
    for (int k = run.first; k < run.last; ++k, ++tile) {
      if (tile < w.item.first || tile >= w.item.last) continue;
      if (w.fetch && k + 1 < run.last) fetch_keys(w, k + 1);
      const bool full = run.kind == TileClass::full;
      forward_tile(st, w, queries, k, full ? nullptr : l.bits + l.patterns[run.pattern + k - run.first]);
    }
  }
  if (w.partial == nullptr) {
    if (w.out.bf16)
      write_rows<std::uint16_t>(st, w, query0, queries);
    else
      write_rows<float>(st, w, query0, queries);
    return;
  }
  for (int64_t i = 0; i < queries * dp; i += 16) store(w.partial + i, load(st.sums + i));
  float* rest = w.partial + kTileQueries * dp;
  for (int i = 0; i < kTileQueries; ++i) {
    rest[i] = st.maximum[i];
    rest[kTileQueries + i] = st.weight[i];
  }
}

static void forward_item(const ForwardWork& w) {
  ForwardState st;
  forward_block(st, w);
}

// --------------------------------------------------------------------------------------------------------- backward

struct BackwardState {
  alignas(64) float weights[kTileKeys * kLanes];    // p
  alignas(64) float gradients[kTileKeys * kLanes];  // of p, then of the score times scale
};

/// One stripe: p from scores, and the gradient of the scores (times scale) from that of p.
template <bool kPartial>
static void soften_backward(BackwardState& st, int s, Span keys, const uint64_t* bits, F16 lse, F16 delta, F16 scale) {
  for (int j = keys.first; j < keys.last; ++j) {
    float* p_at = st.weights + j * kLanes + 16 * s;
    float* g_at = st.gradients + j * kLanes + 16 * s;
    F16 p = exp2(sub(load(p_at), lse));
    F16 g = mul(mul(p, scale), sub(load(g_at), delta));
    if constexpr (kPartial) {
      const std::uint32_t mask = stripe_bits(bits, j, s);
      p = select(mask, p, zero());
      g = select(mask, g, zero());
    }
    store(p_at, p);
    store(g_at, g);
  }
}

/// Query rows [first, last) of a tile, rounded out to stripes, that key group g needs.
static Span rows_of_group(const Cover& c, int g, int queries) {
  const int last = 16 * c.stripes[g].last;
  return {16 * c.stripes[g].first, last < queries ? last : queries};
}

static void backward_tile(BackwardState& st, const BackwardWork& w, int query_block, int key_block,
                          const uint64_t* bits, const float* q_lanes, const float* d_out_lanes) {
  const int64_t dp = padded(w.head_dim);
  const int stripes = static_cast<int>(dp / 16);
  const int key0 = w.lists.key_start[key_block], keys = w.lists.key_start[key_block + 1] - key0;
  const int query0 = w.lists.query_start[query_block], queries = w.lists.query_start[query_block + 1] - query0;
  const float* k = w.k + (key0 - w.key_base) * dp;
  const float* v = w.v + (key0 - w.key_base) * dp;
  Cover c;
  if (bits)
    cover_partial(bits, keys, c);
  else
    cover_full(queries, keys, c);
  scores(c, keys, w.head_dim, k, dp, true, q_lanes, st.weights);
  scores(c, keys, w.head_dim, v, dp, true, d_out_lanes, st.gradients);
  const F16 scale = set1(w.scale);
  for (int s = 0; s < (queries + 15) / 16; ++s) {
    const int64_t at = query0 - w.query_base + 16 * s;
    const F16 lse = load_part(w.lse + at, queries - 16 * s), delta = load_part(w.delta + at, queries - 16 * s);
    if (bits)
      soften_backward<true>(st, s, c.keys[s], bits, lse, delta, scale);
    else
      soften_backward<false>(st, s, c.keys[s], bits, lse, delta, scale);
  }
  const int64_t first_row = (query0 - w.query_base) * dp;
  const float* q = w.q + first_row;
  const float* d_out = w.d_out + first_row;
  for (int g = 0; g * kGroup < keys; ++g) {
    const Span rows = rows_of_group(c, g, queries);
    if (rows.first >= rows.last) continue;
    const int count = keys - g * kGroup < kGroup ? keys - g * kGroup : kGroup;
    const int64_t from = g * kGroup * kLanes + rows.first, to = (key0 - w.key_base + g * kGroup) * dp;
    if (w.dv)
      product<true>(count, stripes, rows.last - rows.first, st.weights + from, 1, kLanes, d_out + rows.first * dp, dp,
                    w.dv + to, dp);
    if (w.dk)
      product<true>(count, stripes, rows.last - rows.first, st.gradients + from, 1, kLanes, q + rows.first * dp, dp,
                    w.dk + to, dp);
  }
  if (!w.dq) return;
  float* dq = w.dq + first_row;
  for (int g = 0; g * kGroup < queries; ++g) {
    const Span span = c.group_keys[g];
    if (span.first == span.last) continue;
    const int count = queries - g * kGroup < kGroup ? queries - g * kGroup : kGroup;
    product<true>(count, stripes, span.last - span.first, st.gradients + span.first * kLanes + g * kGroup, kLanes, 1,
                  k + span.first * dp, dp, dq + g * kGroup * dp, dp);
  }
}

static void backward_blocks(BackwardState& st, const BackwardWork& w) {
  const TileLists& l = w.lists;
  const int64_t dp = padded(w.head_dim);
  int first_block = 0x7fffffff, last_block = 0;
  for (int i = 0; i < w.num_keys; ++i) {
    const int key = w.keys[i];
    if (l.first_run[key] == l.first_run[key + 1]) continue;
    const int first = l.runs[l.first_run[key]].first, last = l.runs[l.first_run[key + 1] - 1].last;
    if (first < first_block) first_block = first;
    if (last > last_block) last_block = last;
  }
  const int64_t lane_floats = int64_t{kTileQueries} * w.head_dim;
  for (int base = first_block; base < last_block; base += kPackedBlocks) {
    bool packed[kPackedBlocks] = {};
    for (int i = 0; i < w.num_keys; ++i) {
      const int key = w.keys[i];
      for (int r = l.first_run[key]; r < l.first_run[key + 1]; ++r) {
        const TileRun& run = l.runs[r];
        const int first = run.first > base ? run.first : base;
        const int last = run.last < base + kPackedBlocks ? run.last : base + kPackedBlocks;
        for (int b = first; b < last; ++b) {
          float* q_lanes = w.transposed + 2 * (b - base) * lane_floats;
          float* d_out_lanes = q_lanes + lane_floats;
          if (!packed[b - base]) {
            const int query0 = l.query_start[b], queries = l.query_start[b + 1] - query0;
            const int64_t at = (query0 - w.query_base) * dp;
            transpose_rows(w.q + at, dp, queries, w.head_dim, w.scale * kLog2E, q_lanes);
            transpose_rows(w.d_out + at, dp, queries, w.head_dim, 1.0f, d_out_lanes);
            packed[b - base] = true;
          }
          const uint64_t* bits =
              run.kind == TileClass::full ? nullptr : l.bits + l.patterns[run.pattern + b - run.first];
          backward_tile(st, w, b, key, bits, q_lanes, d_out_lanes);
        }
      }
    }
  }
}

static void backward_item(const BackwardWork& w) {
  BackwardState st;
  backward_blocks(st, w);
}

}  // namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE
