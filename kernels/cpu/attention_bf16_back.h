// The backward of attention_bf16_item.h. Internal.
#pragma once

#include "kernels/cpu/attention_bf16_item.h"

namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE {

/// A thread's scratch, and what one tile needs.
struct Bf16BackwardState {
  uint32_t* k;             // [key of the group][feature word]
  uint32_t* v;             // the same
  uint32_t* k_transposed;  // [key block of the group][feature][key word]
  uint32_t* q_lanes;       // [feature word][query]; d_out the same
  uint32_t* d_out_lanes;
  uint32_t* q_pairs;  // [query pair][feature]
  uint32_t* d_out_pairs;
  float* dq;  // [feature][query]
  float* dk;  // [key of the group][feature]
  float* dv;
  alignas(64) float scores[kGroup * kLanes];
  alignas(64) float gradients[kGroup * kLanes];           // of the weights
  alignas(64) uint32_t weights[kTileKeys * kLanes / 2];   // p, [key][query word]
  alignas(64) uint32_t d_scores[kTileKeys * kLanes / 2];  // gradient of the scores times scale, [key][query word]
  alignas(64) uint32_t d_score_pairs[kTileKeys / 2 * kLanes];
  alignas(64) float lse[kTileQueries];
  alignas(64) float delta[kTileQueries];
  alignas(64) float rows[16 * kMaxHeadDim];
};

static void place_scratch(Bf16BackwardState& st, uint32_t* scratch, int head_dim) {
  const int64_t dp = padded(head_dim), group = kGroupBlocks * kTileKeys;
  const auto take = [&](int64_t words) {
    uint32_t* const at = scratch;
    scratch += words;
    return at;
  };
  st.k = take((group + kSpareKeys) * dp / 2);
  st.v = take((group + kSpareKeys) * dp / 2);
  st.k_transposed = take(kGroupBlocks * dp * kWordsOfKeys);
  st.q_lanes = take(kTileQueries * dp / 2);
  st.d_out_lanes = take(kTileQueries * dp / 2);
  st.q_pairs = take(kTileQueries * dp / 2);
  st.d_out_pairs = take(kTileQueries * dp / 2);
  st.dq = bits_of(take(kTileQueries * dp));
  st.dk = bits_of(take(group * dp));
  st.dv = bits_of(take(group * dp));
}

/// One stripe of a group of keys: weights from scores, and the gradient of the scores (times scale) from theirs, both
/// rounded to bf16 in the layouts of the products.
template <bool kPartial> static void soften_backward_bf16(Bf16BackwardState& st, int first_key, int keys, int s,
                                                          const uint64_t* bits, float factor, float scale) {
  const F16 f = set1(factor), c = set1(scale);
  const F16 shift = sub(zero(), load(st.lse + 16 * s)), delta = load(st.delta + 16 * s);
  for (int j = 0; j < kGroup; j += 2) {
    F16 p[2], g[2];
    for (int n = 0; n < 2; ++n) {
      p[n] = g[n] = zero();
      const int key = first_key + j + n;
      if (key >= keys) continue;
      const int at = (j + n) * kLanes + 16 * s;
      p[n] = exp2(fma(load(st.scores + at), f, shift));
      g[n] = mul(mul(p[n], c), sub(load(st.gradients + at), delta));
      if constexpr (kPartial) {
        const std::uint32_t mask = stripe_bits(bits, key, s);
        p[n] = select(mask, p[n], zero());
        g[n] = select(mask, g[n], zero());
      }
    }
    const int row = first_key + j, word = row * kLanes / 2 + 8 * s, next = word + kLanes / 2;
    store_rows(st.weights + word, st.weights + next, p[0], p[1]);
    store_pairs_and_rows(st.d_score_pairs + row / 2 * kLanes + 16 * s, st.d_scores + word, st.d_scores + next, g[0],
                         g[1]);
  }
}

/// Tile of the loaded query block and key block `n` of the group.
static void backward_tile_bf16(Bf16BackwardState& st, const Bf16Backward& w, int queries, int n, int keys,
                               const uint64_t* bits) {
  const int64_t dp = padded(w.head_dim), words = dp / 2;
  const int stripes = (queries + 15) / 16, features = static_cast<int>(dp / 16);
  const uint32_t* k = st.k + n * kTileKeys * words;
  const uint32_t* v = st.v + n * kTileKeys * words;
  const float factor = __builtin_fabsf(w.scale) * kLog2E;
  Cover c;
  if (bits)
    cover_partial(bits, keys, c);
  else
    cover_full(queries, keys, c);
  for (int g = 0; g * kGroup < keys; ++g) {
    const int first = g * kGroup;
    const Span wanted = c.stripes[g];
    if (wanted.first < wanted.last) {
      product<false>(kGroup, wanted.last - wanted.first, w.head_dim / 2, k + first * words, words,
                     st.q_lanes + 16 * wanted.first, kLanes, st.scores + 16 * wanted.first, kLanes);
      product<false>(kGroup, wanted.last - wanted.first, w.head_dim / 2, v + first * words, words,
                     st.d_out_lanes + 16 * wanted.first, kLanes, st.gradients + 16 * wanted.first, kLanes);
    }
    for (int s = 0; s < stripes; ++s) {
      if (s < wanted.first || s >= wanted.last) {  // within the span of a sum, perhaps
        for (int j = 0; j < kGroup; j += 2)
          store(bits_of(st.d_score_pairs + (first + j) / 2 * kLanes + 16 * s), zero());
      } else if (bits) {
        soften_backward_bf16<true>(st, first, keys, s, bits, factor, w.scale);
      } else {
        soften_backward_bf16<false>(st, first, keys, s, bits, factor, w.scale);
      }
    }
  }
  const auto add_to_keys = [&](const uint32_t* left, const uint32_t* pairs, float* to) {
    for (int g = 0, next = 0; g * kGroup < keys; g = next) {
      const Span rows = c.stripes[g];  // in stripes of queries
      for (next = g + 1;
           next * kGroup < keys && c.stripes[next].first == rows.first && c.stripes[next].last == rows.last;)
        ++next;
      if (rows.first == rows.last) continue;
      const int first = g * kGroup, last = next * kGroup < keys ? next * kGroup : keys;
      product<true>(last - first, features, 8 * (rows.last - rows.first), left + first * kLanes / 2 + 8 * rows.first,
                    kLanes / 2, pairs + 8 * rows.first * dp, dp, to + (n * kTileKeys + first) * dp, dp);
    }
  };
  if (st.dv) add_to_keys(st.weights, st.d_out_pairs, st.dv);
  if (st.dk) add_to_keys(st.d_scores, st.q_pairs, st.dk);
  if (!st.dq) return;
  const uint32_t* transposed = st.k_transposed + n * dp * kWordsOfKeys;
  for (int s = 0, next = 0; s < stripes; s = next) {
    const Span span = c.keys[s];
    for (next = s + 1; next < stripes && c.keys[next].first == span.first && c.keys[next].last == span.last;) ++next;
    if (span.first == span.last) continue;
    product<true>(w.head_dim, next - s, (span.last - span.first + 1) / 2, transposed + span.first / 2, kWordsOfKeys,
                  st.d_score_pairs + span.first / 2 * kLanes + 16 * s, kLanes, st.dq + 16 * s, kLanes);
  }
}

static void load_queries(Bf16BackwardState& st, const Bf16Backward& w, int block) {
  const int query0 = w.lists.query_start[block], queries = w.lists.query_start[block + 1] - query0;
  pack_lanes(from_row(w.q, query0), queries, w.head_dim, w.scale < 0, st.q_lanes);
  pack_lanes(from_row(w.d_out, query0), queries, w.head_dim, false, st.d_out_lanes);
  if (st.dk) pack_pairs(from_row(w.q, query0), queries, w.head_dim, st.q_pairs);
  if (st.dv) pack_pairs(from_row(w.d_out, query0), queries, w.head_dim, st.d_out_pairs);
  for (int i = 0; i < kTileQueries; ++i) st.lse[i] = st.delta[i] = 0;
  convert_lse(w.lse + query0, queries, st.lse);
  if (w.alone[block])
    row_dots(from_row(w.d_out, query0), from_row(w.out, query0), queries, w.head_dim, st.delta);
  else
    for (int i = 0; i < queries; ++i) st.delta[i] = w.delta[query0 + i];
  if (st.dq) clear(st.dq, padded(w.head_dim) * kLanes);
}

static void store_queries(Bf16BackwardState& st, const Bf16Backward& w, int block) {
  const int64_t dp = padded(w.head_dim);
  const int query0 = w.lists.query_start[block], queries = w.lists.query_start[block + 1] - query0;
  for (int s = 0; 16 * s < queries; ++s) {
    const int rows = queries - 16 * s < 16 ? queries - 16 * s : 16;
    transpose_back(st.dq + 16 * s, set1(1.0f), w.head_dim, st.rows, dp);
    if (w.alone[block]) {
      unpack(st.rows, 1, 0, rows, w.head_dim, from_row(w.dq, query0 + 16 * s));
      continue;
    }
    float* sum = w.dq_sum + (query0 + 16 * s) * dp;
    for (int64_t x = 0; x < rows * dp; x += 16) store(sum + x, add(load(sum + x), load(st.rows + x)));
  }
}

static void store_keys(const Bf16Backward& w, int key_block, const float* from, const RowsOut& out, float* sum) {
  const int64_t dp = padded(w.head_dim);
  const int key0 = w.lists.key_start[key_block], keys = w.lists.key_start[key_block + 1] - key0;
  if (sum)
    for (int64_t x = 0; x < keys * dp; x += 16) store(sum + key0 * dp + x, load(from + x));
  else
    unpack(from, 1, 0, keys, w.head_dim, from_row(out, key0));
}

/// All query blocks against up to kGroupBlocks key blocks.
static void backward_group(Bf16BackwardState& st, const Bf16Backward& w, const std::int32_t* keys, int num_keys) {
  const TileLists& l = w.lists;
  const int64_t dp = padded(w.head_dim), words = dp / 2;
  int first_block = 0x7fffffff, last_block = 0;
  int run[kGroupBlocks];
  for (int n = 0; n < num_keys; ++n) {
    const int key = keys[n], key0 = l.key_start[key], rows = l.key_start[key + 1] - key0;
    run[n] = l.first_run[key];
    if (st.dk) clear(st.dk + n * kTileKeys * dp, rows * dp);
    if (st.dv) clear(st.dv + n * kTileKeys * dp, rows * dp);
    if (run[n] == l.first_run[key + 1]) continue;
    const int first = l.runs[run[n]].first, last = l.runs[l.first_run[key + 1] - 1].last;
    if (first < first_block) first_block = first;
    if (last > last_block) last_block = last;
    pack_words(from_row(w.k, key0), rows, w.head_dim, st.k + n * kTileKeys * words);
    pack_words(from_row(w.v, key0), rows, w.head_dim, st.v + n * kTileKeys * words);
    if (st.dq) pack_transposed(from_row(w.k, key0), rows, w.head_dim, st.k_transposed + n * dp * kWordsOfKeys);
  }
  for (int b = first_block; b < last_block; ++b) {
    bool loaded = false;
    for (int n = 0; n < num_keys; ++n) {
      const int key = keys[n], end = l.first_run[key + 1];
      while (run[n] < end && l.runs[run[n]].last <= b) ++run[n];
      if (run[n] == end || l.runs[run[n]].first > b) continue;
      if (!loaded) load_queries(st, w, b);
      loaded = true;
      const TileRun& r = l.runs[run[n]];
      backward_tile_bf16(st, w, l.query_start[b + 1] - l.query_start[b], n, l.key_start[key + 1] - l.key_start[key],
                         r.kind == TileClass::full ? nullptr : l.bits + l.patterns[r.pattern + b - r.first]);
    }
    if (loaded && st.dq) store_queries(st, w, b);
  }
  for (int n = 0; n < num_keys; ++n) {
    if (st.dk) store_keys(w, keys[n], st.dk + n * kTileKeys * dp, w.dk, w.dk_sum);
    if (st.dv) store_keys(w, keys[n], st.dv + n * kTileKeys * dp, w.dv, w.dv_sum);
  }
}

static void backward_item_bf16(const Bf16Backward& w) {
  begin_products();
  Bf16BackwardState st;
  place_scratch(st, w.scratch, w.head_dim);
  if (!w.dq.data) st.dq = nullptr;
  if (!w.dk.data && !w.dk_sum) st.dk = nullptr;
  if (!w.dv.data && !w.dv_sum) st.dv = nullptr;
  for (int i = 0; i < w.num_keys; i += kGroupBlocks)
    backward_group(st, w, w.keys + i, w.num_keys - i < kGroupBlocks ? w.num_keys - i : kGroupBlocks);
  end_products();
}

}  // namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE
