// Samples of few rows (BackwardItem::own), whole, head by head, by one thread in its cache. Internal; for the units of
// one instruction set (see simd.h).
//
// As in attention_item.h queries are lanes. But a sample is not cut into the blocks of its plan: stripes of 16 queries
// pass over all of its keys two or three at a time, so that softmax is done once, sums stay in registers from the first
// key to the last and go straight to the caller's rows.
#pragma once

#include "kernels/cpu/attention_item.h"
#include "kernels/cpu/attention_own_steps.h"

namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE {

/// scores[key][query] of the stripes of a chunk; `rows` packed, with kSpareRows.
static void own_scores(const OwnMask& m, Span chunk, int head_dim, const float* rows, const float* lanes, float* out,
                       Fetch& fetch, int64_t fetch_rows) {
  const int64_t dp = padded(head_dim);
  for (int g = 0; g * kOwnGroup < m.keys; ++g) {
    const Span s = within(m.stripes_of_keys[g], chunk);
    if (s.first == s.last) continue;
    fetch_some(fetch, fetch_rows);
    const int at = 16 * (s.first - chunk.first);
    product<false>(kOwnGroup, s.last - s.first, head_dim, rows + g * kOwnGroup * dp, 1, dp, lanes + at, kLanes,
                   out + g * kOwnGroup * kLanes + at, kLanes);
  }
}

// ---------------------------------------------------------------------------------------------------------- forward

struct OwnForwardState {
  alignas(64) float lanes[kMaxHeadDim * kLanes];  // scale * log2(e) * q, transposed
  alignas(64) float tile[kOwnRows * kLanes];      // scores, then weights
  alignas(64) float keys[(kOwnRows + kSpareRows) * kMaxHeadDim];
  alignas(64) float values[kOwnRows * kMaxHeadDim];
  alignas(64) float inverse[kTileQueries];  // of the sums of weights
  OwnMask mask;
  Fetch fetch;
};

/// Scores to weights for a stripe of the mask; `tile` begins at its first query. Writes 16 inverse sums of weights and
/// `rows` log-sum-exps.
static void own_soften(const OwnMask& m, int stripe, float* tile, float* inverse, float* lse, int rows) {
  const Span keys = m.keys_of_stripe[stripe];
  const int full = m.full_to[stripe];
  const std::uint16_t* bits = m.bits[stripe];
  const F16 lowest = set1(-__builtin_inff());
  F16 high = lowest, high1 = lowest;
  int j = keys.first;
  for (; j + 1 < full; j += 2) {
    high = max(high, load(tile + j * kLanes));
    high1 = max(high1, load(tile + (j + 1) * kLanes));
  }
  if (j < full) high = max(high, load(tile + j * kLanes));
  for (j = full; j < keys.last; ++j) high = max(high, select(bits[j], load(tile + j * kLanes), lowest));
  high = max(high, high1);
  // A row whose scores all overflowed to -inf becomes NaN here.
  F16 weight = zero(), weight1 = zero();
  for (j = keys.first; j + 1 < full; j += 2) {
    const F16 p = exp2(sub(load(tile + j * kLanes), high)), p1 = exp2(sub(load(tile + (j + 1) * kLanes), high));
    store(tile + j * kLanes, p);
    store(tile + (j + 1) * kLanes, p1);
    weight = add(weight, p);
    weight1 = add(weight1, p1);
  }
  if (j < full) {
    const F16 p = exp2(sub(load(tile + j * kLanes), high));
    store(tile + j * kLanes, p);
    weight = add(weight, p);
  }
  for (j = full; j < keys.last; ++j) {
    const F16 p = select(bits[j], exp2(sub(load(tile + j * kLanes), high)), zero());
    store(tile + j * kLanes, p);
    weight = add(weight, p);
  }
  weight = add(weight, weight1);
  const std::uint32_t blind = equal(weight, zero());
  store(inverse, select(blind, zero(), div(set1(1.0f), weight)));
  const F16 value = mul(add(high, log2(weight)), set1(kLn2));
  store_part(lse, select(blind, lowest, value), rows);
}

template <class T> static void own_forward_head(OwnForwardState& st, const OwnForward& w, int head) {
  const OwnMask& m = st.mask;
  const int64_t dp = padded(w.head_dim);
  const int query0 = w.lists.query_start[w.item.first_query];
  const int64_t fetch_rows = own_fetch_rows(m, st.fetch, 1, kOwnGroup, (m.queries + kOwnGroup - 1) / kOwnGroup);
  const RowsIn q = from_head(w.q, head, w.head_dim);
  float* const lse = w.lse + head * w.lse_stride + query0;
  T* const out = static_cast<T*>(from_row(from_head(w.out, head, w.head_dim), query0).data);
  Span chunk;
  for (; chunk.first < m.stripes; chunk.first = chunk.last) {
    chunk.last = chunk.first + own_chunk(m.stripes - chunk.first);
    const int first = 16 * chunk.first,
              rows = m.queries - first < 16 * chunk.last - first ? m.queries - first : 16 * chunk.last - first;
    const RowsIn from = from_row(q, query0 + first);
    const float factor = w.scale * kLog2E;
    if (from.bf16)
      transpose_rows(static_cast<const std::uint16_t*>(from.data), from.stride, rows, w.head_dim, factor, st.lanes);
    else
      transpose_rows(static_cast<const float*>(from.data), from.stride, rows, w.head_dim, factor, st.lanes);
    own_scores(m, chunk, w.head_dim, st.keys, st.lanes, st.tile, st.fetch, fetch_rows);
    for (int s = chunk.first; s < chunk.last; ++s) {
      const int at = 16 * s - first;
      own_soften(m, s, st.tile + at, st.inverse + at, lse + 16 * s, rows - at);
    }
    for (int i = 0; i < rows; i += kOwnGroup) {
      const Span keys = m.keys_of_queries[(first + i) / kOwnGroup];
      const int count = rows - i < kOwnGroup ? rows - i : kOwnGroup;
      fetch_some(st.fetch, fetch_rows);
      product(count, static_cast<int>(dp / 16), keys.last - keys.first, st.tile + keys.first * kLanes + i, kLanes, 1,
              st.values + keys.first * dp, dp, FromZero{},
              ToScaledRows<T>{out + (first + i) * w.out.stride, w.out.stride, st.inverse + i, w.head_dim});
    }
  }
}

static void forward_own(const OwnForward& w) {
  OwnForwardState st;
  make_own_mask(w.lists, w.item, kOwnGroup, st.mask);
  const int key0 = w.lists.key_start[w.item.first_key];
  for (int g = w.item.first_head; g < w.item.last_head; ++g) {
    pack(from_row(from_head(w.k, g, w.head_dim), key0), st.mask.keys, w.head_dim, st.keys);
    pack(from_row(from_head(w.v, g, w.head_dim), key0), st.mask.keys, w.head_dim, st.values);
    for (int of = 0; of < w.repeat; ++of) {
      own_fetch(st.fetch, w, step_after(w.item, w.next, g, of, w.repeat));
      if (w.out.bf16)
        own_forward_head<std::uint16_t>(st, w, g * w.repeat + of);
      else
        own_forward_head<float>(st, w, g * w.repeat + of);
      fetch_rest(st.fetch);
    }
  }
}

// --------------------------------------------------------------------------------------------------------- backward

struct OwnBackwardState {
  alignas(64) float q_lanes[kMaxHeadDim * kLanes];  // of a chunk; scaled as in the forward
  alignas(64) float d_out_lanes[kMaxHeadDim * kLanes];
  alignas(64) float weights[kOwnRows * kLanes];    // p
  alignas(64) float gradients[kOwnRows * kLanes];  // of p, then of the score times scale
  OwnMask mask;
  bool summed[kOwnGroups];  // groups of keys whose gradients have something in them
  Fetch fetch;
  float *k, *v, *q, *d_out, *dk, *dv, *lse, *delta;
};

/// p from scores, and the gradient of the scores (times scale) from that of p.
static void own_soften_backward(const OwnMask& m, int stripe, float* weights, float* gradients, F16 lse, F16 delta,
                                F16 scale) {
  const Span keys = m.keys_of_stripe[stripe];
  const std::uint16_t* bits = m.bits[stripe];
  const int full = m.full_to[stripe];
  for (int j = keys.first; j < full; ++j) {
    float *p_at = weights + j * kLanes, *g_at = gradients + j * kLanes;
    const F16 p = exp2(sub(load(p_at), lse));
    store(g_at, mul(mul(p, scale), sub(load(g_at), delta)));
    store(p_at, p);
  }
  for (int j = full; j < keys.last; ++j) {
    float *p_at = weights + j * kLanes, *g_at = gradients + j * kLanes;
    const F16 p = exp2(sub(load(p_at), lse));
    store(g_at, select(bits[j], mul(mul(p, scale), sub(load(g_at), delta)), zero()));
    store(p_at, select(bits[j], p, zero()));
  }
}

/// Adds p^T dO and dS^T Q of a chunk to dV and dK. `last`: of all query heads; what is complete goes to the caller.
static void own_add_to_keys(OwnBackwardState& st, const OwnBackward& w, int kv_head, Span chunk, bool last,
                            int64_t fetch_rows) {
  const OwnMask& m = st.mask;
  const int64_t dp = padded(w.head_dim);
  const int stripes = static_cast<int>(dp / 16), first = 16 * chunk.first;
  const int key0 = w.lists.key_start[w.item.first_key];
  for (int g = 0; g * kOwnGroup < m.keys; ++g) {
    const Span all = m.queries_of_keys[g], rows = within(all, {first, 16 * chunk.last});
    if (rows.first == rows.last) continue;
    fetch_some(st.fetch, fetch_rows);
    const int j = g * kOwnGroup, count = m.keys - j < kOwnGroup ? m.keys - j : kOwnGroup;
    const int64_t from = j * kLanes + rows.first - first, n = rows.last - rows.first;
    const auto add_to = [&](const float* left, const float* right, float* sums, const RowsOut& out) {
      if (!sums) return;
      float* const to = sums + j * dp;
      const auto add = [&](auto begin, auto end) {
        product(count, stripes, n, left + from, 1, kLanes, right + rows.first * dp, dp, begin, end);
      };
      if (last && all.last <= 16 * chunk.last) {
        const ToCaller end{from_row(from_head(out, kv_head, w.head_dim), key0 + j), w.head_dim};
        if (st.summed[g])
          add(FromRows{to, dp}, end);
        else
          add(FromZero{}, end);
      } else if (st.summed[g]) {
        add(FromRows{to, dp}, ToRows{to, dp});
      } else {
        add(FromZero{}, ToRows{to, dp});
      }
    };
    add_to(st.weights, st.d_out, st.dv, w.dv);
    add_to(st.gradients, st.q, st.dk, w.dk);
    st.summed[g] = true;
  }
}

static void own_backward_head(OwnBackwardState& st, const OwnBackward& w, int kv_head, int of) {
  const int head = kv_head * w.repeat + of;
  const OwnMask& m = st.mask;
  const int64_t dp = padded(w.head_dim);
  const int query0 = w.lists.query_start[w.item.first_query], stripes = static_cast<int>(dp / 16);
  const int64_t fetch_rows = own_fetch_rows(m, st.fetch, 3, kOwnGroup);
  const auto rows_of = [&](const RowsIn& all) { return from_row(from_head(all, head, w.head_dim), query0); };
  pack(rows_of(w.q), m.queries, w.head_dim, st.q);
  pack(rows_of(w.d_out), m.queries, w.head_dim, st.d_out);
  row_dots(rows_of(w.d_out), rows_of(w.out), m.queries, w.head_dim, st.delta);
  convert_lse(w.lse + head * w.lse_stride + query0, m.queries, st.lse);
  Span chunk;
  for (; chunk.first < m.stripes; chunk.first = chunk.last) {
    chunk.last = chunk.first + own_chunk(m.stripes - chunk.first);
    const int first = 16 * chunk.first,
              rows = m.queries - first < 16 * chunk.last - first ? m.queries - first : 16 * chunk.last - first;
    transpose_rows(st.q + first * dp, dp, rows, w.head_dim, w.scale * kLog2E, st.q_lanes);
    transpose_rows(st.d_out + first * dp, dp, rows, w.head_dim, 1.0f, st.d_out_lanes);
    own_scores(m, chunk, w.head_dim, st.k, st.q_lanes, st.weights, st.fetch, fetch_rows);
    own_scores(m, chunk, w.head_dim, st.v, st.d_out_lanes, st.gradients, st.fetch, fetch_rows);
    for (int s = chunk.first; s < chunk.last; ++s) {
      const int at = 16 * s - first;
      own_soften_backward(m, s, st.weights + at, st.gradients + at, load_part(st.lse + 16 * s, rows - at),
                          load_part(st.delta + 16 * s, rows - at), set1(w.scale));
    }
    own_add_to_keys(st, w, kv_head, chunk, of + 1 == w.repeat, fetch_rows);
    if (!w.dq.data) continue;
    const RowsOut dq = from_row(from_head(w.dq, head, w.head_dim), query0);
    for (int i = 0; i < rows; i += kOwnGroup) {
      const Span keys = m.keys_of_queries[(first + i) / kOwnGroup];
      const int count = rows - i < kOwnGroup ? rows - i : kOwnGroup;
      product(count, stripes, keys.last - keys.first, st.gradients + keys.first * kLanes + i, kLanes, 1,
              st.k + keys.first * dp, dp, FromZero{}, ToCaller{from_row(dq, first + i), w.head_dim});
    }
  }
}

static void backward_own(const OwnBackward& w) {
  OwnBackwardState st;
  const int64_t dp = padded(w.head_dim), matrix = (kOwnRows + kSpareRows) * dp;
  st.k = w.scratch;
  st.v = st.k + matrix;
  st.q = st.v + matrix;
  st.d_out = st.q + matrix;
  st.dk = w.dk.data ? st.d_out + matrix : nullptr;
  st.dv = w.dv.data ? st.d_out + 2 * matrix : nullptr;
  st.lse = st.d_out + 3 * matrix;
  st.delta = st.lse + kOwnRows;
  make_own_mask(w.lists, w.item, kOwnGroup, st.mask);
  const OwnMask& m = st.mask;
  const int key0 = w.lists.key_start[w.item.first_key];
  for (int g = w.item.first_head; g < w.item.last_head; ++g) {
    const auto rows_of = [&](const auto& all) { return from_row(from_head(all, g, w.head_dim), key0); };
    pack(rows_of(w.k), m.keys, w.head_dim, st.k);
    pack(rows_of(w.v), m.keys, w.head_dim, st.v);
    for (bool& summed : st.summed) summed = false;
    for (int of = 0; of < w.repeat; ++of) {
      own_fetch(st.fetch, w, step_after(w.item, w.next, g, of, w.repeat));
      own_backward_head(st, w, g, of);
      fetch_rest(st.fetch);
    }
    for (int j = 0; j < m.keys; j += kOwnGroup)  // seen by nobody
      if (!st.summed[j / kOwnGroup])
        for (const RowsOut& out : {w.dk, w.dv})
          if (out.data)
            unpack(nullptr, 0, 0, m.keys - j < kOwnGroup ? m.keys - j : kOwnGroup, w.head_dim,
                   from_row(from_head(out, g, w.head_dim), key0 + j));
  }
}

static const AttentionTiles kTiles = {forward_item, forward_own, backward_item, backward_own,
                                      pack,         unpack,      row_dots,      convert_lse};

}  // namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE
