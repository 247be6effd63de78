// The products of attention_bf16_item.h by vdpbf16ps. Internal; for the unit of AVX-512 with BF16.
#pragma once

#include "kernels/cpu/simd.h"

namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE {

using std::int64_t;
using std::uint32_t;

inline constexpr int kGroup = 8;  // keys that are computed together
static inline void begin_products() {}
static inline void end_products() {}

/// c (R rows x 16 V lanes) = or += sum over t < pairs of a[row][t] . b[t][lane], two products to a word.
template <int R, int V, bool kAdd>
static void dot_block(int pairs, const uint32_t* a, int64_t as, const uint32_t* b, int64_t bs, float* c, int64_t cs) {
  __m512 sum[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sum[r][v] = kAdd ? _mm512_loadu_ps(c + r * cs + 16 * v) : _mm512_setzero_ps();
  for (int t = 0; t < pairs; ++t) {
    __m512bh right[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) right[v] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b + t * bs + 16 * v));
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const auto left = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(a[r * as + t])));
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], left, right[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) _mm512_storeu_ps(c + r * cs + 16 * v, sum[r][v]);
}

template <int R, bool kAdd> static void dot_rows(int stripes, int pairs, const uint32_t* a, int64_t as,
                                                 const uint32_t* b, int64_t bs, float* c, int64_t cs) {
  while (stripes > 0) {
    // Four stripes as 2 + 2 rather than 3 + 1: one stripe alone has few sums in flight.
    const int now = stripes == 4 ? 2 : stripes < 3 ? stripes : 3;
    if (now == 3) dot_block<R, 3, kAdd>(pairs, a, as, b, bs, c, cs);
    if (now == 2) dot_block<R, 2, kAdd>(pairs, a, as, b, bs, c, cs);
    if (now == 1) dot_block<R, 1, kAdd>(pairs, a, as, b, bs, c, cs);
    b += 16 * now;
    c += 16 * now;
    stripes -= now;
  }
}

/// Any number of rows. The order of a sum does not depend on the cut.
template <bool kAdd> static void product(int rows, int stripes, int pairs, const uint32_t* a, int64_t as,
                                         const uint32_t* b, int64_t bs, float* c, int64_t cs) {
  for (; rows >= 8; rows -= 8, a += 8 * as, c += 8 * cs) dot_rows<8, kAdd>(stripes, pairs, a, as, b, bs, c, cs);
  if (rows & 4) {
    dot_rows<4, kAdd>(stripes, pairs, a, as, b, bs, c, cs);
    a += 4 * as;
    c += 4 * cs;
  }
  if (rows & 2) {
    dot_rows<2, kAdd>(stripes, pairs, a, as, b, bs, c, cs);
    a += 2 * as;
    c += 2 * cs;
  }
  if (rows & 1) dot_rows<1, kAdd>(stripes, pairs, a, as, b, bs, c, cs);
}

}  // namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE
