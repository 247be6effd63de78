// Vectors of f32 for one instruction set. Included by the units cpu/inner_<isa>.cpp alone, each of which defines
// MMT_VEC_NS (its namespace), MMT_VEC_WIDTH (floats in a register) and, where it has AVX512_BF16, MMT_VEC_BF16 first:
// the linker must never take code that one unit compiled for its instruction set as the definition for all. Hence no
// std templates and only inlined functions here. GCC's vector types carry the arithmetic; comparisons select with NaN
// as "false".
#pragma once

#include "core/dtype.h"

#include <immintrin.h>

#include <cstdint>

#define MMT_INLINE __attribute__((always_inline)) inline
#define MMT_INLINE_LAMBDA __attribute__((always_inline))

namespace mmt::cpu::MMT_VEC_NS {

inline constexpr int kWidth = MMT_VEC_WIDTH;

typedef float F __attribute__((vector_size(kWidth * 4)));
typedef std::int32_t I __attribute__((vector_size(kWidth * 4)));
typedef std::uint32_t U __attribute__((vector_size(kWidth * 4)));
typedef std::uint16_t H __attribute__((vector_size(kWidth * 2)));
inline constexpr int kHalf = kWidth / 2;
typedef double D __attribute__((vector_size(kHalf * 8)));  // as many f64 as a register holds
typedef float FHalf __attribute__((vector_size(kHalf * 4)));
typedef std::uint16_t HHalf __attribute__((vector_size(kHalf * 2)));
typedef std::uint32_t UHalf __attribute__((vector_size(kHalf * 4)));

// The same without an alignment, for memory.
typedef float FMem __attribute__((vector_size(kWidth * 4), aligned(4), may_alias));
typedef std::uint32_t UMem __attribute__((vector_size(kWidth * 4), aligned(2), may_alias));
typedef std::uint16_t HMem __attribute__((vector_size(kWidth * 2), aligned(2), may_alias));
typedef float FHalfMem __attribute__((vector_size(kHalf * 4), aligned(4), may_alias));
typedef std::uint16_t HHalfMem __attribute__((vector_size(kHalf * 2), aligned(2), may_alias));

MMT_INLINE F splat(float x) { return x - F{}; }
MMT_INLINE U bits_of(F x) { return reinterpret_cast<U>(x); }
MMT_INLINE F from_bits(U x) { return reinterpret_cast<F>(x); }

// Width changes between 16 and 32 bits. (GCC 12 splits the generic conversion of 512-bit vectors into halves; the
// zero-masked forms because it warns about the others' undefined register.)
#if MMT_VEC_WIDTH == 16
MMT_INLINE U to_32(H h) {
  return reinterpret_cast<U>(_mm512_maskz_cvtepu16_epi32(0xffff, reinterpret_cast<__m256i>(h)));
}
MMT_INLINE H to_16(U u) {
  return reinterpret_cast<H>(_mm512_maskz_cvtepi32_epi16(0xffff, reinterpret_cast<__m512i>(u)));
}
#else
MMT_INLINE U to_32(H h) { return __builtin_convertvector(h, U); }
MMT_INLINE H to_16(U u) { return __builtin_convertvector(u, H); }
#endif

MMT_INLINE F widen(H h) { return from_bits(to_32(h) << 16); }
/// To bf16, nearest even; NaN stays NaN: the bits of bf16's own constructor.
MMT_INLINE H narrow_exactly(F x) {
  const U u = bits_of(x), upper = u >> 16;
  const U rounded = (u + 0x7fffu + (upper & 1u)) >> 16;
  return to_16(x == x ? rounded : (upper | 0x40u));
}
/// The same for activations and their gradients: the instruction of AVX512_BF16 takes subnormal numbers (below 1.2e-38)
/// for zero.
MMT_INLINE H narrow(F x) {
#ifdef MMT_VEC_BF16
  return reinterpret_cast<H>(_mm512_maskz_cvtneps_pbh(0xffff, reinterpret_cast<__m512>(x)));
#else
  return narrow_exactly(x);
#endif
}

MMT_INLINE F load(const float* p) { return *reinterpret_cast<const FMem*>(p); }
MMT_INLINE F load(const bf16* p) { return widen(*reinterpret_cast<const HMem*>(p)); }
/// kHalf elements in f64.
MMT_INLINE D load_f64(const float* p) { return __builtin_convertvector(*reinterpret_cast<const FHalfMem*>(p), D); }
MMT_INLINE D load_f64(const bf16* p) {
  const UHalf wide = __builtin_convertvector(*reinterpret_cast<const HHalfMem*>(p), UHalf) << 16;
  return __builtin_convertvector(reinterpret_cast<FHalf>(wide), D);
}
MMT_INLINE double scalar_f64(const float* p) { return *p; }
MMT_INLINE double scalar_f64(const bf16* p) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(p->bits) << 16);
}
MMT_INLINE void store(float* p, F x) { *reinterpret_cast<FMem*>(p) = x; }
MMT_INLINE void store(bf16* p, F x) { *reinterpret_cast<HMem*>(p) = narrow(x); }

// The first n < kWidth elements; the other lanes are zero, or are not written.
#if MMT_VEC_WIDTH == 16
MMT_INLINE F load_n(const float* p, int n) {
  return reinterpret_cast<F>(_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p));
}
MMT_INLINE F load_n(const bf16* p, int n) {
  return widen(reinterpret_cast<H>(_mm256_maskz_loadu_epi16(static_cast<__mmask16>((1u << n) - 1), p)));
}
MMT_INLINE void store_n(float* p, F x, int n) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), reinterpret_cast<__m512>(x));
}
MMT_INLINE void store_n(bf16* p, H h, int n) {
  _mm256_mask_storeu_epi16(p, static_cast<__mmask16>((1u << n) - 1), reinterpret_cast<__m256i>(h));
}
#else
MMT_INLINE F load_n(const float* p, int n) {
  F x{};
  for (int i = 0; i < n; ++i) x[i] = p[i];
  return x;
}
MMT_INLINE F load_n(const bf16* p, int n) {
  H x{};
  for (int i = 0; i < n; ++i) x[i] = p[i].bits;
  return widen(x);
}
MMT_INLINE void store_n(float* p, F x, int n) {
  for (int i = 0; i < n; ++i) p[i] = x[i];
}
MMT_INLINE void store_n(bf16* p, H h, int n) {
  for (int i = 0; i < n; ++i) p[i].bits = h[i];
}
#endif
MMT_INLINE void store(bf16* p, H h) { *reinterpret_cast<HMem*>(p) = h; }
MMT_INLINE void store_n(bf16* p, F x, int n) { store_n(p, narrow(x), n); }

// max, min: b where either is NaN.
#if MMT_VEC_WIDTH == 16
MMT_INLINE __m512 raw(F x) { return reinterpret_cast<__m512>(x); }
MMT_INLINE F sqrt(F x) { return reinterpret_cast<F>(_mm512_maskz_sqrt_ps(0xffff, raw(x))); }
MMT_INLINE F max(F a, F b) { return reinterpret_cast<F>(_mm512_maskz_max_ps(0xffff, raw(a), raw(b))); }
MMT_INLINE F min(F a, F b) { return reinterpret_cast<F>(_mm512_maskz_min_ps(0xffff, raw(a), raw(b))); }
#elif MMT_VEC_WIDTH == 8
MMT_INLINE __m256 raw(F x) { return reinterpret_cast<__m256>(x); }
MMT_INLINE F sqrt(F x) { return reinterpret_cast<F>(_mm256_sqrt_ps(raw(x))); }
MMT_INLINE F max(F a, F b) { return reinterpret_cast<F>(_mm256_max_ps(raw(a), raw(b))); }
MMT_INLINE F min(F a, F b) { return reinterpret_cast<F>(_mm256_min_ps(raw(a), raw(b))); }
#else
MMT_INLINE __m128 raw(F x) { return reinterpret_cast<__m128>(x); }
MMT_INLINE F sqrt(F x) { return reinterpret_cast<F>(_mm_sqrt_ps(raw(x))); }
MMT_INLINE F max(F a, F b) { return reinterpret_cast<F>(_mm_max_ps(raw(a), raw(b))); }
MMT_INLINE F min(F a, F b) { return reinterpret_cast<F>(_mm_min_ps(raw(a), raw(b))); }
#endif

MMT_INLINE F abs(F x) { return from_bits(bits_of(x) & 0x7fffffffu); }

// Across the lanes, in a fixed order (halves, quarters, ...).
typedef float F4 __attribute__((vector_size(16)));
typedef double D2 __attribute__((vector_size(16)));
MMT_INLINE float sum_lanes_of(F4 x) {
  const F4 halves = x + __builtin_shufflevector(x, x, 2, 3, 2, 3);
  return halves[0] + halves[1];
}
MMT_INLINE double sum_lanes_of(D2 x) { return x[0] + x[1]; }
#if MMT_VEC_WIDTH >= 8
typedef float F8 __attribute__((vector_size(32)));
typedef double D4 __attribute__((vector_size(32)));
MMT_INLINE float sum_lanes_of(F8 x) {
  return sum_lanes_of(__builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7));
}
MMT_INLINE double sum_lanes_of(D4 x) {
  return sum_lanes_of(__builtin_shufflevector(x, x, 0, 1) + __builtin_shufflevector(x, x, 2, 3));
}
#endif
#if MMT_VEC_WIDTH >= 16
typedef double D8 __attribute__((vector_size(64)));
MMT_INLINE float sum_lanes_of(F x) {
  return sum_lanes_of(__builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
                      __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15));
}
MMT_INLINE double sum_lanes_of(D8 x) {
  return sum_lanes_of(__builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7));
}
#endif
MMT_INLINE float sum_lanes(F x) { return sum_lanes_of(x); }
MMT_INLINE double sum_lanes(D x) { return sum_lanes_of(x); }
MMT_INLINE float max_lanes(F x) {
  float v[kWidth];
  __builtin_memcpy(v, &x, sizeof v);
  for (int half = kWidth / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) v[i] = v[i + half] > v[i] ? v[i + half] : v[i];
  return v[0];
}

/// kLanes vectors on which one computation runs side by side: the steps of one alone wait for each other, and the
/// processor looks ahead too few instructions to find the next.
inline constexpr int kLanes = kWidth == 16 ? 4 : 2;
struct Wide {
  F v[kLanes];
};
template <class F_> MMT_INLINE Wide each_lane(F_&& f) {
  Wide y;
#pragma GCC unroll 4
  for (int i = 0; i < kLanes; ++i) y.v[i] = f(i);
  return y;
}
#define MMT_WIDE_OPERATOR(op)                                                    \
  MMT_INLINE Wide operator op(const Wide& x, const Wide& y) {                    \
    return each_lane([&](int i) MMT_INLINE_LAMBDA { return x.v[i] op y.v[i]; }); \
  }                                                                              \
  MMT_INLINE Wide operator op(const Wide& x, float y) {                          \
    return each_lane([&](int i) MMT_INLINE_LAMBDA { return x.v[i] op y; });      \
  }                                                                              \
  MMT_INLINE Wide operator op(float x, const Wide& y) {                          \
    return each_lane([&](int i) MMT_INLINE_LAMBDA { return x op y.v[i]; });      \
  }
MMT_WIDE_OPERATOR(+)
MMT_WIDE_OPERATOR(-)
MMT_WIDE_OPERATOR(*)
MMT_WIDE_OPERATOR(/)
#undef MMT_WIDE_OPERATOR

// f on the one vector, or on each of several. Functions of vectors are built on it to take both.
template <class F_> MMT_INLINE F apply(F_&& f, F x) { return f(x); }
template <class F_> MMT_INLINE F apply(F_&& f, F x, F y) { return f(x, y); }
template <class F_> MMT_INLINE Wide apply(F_&& f, const Wide& x) {
  return each_lane([&](int i) MMT_INLINE_LAMBDA { return f(x.v[i]); });
}
template <class F_> MMT_INLINE Wide apply(F_&& f, const Wide& x, const Wide& y) {
  return each_lane([&](int i) MMT_INLINE_LAMBDA { return f(x.v[i], y.v[i]); });
}

/// kLanes * kWidth elements. Of bf16, a vector has those at even or those at odd places of two: that costs half of what
/// taking them apart in order does. Hence for work on single elements, where all operands are of one type.
MMT_INLINE Wide load_wide(const float* p) {
  return each_lane([&](int i) MMT_INLINE_LAMBDA { return load(p + i * kWidth); });
}
MMT_INLINE Wide load_wide(const bf16* p) {
  return each_lane([&](int i) MMT_INLINE_LAMBDA {
    const U both = *reinterpret_cast<const UMem*>(p + i / 2 * (2 * kWidth));
    return from_bits(i % 2 == 0 ? both << 16 : both & 0xffff0000u);
  });
}
/// Rounds like store.
MMT_INLINE void store_wide(float* p, const Wide& x) {
#pragma GCC unroll 4
  for (int i = 0; i < kLanes; ++i) store(p + i * kWidth, x.v[i]);
}
MMT_INLINE void store_wide(bf16* p, const Wide& x) {
#ifdef MMT_VEC_BF16
  struct Places {
    std::uint16_t of[2 * kWidth];
  };
  constexpr Places kTurns = [] {  // the even ones first, then the odd ones
    Places places{};
    for (int i = 0; i < kWidth; ++i) {
      places.of[2 * i] = static_cast<std::uint16_t>(i);
      places.of[2 * i + 1] = static_cast<std::uint16_t>(kWidth + i);
    }
    return places;
  }();
#else
  const auto rounded = [](F v) MMT_INLINE_LAMBDA {  // in the upper half
    const U u = bits_of(v);
    return v == v ? u + 0x7fffu + ((u >> 16) & 1u) : u | 0x400000u;
  };
#endif
#pragma GCC unroll 4
  for (int i = 0; i < kLanes; i += 2) {
#ifdef MMT_VEC_BF16
    const auto apart = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(raw(x.v[i + 1]), raw(x.v[i])));
    const auto together = _mm512_maskz_permutexvar_epi16(0xffffffffu, __builtin_bit_cast(__m512i, kTurns), apart);
    *reinterpret_cast<UMem*>(p + i * kWidth) = reinterpret_cast<U>(together);
#else
    *reinterpret_cast<UMem*>(p + i * kWidth) = rounded(x.v[i]) >> 16 | (rounded(x.v[i + 1]) & 0xffff0000u);
#endif
  }
}

/// Asks for the cache line of p in the second-level cache.
MMT_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

/// f(offset, full) over n elements: `f(j, kWidth)` for whole vectors, then once `f(j, rest)`. Wrap with
/// load_at/store_at.
template <class F_> MMT_INLINE void each_vector(std::int64_t n, F_&& f) {
  std::int64_t j = 0;
  for (; j + kWidth <= n; j += kWidth) f(j, kWidth);
  if (j < n) f(j, static_cast<int>(n - j));
}
template <class T> MMT_INLINE F load_at(const T* p, int n) { return n == kWidth ? load(p) : load_n(p, n); }
template <class T> MMT_INLINE void store_at(T* p, F x, int n) { n == kWidth ? store(p, x) : store_n(p, x, n); }
/// y[j] = f(x[j] ...) over n elements of one type; f takes Wide and F.
template <class T, class F_, class... X> MMT_INLINE void map_elements(T* y, std::int64_t n, F_&& f, const X*... x) {
  constexpr int kStep = kLanes * kWidth;
  std::int64_t j = 0;
  for (; j + kStep <= n; j += kStep) store_wide(y + j, f(load_wide(x + j)...));
  each_vector(n - j, [&](std::int64_t k, int m) { store_at(y + j + k, f(load_at(x + j + k, m)...), m); });
}
// Of weights and of conversions: exact in subnormal numbers too.
MMT_INLINE void store_exactly(float* p, F x, int n) { store_at(p, x, n); }
MMT_INLINE void store_exactly(bf16* p, F x, int n) {
  const H h = narrow_exactly(x);
  n == kWidth ? store(p, h) : store_n(p, h, n);
}

}  // namespace mmt::cpu::MMT_VEC_NS
