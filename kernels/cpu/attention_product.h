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

/// c (rows x 16 stripes) = or += sum over t < n of a(t, row) * b (t, stripe); a(t, r) = a[t * at + r * ar].
template <int R, int V, bool kAdd>
static void block(int64_t n, const float* a, int64_t at, int64_t ar, const float* b, int64_t bs, float* c, int64_t cs) {
  F16 sum[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sum[r][v] = kAdd ? load(c + r * cs + 16 * v) : zero();
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
    for (int v = 0; v < V; ++v) store(c + r * cs + 16 * v, sum[r][v]);
}

template <int R, bool kAdd> static void rows_of_stripes(int stripes, int64_t n, const float* a, int64_t at, int64_t ar,
                                                        const float* b, int64_t bs, float* c, int64_t cs) {
  while (stripes > 0) {
    // Four stripes as 2 + 2 rather than 3 + 1: one stripe alone has too few sums in flight.
    const int now = stripes == 4 && kStripes == 3 ? 2 : stripes < kStripes ? stripes : kStripes;
    if constexpr (kStripes >= 3) {
      if (now == 3) block<R, 3, kAdd>(n, a, at, ar, b, bs, c, cs);
      if (now == 2) block<R, 2, kAdd>(n, a, at, ar, b, bs, c, cs);
    }
    if (now == 1) block<R, 1, kAdd>(n, a, at, ar, b, bs, c, cs);
    b += 16 * now;
    c += 16 * now;
    stripes -= now;
  }
}

/// Any number of rows. The order of a row's sum does not depend on the cut.
template <bool kAdd> static void product(int rows, int stripes, int64_t n, const float* a, int64_t at, int64_t ar,
                                         const float* b, int64_t bs, float* c, int64_t cs) {
  for (; rows >= kRows; rows -= kRows, a += kRows * ar, c += kRows * cs)
    rows_of_stripes<kRows, kAdd>(stripes, n, a, at, ar, b, bs, c, cs);
  if constexpr (kRows >= 8) {
    if (rows & 4) {
      rows_of_stripes<4, kAdd>(stripes, n, a, at, ar, b, bs, c, cs);
      a += 4 * ar;
      c += 4 * cs;
    }
  }
  if constexpr (kRows >= 4) {
    if (rows & 2) {
      rows_of_stripes<2, kAdd>(stripes, n, a, at, ar, b, bs, c, cs);
      a += 2 * ar;
      c += 2 * cs;
    }
  }
  if (rows & 1) rows_of_stripes<1, kAdd>(stripes, n, a, at, ar, b, bs, c, cs);
}

}  // namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE
