// Vectors of bf16 pairs: what attention_bf16_item.h needs beside simd.h. Internal; for the units of one instruction
// set.
#pragma once

#include "kernels/cpu/simd.h"

namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE {

using namespace mmt::simd::MMT_SIMD_NAMESPACE;
using std::int64_t;
using std::uint16_t;
using std::uint32_t;

/// Words travel in float vectors as bits: loads, stores and transpose() do not look at them.
MMT_SIMD_INLINE const float* bits_of(const uint32_t* p) { return reinterpret_cast<const float*>(p); }
MMT_SIMD_INLINE float* bits_of(uint32_t* p) { return reinterpret_cast<float*>(p); }
MMT_SIMD_INLINE const float* bits_of(const uint16_t* p) { return reinterpret_cast<const float*>(p); }

#if defined(__AVX512BF16__)

/// Lane i is the word even[i] | odd[i] << 16, for i < n; the rest is zero.
MMT_SIMD_INLINE F16 zip(const uint16_t* even, const uint16_t* odd, int n) {
  const auto halves = [n](const uint16_t* p) __attribute__((always_inline)) {
    return _mm512_cvtepu16_epi32(n >= 16 ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))
                                         : _mm256_maskz_loadu_epi16(first_lanes(n), p));
  };
  const __m512i low = halves(even), high = halves(odd);
  return {_mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)))};
}
/// Both vectors rounded to bf16: first x, then y.
MMT_SIMD_INLINE __m512i rounded(F16 x, F16 y) { return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(y.a, x.a)); }
MMT_SIMD_INLINE __m512i interleaved(__m512i halves) {
  alignas(64) static constexpr uint16_t kOrder[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), halves);
}
/// to[i] = x_i | y_i << 16, rounded to bf16.
MMT_SIMD_INLINE void store_pairs(uint32_t* to, F16 x, F16 y) { _mm512_storeu_si512(to, interleaved(rounded(x, y))); }
/// The same, and each vector as 16 neighbours in its row.
MMT_SIMD_INLINE void store_pairs_and_rows(uint32_t* to, uint32_t* row_x, uint32_t* row_y, F16 x, F16 y) {
  const __m512i halves = rounded(x, y);
  _mm512_storeu_si512(to, interleaved(halves));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(row_x), _mm512_castsi512_si256(halves));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(row_y), _mm512_extracti64x4_epi64(halves, 1));
}
MMT_SIMD_INLINE void store_rows(uint32_t* row_x, uint32_t* row_y, F16 x, F16 y) {
  const __m512i halves = rounded(x, y);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(row_x), _mm512_castsi512_si256(halves));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(row_y), _mm512_extracti64x4_epi64(halves, 1));
}

#else  // the same in steps of one lane: for tests of the tile unit on machines without any of this

MMT_SIMD_INLINE F16 zip(const uint16_t* even, const uint16_t* odd, int n) {
  alignas(64) uint32_t words[16] = {};
  for (int i = 0; i < n && i < 16; ++i) words[i] = even[i] | static_cast<uint32_t>(odd[i]) << 16;
  return load(bits_of(words));
}
MMT_SIMD_INLINE void store_pairs_and_rows(uint32_t* to, uint32_t* row_x, uint32_t* row_y, F16 x, F16 y) {
  alignas(64) uint16_t halves[32];
  store(halves, x);
  store(halves + 16, y);
  for (int i = 0; i < 16; ++i) {
    const uint32_t word = halves[i] | static_cast<uint32_t>(halves[16 + i]) << 16;
    std::memcpy(to + i, &word, 4);
  }
  std::memcpy(row_x, halves, 32);
  std::memcpy(row_y, halves + 16, 32);
}
MMT_SIMD_INLINE void store_pairs(uint32_t* to, F16 x, F16 y) {
  uint32_t unused[16];
  store_pairs_and_rows(to, unused, unused + 8, x, y);
}
MMT_SIMD_INLINE void store_rows(uint32_t* row_x, uint32_t* row_y, F16 x, F16 y) {
  uint32_t unused[16];
  store_pairs_and_rows(unused, row_x, row_y, x, y);
}

#endif

}  // namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE
