// simd.h for AVX2 and FMA. Included by simd.h alone.
namespace mmt::simd::avx2 {

struct F16 {
  __m256 a, b;
};

MMT_SIMD_INLINE F16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
MMT_SIMD_INLINE F16 set1(float x) {
  const __m256 v = _mm256_set1_ps(x);
  return {v, v};
}
MMT_SIMD_INLINE F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
MMT_SIMD_INLINE void store(float* p, F16 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
MMT_SIMD_INLINE F16 add(F16 x, F16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
MMT_SIMD_INLINE F16 sub(F16 x, F16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
MMT_SIMD_INLINE F16 mul(F16 x, F16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
MMT_SIMD_INLINE F16 div(F16 x, F16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
MMT_SIMD_INLINE F16 fma(F16 x, F16 y, F16 z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
/// The second where either is NaN.
MMT_SIMD_INLINE F16 max(F16 x, F16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
MMT_SIMD_INLINE F16 round(F16 x) {
  return {_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
/// p 2^n for whole n and p of [1/2, 2), 0 where x < -126. Two factors, since 2^128 alone is no float.
MMT_SIMD_INLINE __m256 scale2(__m256 p, __m256 n, __m256 x) {
  const __m256i whole = _mm256_cvtps_epi32(_mm256_min_ps(_mm256_set1_ps(252.0f), n));
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256 low = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const __m256 high = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, half), bias), 23));
  const __m256 normal = _mm256_cmp_ps(x, _mm256_set1_ps(-126.0f), _CMP_NLT_UQ);
  return _mm256_and_ps(normal, _mm256_mul_ps(_mm256_mul_ps(p, low), high));
}
MMT_SIMD_INLINE F16 scale2(F16 p, F16 n, F16 x) { return {scale2(p.a, n.a, x.a), scale2(p.b, n.b, x.b)}; }
MMT_SIMD_INLINE __m256 split(__m256 x, __m256& exponent) {
  const __m256i bits = _mm256_sub_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(0x3f3504f3));
  exponent = _mm256_cvtepi32_ps(_mm256_srai_epi32(bits, 23));
  const __m256i fraction = _mm256_and_si256(bits, _mm256_set1_epi32(0x007fffff));
  return _mm256_castsi256_ps(_mm256_add_epi32(fraction, _mm256_set1_epi32(0x3f3504f3)));
}
MMT_SIMD_INLINE F16 split(F16 x, F16& exponent) { return {split(x.a, exponent.a), split(x.b, exponent.b)}; }
MMT_SIMD_INLINE __m256 lanes(std::uint32_t mask) {
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(mask)), bit), bit));
}
/// Lane i is x's where bit i of `mask` is set, else y's.
MMT_SIMD_INLINE F16 select(std::uint32_t mask, F16 x, F16 y) {
  return {_mm256_blendv_ps(y.a, x.a, lanes(mask)), _mm256_blendv_ps(y.b, x.b, lanes(mask >> 8))};
}
MMT_SIMD_INLINE std::uint32_t equal(F16 x, F16 y) {
  return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ))) |
         static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ))) << 8;
}

MMT_SIMD_INLINE F16 load(const std::uint16_t* p) {
  const auto widen = [](const std::uint16_t* from) __attribute__((always_inline)) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  };
  return {widen(p), widen(p + 8)};
}
MMT_SIMD_INLINE __m256i round_bf16(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}
/// Rounds to nearest even; NaN stays NaN.
MMT_SIMD_INLINE void store(std::uint16_t* p, F16 x) {
  const __m256i packed = _mm256_packus_epi32(round_bf16(x.a), round_bf16(x.b));  // 0-3 8-11 4-7 12-15
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}

MMT_SIMD_INLINE void transpose8(const __m256 (&r)[8], float* out, std::int64_t stride) {
  __m256 t[8], u[8];
#pragma GCC unroll 8
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 2; ++i) {
    u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
    u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
  }
#pragma GCC unroll 8
  for (int c = 0; c < 4; ++c) {
    _mm256_storeu_ps(out + c * stride, _mm256_permute2f128_ps(u[c], u[4 + c], 0x20));
    _mm256_storeu_ps(out + (4 + c) * stride, _mm256_permute2f128_ps(u[c], u[4 + c], 0x31));
  }
}
/// Writes lane d of row i to out[d * stride + i], for d < columns.
MMT_SIMD_INLINE void transpose(const F16 (&row)[16], float* out, std::int64_t stride, int columns) {
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    __m256 low[8], high[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      low[i] = row[8 * half + i].a;
      high[i] = row[8 * half + i].b;
    }
    transpose8(low, out + 8 * half, stride);
    if (columns > 8) transpose8(high, out + 8 * stride + 8 * half, stride);
  }
}

}  // namespace mmt::simd::avx2
