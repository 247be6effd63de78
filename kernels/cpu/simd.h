// Sixteen floats at a time, in the registers of the instruction set for which the including unit is compiled: one
// 512-bit, two 256-bit or four 128-bit registers. Include it only in units named *_avx512.cpp, *_avx2.cpp or
// *_portable.cpp (and headers made for them): everything here lives in a namespace of its instruction set and is always
// inlined, so that no unit's code can be picked for another's. Such units call no inline function of the standard
// library or of core either, for the same reason.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
// g++ 12 warns about the "undefined" operands inside its own intrinsics (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#define MMT_SIMD_INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#define MMT_SIMD_NAMESPACE avx512
#include "kernels/cpu/simd_avx512.h"
#elif defined(__AVX2__)
#define MMT_SIMD_NAMESPACE avx2
#include "kernels/cpu/simd_avx2.h"
#else
#define MMT_SIMD_NAMESPACE portable
#include "kernels/cpu/simd_portable.h"
#endif

namespace mmt::simd::MMT_SIMD_NAMESPACE {

/// 2^x within 2e-7 relative (range reduction to [-1/2, 1/2], minimax polynomial of degree 5, exactly 1 at 0). Below
/// -126 the result is 0, for x = -inf too; NaN and +inf give NaN.
MMT_SIMD_INLINE F16 exp2(F16 x) {
  const F16 whole = round(x);
  const F16 f = sub(x, whole);
  F16 p = set1(1.3264727e-3f);
  p = fma(p, f, set1(9.6715126e-3f));
  p = fma(p, f, set1(5.5507337e-2f));
  p = fma(p, f, set1(2.4022242e-1f));
  p = fma(p, f, set1(6.9314698e-1f));
  p = fma(p, f, set1(1.0f));
  return scale2(p, whole, x);
}

/// log2(x) for normal positive x within 2e-7 absolute + relative; +inf and NaN give NaN, 0 gives a finite value.
MMT_SIMD_INLINE F16 log2(F16 x) {
  F16 exponent;
  const F16 m = split(x, exponent);  // x = m 2^exponent, m in [sqrt(1/2), sqrt(2))
  const F16 s = div(sub(m, set1(1.0f)), add(m, set1(1.0f)));
  const F16 s2 = mul(s, s);
  F16 p = set1(0.32059890f);  // 2 / (k ln 2) for k = 9, 7, 5, 3, 1: the series of log((1 + s) / (1 - s))
  p = fma(p, s2, set1(0.41219859f));
  p = fma(p, s2, set1(0.57707802f));
  p = fma(p, s2, set1(0.96179669f));
  p = fma(p, s2, set1(2.8853901f));
  return add(fma(p, s, exponent), sub(x, x));
}

/// The lanes' sum in a fixed order that is the same for every instruction set.
MMT_SIMD_INLINE float sum(F16 x) {
  alignas(64) float lane[16];
  store(lane, x);
  for (int step = 8; step > 0; step /= 2)
    for (int i = 0; i < step; ++i) lane[i] += lane[i + step];
  return lane[0];
}

#if !defined(__AVX512F__)  // which has masks for it
/// The first n (0 .. 16) lanes; the others are zero and their memory is not touched.
MMT_SIMD_INLINE F16 load_part(const float* p, int n) {
  if (n >= 16) return load(p);
  alignas(64) float lane[16] = {};
  std::memcpy(lane, p, sizeof(float) * static_cast<std::size_t>(n));
  return load(lane);
}
MMT_SIMD_INLINE void store_part(float* p, F16 x, int n) {
  if (n >= 16) return store(p, x);
  alignas(64) float lane[16];
  store(lane, x);
  std::memcpy(p, lane, sizeof(float) * static_cast<std::size_t>(n));
}
/// bf16 as its bits.
MMT_SIMD_INLINE F16 load_part(const std::uint16_t* p, int n) {
  if (n >= 16) return load(p);
  alignas(64) std::uint16_t lane[16] = {};
  std::memcpy(lane, p, sizeof(std::uint16_t) * static_cast<std::size_t>(n));
  return load(lane);
}
MMT_SIMD_INLINE void store_part(std::uint16_t* p, F16 x, int n) {
  if (n >= 16) return store(p, x);
  alignas(64) std::uint16_t lane[16];
  store(lane, x);
  std::memcpy(p, lane, sizeof(std::uint16_t) * static_cast<std::size_t>(n));
}
#endif

}  // namespace mmt::simd::MMT_SIMD_NAMESPACE
