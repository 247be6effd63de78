// The products of attention_bf16_item.h by vdpbf16ps. Internal; for the unit of AVX-512 with BF16.
#pragma once

#include "kernels/cpu/simd.h"

namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE {

using std::int64_t;
using std::uint32_t;

inline constexpr int kGroup = 8;  // keys that are computed together
static inline void begin_products() {}
static inline void end_products() {}

struct FromZero {
  inline __attribute__((always_inline)) __m512 operator()(int, int) const { return _mm512_setzero_ps(); }
};
struct FromRows {
  const float* c;
  int64_t cs;
  inline __attribute__((always_inline)) __m512 operator()(int r, int v) const {
    return _mm512_loadu_ps(c + r * cs + 16 * v);
  }
};
struct ToRows {
  float* c;
  int64_t cs;
  inline __attribute__((always_inline)) void operator()(int r, int v, simd::MMT_SIMD_NAMESPACE::F16 x) const {
    _mm512_storeu_ps(c + r * cs + 16 * v, x.a);
  }
};

/// to(row, stripe, from(row, stripe) + sum over t < pairs of a[row][t] . b[t][lane]), two products to a word; rows r0
/// .. and stripes v0 .. of the result.
template <int R, int V, class From, class To> static void dot_block(int pairs, const uint32_t* a, int64_t as,
                                                                    const uint32_t* b, int64_t bs, int r0, int v0,
                                                                    From from, To to) {
  __m512 sum[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sum[r][v] = from(r0 + r, v0 + v);
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
    for (int v = 0; v < V; ++v) to(r0 + r, v0 + v, simd::MMT_SIMD_NAMESPACE::F16{sum[r][v]});
}

template <int R, class From, class To> static void dot_rows(int stripes, int pairs, const uint32_t* a, int64_t as,
                                                            const uint32_t* b, int64_t bs, int r0, From from, To to) {
  for (int v = 0, now = 0; v < stripes; v += now) {
    // Four stripes as 2 + 2 rather than 3 + 1: one stripe alone has few sums in flight.
    const int left = stripes - v;
    now = left == 4 ? 2 : left < 3 ? left : 3;
    if (now == 3) dot_block<R, 3>(pairs, a, as, b + 16 * v, bs, r0, v, from, to);
    if (now == 2) dot_block<R, 2>(pairs, a, as, b + 16 * v, bs, r0, v, from, to);
    if (now == 1) dot_block<R, 1>(pairs, a, as, b + 16 * v, bs, r0, v, from, to);
  }
}

/// Any number of rows. The order of a sum does not depend on the cut.
template <class From, class To> static void product_with(int rows, int stripes, int pairs, const uint32_t* a,
                                                         int64_t as, const uint32_t* b, int64_t bs, From from, To to) {
  int r = 0;
  for (; rows - r >= 8; r += 8) dot_rows<8>(stripes, pairs, a + r * as, as, b, bs, r, from, to);
  if (rows - r >= 4) {
    dot_rows<4>(stripes, pairs, a + r * as, as, b, bs, r, from, to);
    r += 4;
  }
  if (rows - r >= 2) {
    dot_rows<2>(stripes, pairs, a + r * as, as, b, bs, r, from, to);
    r += 2;
  }
  if (r < rows) dot_rows<1>(stripes, pairs, a + r * as, as, b, bs, r, from, to);
}

/// c (rows x 16 stripes) = or += the product.
template <bool kAdd> static void product(int rows, int stripes, int pairs, const uint32_t* a, int64_t as,
                                         const uint32_t* b, int64_t bs, float* c, int64_t cs) {
  if constexpr (kAdd)
    product_with(rows, stripes, pairs, a, as, b, bs, FromRows{c, cs}, ToRows{c, cs});
  else
    product_with(rows, stripes, pairs, a, as, b, bs, FromZero{}, ToRows{c, cs});
}
/// to(row, stripe, sum): the product, added to what `begin` holds (rows of bs floats) or to zero where it is null.
template <class To> static void product_to(int rows, int stripes, int pairs, const uint32_t* a, int64_t as,
                                           const uint32_t* b, int64_t bs, float* begin, To to) {
  if (begin)
    product_with(rows, stripes, pairs, a, as, b, bs, FromRows{begin, bs}, to);
  else
    product_with(rows, stripes, pairs, a, as, b, bs, FromZero{}, to);
}

}  // namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE
