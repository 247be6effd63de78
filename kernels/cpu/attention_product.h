// Small matrix products whose operands lie in cache: the inner loops of attention_item.h. Internal; for the units of
// one instruction set (see simd.h).
#pragma once

#include "kernels/cpu/simd.h"

namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE {

using namespace mmt::simd::MMT_SIMD_NAMESPACE;
using std::int64_t;

// Registers: kRows x kStripes sums, kStripes of b and one of a.
#if defined(__AVX512F__)
inline constexpr int kRows = 8, kStripes = 3;
#elif defined(__AVX2__)
inline constexpr int kRows = 4, kStripes = 1;
#else
inline constexpr int kRows = 2, kStripes = 1;
#endif

// What a sum begins with, and where it goes: by row and stripe of the result.
struct FromZero {
  inline __attribute__((always_inline)) F16 operator()(int, int) const { return zero(); }
};
struct FromRows {
  const float* c;
  int64_t cs;
  inline __attribute__((always_inline)) F16 operator()(int r, int v) const { return load(c + r * cs + 16 * v); }
};
struct ToRows {
  float* c;
  int64_t cs;
  inline __attribute__((always_inline)) void operator()(int r, int v, F16 x) const { store(c + r * cs + 16 * v, x); }
};
/// Rows r0 .. and stripes v0 .. of a product: to(row, stripe, from(row, stripe) + sum over t < n of a(t, row) *
/// b (t, stripe)); a(t, r) = a[t * at + r * ar].
template <int R, int V, class From, class To> static void block(int64_t n, const float* a, int64_t at, int64_t ar,
                                                                const float* b, int64_t bs, int r0, int v0, From from,
                                                                To to) {
  F16 sum[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sum[r][v] = from(r0 + r, v0 + v);
  for (int64_t t = 0; t < n; ++t) {
    F16 right[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) right[v] = load(b + t * bs + 16 * v);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F16 left = set1(a[t * at + r * ar]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[r][v] = fma(left, right[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) to(r0 + r, v0 + v, sum[r][v]);
}

template <int R, class From, class To> static void rows_of_stripes(int stripes, int64_t n, const float* a, int64_t at,
                                                                   int64_t ar, const float* b, int64_t bs, int r0,
                                                                   From from, To to) {
  for (int v = 0, now = 0; v < stripes; v += now) {
    // Four stripes as 2 + 2 rather than 3 + 1: one stripe alone has too few sums in flight.
    const int left = stripes - v;
    now = left == 4 && kStripes == 3 ? 2 : left < kStripes ? left : kStripes;
    if constexpr (kStripes >= 3) {
      if (now == 3) block<R, 3>(n, a, at, ar, b + 16 * v, bs, r0, v, from, to);
      if (now == 2) block<R, 2>(n, a, at, ar, b + 16 * v, bs, r0, v, from, to);
    }
    if (now == 1) block<R, 1>(n, a, at, ar, b + 16 * v, bs, r0, v, from, to);
  }
}

/// Any number of rows. The order of a row's sum does not depend on the cut.
template <class From, class To> static void product(int rows, int stripes, int64_t n, const float* a, int64_t at,
                                                    int64_t ar, const float* b, int64_t bs, From from, To to) {
  int r = 0;
  for (; rows - r >= kRows; r += kRows) rows_of_stripes<kRows>(stripes, n, a + r * ar, at, ar, b, bs, r, from, to);
  if constexpr (kRows >= 8) {
    if (rows - r >= 4) {
      rows_of_stripes<4>(stripes, n, a + r * ar, at, ar, b, bs, r, from, to);
      r += 4;
    }
  }
  if constexpr (kRows >= 4) {
    if (rows - r >= 2) {
      rows_of_stripes<2>(stripes, n, a + r * ar, at, ar, b, bs, r, from, to);
      r += 2;
    }
  }
  if (r < rows) rows_of_stripes<1>(stripes, n, a + r * ar, at, ar, b, bs, r, from, to);
}

/// c (rows x 16 stripes) = or += the product.
template <bool kAdd> static void product(int rows, int stripes, int64_t n, const float* a, int64_t at, int64_t ar,
                                         const float* b, int64_t bs, float* c, int64_t cs) {
  if constexpr (kAdd)
    product(rows, stripes, n, a, at, ar, b, bs, FromRows{c, cs}, ToRows{c, cs});
  else
    product(rows, stripes, n, a, at, ar, b, bs, FromZero{}, ToRows{c, cs});
}

}  // namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE
