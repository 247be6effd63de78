// Samples of few rows (BackwardItem::own) in bf16, as attention_own.h: whole, head by head, by one thread in its cache.
// Internal.
//
// p and dS come out of softmax with queries as lanes, in pairs of keys. They are turned once, so that their products
// have a row for each query, end where the query's keys end, and go straight to the caller's rows.
#pragma once

#include "kernels/cpu/attention_bf16_back.h"
#include "kernels/cpu/attention_own_steps.h"

namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE {

inline constexpr int kOwnWords = kOwnRows / 2;                            // row stride of turned p and dS
inline constexpr int kOwnSide = kGroup > kOwnGroup ? kGroup : kOwnGroup;  // rows of a product

/// A span joined with its neighbour, where a product takes both, and rounded out to it: operands are zero there.
static inline Span joined(Span s, Span t) {
  if (t.first < t.last) widen(s, t.first, t.last);
  return {s.first / kOwnSide * kOwnSide, (s.last + kOwnSide - 1) / kOwnSide * kOwnSide};
}
/// What the queries [i, i + kOwnSide) see.
static inline Span own_keys_of(const OwnMask& m, int i) {
  const Span s = m.keys_of_queries[i / kOwnGroup];
  return kOwnSide > kOwnGroup ? joined(s, m.keys_of_queries[i / kOwnGroup + 1]) : s;
}
/// By what the keys [j, j + kOwnSide) are seen.
static inline Span own_queries_of(const OwnMask& m, int j) {
  const Span s = m.queries_of_keys[j / kOwnGroup];
  return kOwnSide > kOwnGroup ? joined(s, m.queries_of_keys[j / kOwnGroup + 1]) : s;
}

/// rows[query][pair] = pairs[pair][query] for a stripe of queries and the pairs of the keys; zeros around them, up to
/// whole 16 pairs. `pairs` begins at pair 0.
static void turn_pairs(const uint32_t* pairs, Span keys, uint32_t* rows) {
  const int first = keys.first / 2, last = (keys.last + 1) / 2;
  for (int p0 = first / 16 * 16; p0 < last; p0 += 16) {
    F16 x[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i)
      x[i] = p0 + i >= first && p0 + i < last ? load(bits_of(pairs + (p0 + i) * kLanes)) : zero();
    transpose(x, bits_of(rows + p0), kOwnWords, 16);
  }
}

// ---------------------------------------------------------------------------------------------------------- forward

struct OwnBf16ForwardState {
  alignas(64) uint32_t lanes[kMaxHeadDim / 2 * kLanes];
  alignas(64) float tile[kOwnRows * kLanes];               // scores
  alignas(64) uint32_t pairs[kOwnWords * kLanes];          // weights, [key pair][query]
  alignas(64) uint32_t weights[kTileQueries * kOwnWords];  // weights, [query][key pair]
  alignas(64) float inverse[kTileQueries];                 // of the sums of weights
  alignas(64) uint32_t keys[(kOwnRows + kSpareKeys) * kMaxHeadDim / 2];
  alignas(64) uint32_t values[(kOwnWords + 8) * kMaxHeadDim];  // [key pair][feature]
  OwnMask mask;
  Fetch fetch;
};

/// As own_soften; `factor` >= 0 takes scores to powers of two.
static void own_soften_bf16(const OwnMask& m, int stripe, const float* tile, float factor, uint32_t* pairs,
                            float* inverse, float* lse, int rows) {
  const Span keys = m.keys_of_stripe[stripe];
  const int full = m.full_to[stripe];
  const std::uint16_t* bits = m.bits[stripe];
  const F16 lowest = set1(-__builtin_inff()), f = set1(factor);
  F16 high = lowest, high1 = lowest;
  int j = keys.first;
  for (; j + 1 < full; j += 2) {
    high = max(high, load(tile + j * kLanes));
    high1 = max(high1, load(tile + (j + 1) * kLanes));
  }
  if (j < full) high = max(high, load(tile + j * kLanes));
  for (j = full; j < keys.last; ++j) high = max(high, select(bits[j], load(tile + j * kLanes), lowest));
  high = max(high, high1);
  high = select(equal(high, lowest), lowest, mul(high, f));  // a factor of zero too
  const F16 shift = sub(zero(), high);
  F16 weight = zero(), weight1 = zero();
  const auto weight_of = [&](int i) __attribute__((always_inline)) {
    return exp2(fma(load(tile + i * kLanes), f, shift));
  };
  for (j = keys.first; j + 1 < full; j += 2) {  // groups of keys are even, but for the last key of all
    const F16 p = weight_of(j), p1 = weight_of(j + 1);
    weight = add(weight, p);
    weight1 = add(weight1, p1);
    store_pairs(pairs + j / 2 * kLanes, p, p1);
  }
  if (j < full) {
    const F16 p = weight_of(j);
    weight = add(weight, p);
    store_pairs(pairs + j / 2 * kLanes, p, zero());
  }
  for (j = full; j < keys.last; j += 2) {
    const F16 p = select(bits[j], weight_of(j), zero());
    const F16 p1 = j + 1 < keys.last ? select(bits[j + 1], weight_of(j + 1), zero()) : zero();
    weight = add(weight, p);
    weight1 = add(weight1, p1);
    store_pairs(pairs + j / 2 * kLanes, p, p1);
  }
  weight = add(weight, weight1);
  const std::uint32_t blind = equal(weight, zero());
  store(inverse, select(blind, zero(), div(set1(1.0f), weight)));
  const F16 value = mul(add(high, log2(weight)), set1(kLn2));
  store_part(lse, select(blind, lowest, value), rows);
}

static void own_forward_head_bf16(OwnBf16ForwardState& st, const OwnForward& w, int head) {
  const OwnMask& m = st.mask;
  const int64_t dp = padded(w.head_dim), words = dp / 2;
  const int query0 = w.lists.query_start[w.item.first_query], features = static_cast<int>(dp / 16);
  const int64_t fetch_rows = own_fetch_rows(m, st.fetch, 1, kGroup);
  const RowsIn q = from_head(w.q, head, w.head_dim);
  const RowsOut out = from_row(from_head(w.out, head, w.head_dim), query0);
  float* const lse = w.lse + head * w.lse_stride + query0;
  const float factor = __builtin_fabsf(w.scale) * kLog2E;
  Span chunk;
  for (; chunk.first < m.stripes; chunk.first = chunk.last) {
    chunk.last = chunk.first + own_chunk(m.stripes - chunk.first);
    const int first = 16 * chunk.first, end = m.queries < 16 * chunk.last ? m.queries : 16 * chunk.last;
    pack_lanes(from_row(q, query0 + first), end - first, w.head_dim, w.scale < 0, st.lanes);
    for (int g = 0; g * kGroup < m.keys; ++g) {
      const Span s = within(m.stripes_of_keys[g], chunk);
      if (s.first == s.last) continue;
      fetch_some(st.fetch, fetch_rows);
      const int at = 16 * (s.first - chunk.first);
      product<false>(kGroup, s.last - s.first, w.head_dim / 2, st.keys + g * kGroup * words, words, st.lanes + at,
                     kLanes, st.tile + g * kGroup * kLanes + at, kLanes);
    }
    for (int s = chunk.first; s < chunk.last; ++s) {
      const int at = 16 * s - first;
      own_soften_bf16(m, s, st.tile + at, factor, st.pairs + at, st.inverse + at, lse + 16 * s, end - 16 * s);
      turn_pairs(st.pairs + at, m.keys_of_stripe[s], st.weights + at * kOwnWords);
    }
    for (int i = first; i < end; i += kOwnSide) {
      const Span keys = own_keys_of(m, i);
      product_to(end - i < kOwnSide ? end - i : kOwnSide, features, (keys.last - keys.first + 1) / 2,
                 st.weights + (i - first) * kOwnWords + keys.first / 2, kOwnWords, st.values + keys.first / 2 * dp, dp,
                 nullptr,
                 ToScaledRows<std::uint16_t>{static_cast<std::uint16_t*>(out.data) + i * out.stride, out.stride,
                                             st.inverse + i - first, w.head_dim});
    }
  }
}

static void forward_own_bf16(const OwnForward& w) {
  begin_products();
  OwnBf16ForwardState st;
  make_own_mask(w.lists, w.item, kGroup, st.mask);
  const int key0 = w.lists.key_start[w.item.first_key];
  for (int g = w.item.first_head; g < w.item.last_head; ++g) {
    pack_words(from_row(from_head(w.k, g, w.head_dim), key0), st.mask.keys, w.head_dim, st.keys);
    pack_pairs(from_row(from_head(w.v, g, w.head_dim), key0), st.mask.keys, w.head_dim, st.values);
    for (int of = 0; of < w.repeat; ++of) {
      own_fetch(st.fetch, w, step_after(w.item, w.next, g, of, w.repeat));
      own_forward_head_bf16(st, w, g * w.repeat + of);
      fetch_rest(st.fetch);
    }
  }
  end_products();
}

// --------------------------------------------------------------------------------------------------------- backward

struct OwnBf16BackwardState {
  alignas(64) uint32_t q_lanes[kMaxHeadDim / 2 * kLanes];  // of a chunk
  alignas(64) uint32_t d_out_lanes[kMaxHeadDim / 2 * kLanes];
  alignas(64) float scores[kGroup * kLanes];
  alignas(64) float gradients[kGroup * kLanes];                 // of the weights
  alignas(64) uint32_t weights[kOwnRows * kLanes / 2];          // p, [key][query pair]
  alignas(64) uint32_t d_scores[kOwnRows * kLanes / 2];         // gradient of the scores times scale, [key][query pair]
  alignas(64) uint32_t d_score_pairs[kOwnWords * kLanes];       // [key pair][query]
  alignas(64) uint32_t d_score_rows[kTileQueries * kOwnWords];  // [query][key pair]
  alignas(64) float lse[kOwnRows];
  alignas(64) float delta[kOwnRows];
  OwnMask mask;
  bool summed[kOwnGroups];  // keys whose gradients have something in them, in groups of kOwnSide
  Fetch fetch;
  uint32_t *k, *v;                  // [key][feature pair]
  uint32_t* k_pairs;                // [key pair][feature]
  uint32_t *q_pairs, *d_out_pairs;  // [query pair][feature]
  float *dk, *dv;
};

/// Words of a thread's scratch.
static void place_own(OwnBf16BackwardState& st, const OwnBackward& w) {
  const int64_t dp = padded(w.head_dim);
  float* next = w.scratch;
  const auto take = [&](int64_t words) {
    float* const at = next;
    next += words;
    return at;
  };
  const auto take_words = [&](int64_t words) { return reinterpret_cast<uint32_t*>(take(words)); };
  st.k = take_words((kOwnRows + kSpareKeys) * dp / 2);
  st.v = take_words((kOwnRows + kSpareKeys) * dp / 2);
  st.k_pairs = take_words(kOwnWords * dp);
  st.q_pairs = take_words(kOwnWords * dp);
  st.d_out_pairs = take_words(kOwnWords * dp);
  st.dk = w.dk.data ? take(kOwnRows * dp) : nullptr;
  st.dv = w.dv.data ? take(kOwnRows * dp) : nullptr;
}

/// One stripe of a group of keys; `at`: the stripe's first query within the chunk.
static void own_soften_backward_bf16(OwnBf16BackwardState& st, int first_key, int stripe, int at, float factor,
                                     float scale) {
  const OwnMask& m = st.mask;
  const std::uint16_t* bits = m.bits[stripe];
  const F16 f = set1(factor), c = set1(scale);
  const F16 shift = sub(zero(), load(st.lse + 16 * stripe)), delta = load(st.delta + 16 * stripe);
  const bool full = first_key >= m.keys_of_stripe[stripe].first && first_key + kGroup <= m.full_to[stripe];
  const auto pair = [&](int j, auto partial) __attribute__((always_inline)) {
    F16 p[2], g[2];
#pragma GCC unroll 2
    for (int n = 0; n < 2; ++n) {
      const int from = (j + n) * kLanes + at;
      p[n] = exp2(fma(load(st.scores + from), f, shift));
      g[n] = mul(mul(p[n], c), sub(load(st.gradients + from), delta));
      if constexpr (partial()) {
        const std::uint32_t mask = first_key + j + n < m.keys ? bits[first_key + j + n] : 0;
        p[n] = select(mask, p[n], zero());
        g[n] = select(mask, g[n], zero());
      }
    }
    const int row = first_key + j, word = row * kLanes / 2 + at / 2, next = word + kLanes / 2;
    store_rows(st.weights + word, st.weights + next, p[0], p[1]);
    store_pairs_and_rows(st.d_score_pairs + row / 2 * kLanes + at, st.d_scores + word, st.d_scores + next, g[0], g[1]);
  };
  struct Yes {
    constexpr bool operator()() const { return true; }
  };
  struct No {
    constexpr bool operator()() const { return false; }
  };
  if (full)
    for (int j = 0; j < kGroup; j += 2) pair(j, No{});
  else
    for (int j = 0; j < kGroup; j += 2) pair(j, Yes{});
}

/// Adds p^T dO and dS^T Q of a chunk to dV and dK. `last`: of all query heads; what is complete goes to the caller.
static void own_add_to_keys_bf16(OwnBf16BackwardState& st, const OwnBackward& w, int kv_head, Span chunk, bool last,
                                 int64_t fetch_rows) {
  const OwnMask& m = st.mask;
  const int64_t dp = padded(w.head_dim);
  const int features = static_cast<int>(dp / 16), first = 16 * chunk.first;
  const int key0 = w.lists.key_start[w.item.first_key];
  for (int j = 0; j < m.keys; j += kOwnSide) {
    const Span all = own_queries_of(m, j), rows = within(all, {first, 16 * chunk.last});
    if (rows.first == rows.last) continue;
    fetch_some(st.fetch, fetch_rows);
    const int count = m.keys - j < kOwnSide ? m.keys - j : kOwnSide, n = (rows.last - rows.first + 1) / 2;
    const int64_t from = j * kLanes / 2 + (rows.first - first) / 2;
    const auto add_to = [&](const uint32_t* left, const uint32_t* pairs, float* sums, const RowsOut& out) {
      if (!sums) return;
      const uint32_t* right = pairs + rows.first / 2 * dp;
      float* const to = sums + j * dp;
      if (last && all.last <= 16 * chunk.last) {
        product_to(count, features, n, left + from, kLanes / 2, right, dp, st.summed[j / kOwnSide] ? to : nullptr,
                   ToCaller{from_row(from_head(out, kv_head, w.head_dim), key0 + j), w.head_dim});
      } else if (st.summed[j / kOwnSide]) {
        product<true>(count, features, n, left + from, kLanes / 2, right, dp, to, dp);
      } else {
        product<false>(count, features, n, left + from, kLanes / 2, right, dp, to, dp);
      }
    };
    add_to(st.weights, st.d_out_pairs, st.dv, w.dv);
    add_to(st.d_scores, st.q_pairs, st.dk, w.dk);
    st.summed[j / kOwnSide] = true;
  }
}

static void own_backward_head_bf16(OwnBf16BackwardState& st, const OwnBackward& w, int kv_head, int of) {
  const int head = kv_head * w.repeat + of;
  const OwnMask& m = st.mask;
  const int64_t dp = padded(w.head_dim), words = dp / 2;
  const int query0 = w.lists.query_start[w.item.first_query], features = static_cast<int>(dp / 16);
  const int64_t fetch_rows = own_fetch_rows(m, st.fetch, 2, kGroup);
  const float factor = __builtin_fabsf(w.scale) * kLog2E;
  const auto rows_of = [&](const RowsIn& all) { return from_row(from_head(all, head, w.head_dim), query0); };
  const RowsIn q = rows_of(w.q), d_out = rows_of(w.d_out);
  if (st.dk) pack_pairs(q, m.queries, w.head_dim, st.q_pairs);
  if (st.dv) pack_pairs(d_out, m.queries, w.head_dim, st.d_out_pairs);
  for (int i = m.queries; i < 16 * m.stripes; ++i) st.lse[i] = st.delta[i] = 0;
  row_dots(d_out, rows_of(w.out), m.queries, w.head_dim, st.delta);
  convert_lse(w.lse + head * w.lse_stride + query0, m.queries, st.lse);
  Span chunk;
  for (; chunk.first < m.stripes; chunk.first = chunk.last) {
    chunk.last = chunk.first + own_chunk(m.stripes - chunk.first);
    const int first = 16 * chunk.first, end = m.queries < 16 * chunk.last ? m.queries : 16 * chunk.last;
    pack_lanes(from_row(q, first), end - first, w.head_dim, w.scale < 0, st.q_lanes);
    pack_lanes(from_row(d_out, first), end - first, w.head_dim, false, st.d_out_lanes);
    for (int g = 0; g * kGroup < m.keys; ++g) {
      const Span wanted = within(m.stripes_of_keys[g], chunk);
      if (wanted.first < wanted.last) {
        fetch_some(st.fetch, fetch_rows);
        const int at = 16 * (wanted.first - chunk.first);
        product<false>(kGroup, wanted.last - wanted.first, w.head_dim / 2, st.k + g * kGroup * words, words,
                       st.q_lanes + at, kLanes, st.scores + at, kLanes);
        product<false>(kGroup, wanted.last - wanted.first, w.head_dim / 2, st.v + g * kGroup * words, words,
                       st.d_out_lanes + at, kLanes, st.gradients + at, kLanes);
      }
      for (int s = chunk.first; s < chunk.last; ++s) {
        const int at = 16 * s - first;
        if (s >= wanted.first && s < wanted.last)
          own_soften_backward_bf16(st, g * kGroup, s, at, factor, w.scale);
        else  // within the span of a sum, perhaps
          for (int j = 0; j < kGroup; j += 2)
            store(bits_of(st.d_score_pairs + (g * kGroup + j) / 2 * kLanes + at), zero());
      }
    }
    own_add_to_keys_bf16(st, w, kv_head, chunk, of + 1 == w.repeat, fetch_rows);
    if (!w.dq.data) continue;
    const RowsOut dq = from_row(from_head(w.dq, head, w.head_dim), query0);
    for (int s = chunk.first; s < chunk.last; ++s)
      turn_pairs(st.d_score_pairs + 16 * s - first, m.keys_of_stripe[s],
                 st.d_score_rows + (16 * s - first) * kOwnWords);
    for (int i = first; i < end; i += kOwnSide) {
      const Span keys = own_keys_of(m, i);
      product_to(end - i < kOwnSide ? end - i : kOwnSide, features, (keys.last - keys.first + 1) / 2,
                 st.d_score_rows + (i - first) * kOwnWords + keys.first / 2, kOwnWords,
                 st.k_pairs + keys.first / 2 * dp, dp, nullptr, ToCaller{from_row(dq, i), w.head_dim});
    }
  }
}

static void backward_own_bf16(const OwnBackward& w) {
  begin_products();
  OwnBf16BackwardState st;
  place_own(st, w);
  make_own_mask(w.lists, w.item, kGroup, st.mask);
  const OwnMask& m = st.mask;
  const int key0 = w.lists.key_start[w.item.first_key];
  for (int g = w.item.first_head; g < w.item.last_head; ++g) {
    const auto rows_of = [&](const auto& all) { return from_row(from_head(all, g, w.head_dim), key0); };
    pack_words(rows_of(w.k), m.keys, w.head_dim, st.k);
    pack_words(rows_of(w.v), m.keys, w.head_dim, st.v);
    if (w.dq.data) pack_pairs(rows_of(w.k), m.keys, w.head_dim, st.k_pairs);
    for (bool& summed : st.summed) summed = false;
    for (int of = 0; of < w.repeat; ++of) {
      own_fetch(st.fetch, w, step_after(w.item, w.next, g, of, w.repeat));
      own_backward_head_bf16(st, w, g, of);
      fetch_rest(st.fetch);
    }
    for (int j = 0; j < m.keys; j += kOwnSide)  // seen by nobody
      if (!st.summed[j / kOwnSide])
        for (const RowsOut& out : {w.dk, w.dv})
          if (out.data)
            unpack(nullptr, 0, 0, m.keys - j < kOwnSide ? m.keys - j : kOwnSide, w.head_dim,
                   from_row(from_head(out, g, w.head_dim), key0 + j));
  }
  end_products();
}

}  // namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE
