// simd.h for AVX-512 (F, BW, DQ, VL). Included by simd.h alone.
namespace mmt::simd::avx512 {

struct F16 {
  __m512 a;
};

MMT_SIMD_INLINE F16 zero() { return {_mm512_setzero_ps()}; }
MMT_SIMD_INLINE F16 set1(float x) { return {_mm512_set1_ps(x)}; }
MMT_SIMD_INLINE F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
MMT_SIMD_INLINE void store(float* p, F16 x) { _mm512_storeu_ps(p, x.a); }
MMT_SIMD_INLINE F16 add(F16 x, F16 y) { return {_mm512_add_ps(x.a, y.a)}; }
MMT_SIMD_INLINE F16 sub(F16 x, F16 y) { return {_mm512_sub_ps(x.a, y.a)}; }
MMT_SIMD_INLINE F16 mul(F16 x, F16 y) { return {_mm512_mul_ps(x.a, y.a)}; }
MMT_SIMD_INLINE F16 div(F16 x, F16 y) { return {_mm512_div_ps(x.a, y.a)}; }
MMT_SIMD_INLINE F16 fma(F16 x, F16 y, F16 z) { return {_mm512_fmadd_ps(x.a, y.a, z.a)}; }
/// The second where either is NaN.
MMT_SIMD_INLINE F16 max(F16 x, F16 y) { return {_mm512_max_ps(x.a, y.a)}; }
MMT_SIMD_INLINE F16 round(F16 x) { return {_mm512_roundscale_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
/// p 2^n for whole n, 0 where x < -126.
MMT_SIMD_INLINE F16 scale2(F16 p, F16 n, F16 x) {
  const __mmask16 normal = _mm512_cmp_ps_mask(x.a, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  return {_mm512_maskz_scalef_ps(normal, p.a, n.a)};
}
MMT_SIMD_INLINE F16 split(F16 x, F16& exponent) {
  const __m512i bits = _mm512_sub_epi32(_mm512_castps_si512(x.a), _mm512_set1_epi32(0x3f3504f3));
  exponent.a = _mm512_cvtepi32_ps(_mm512_srai_epi32(bits, 23));
  const __m512i fraction = _mm512_and_si512(bits, _mm512_set1_epi32(0x007fffff));
  return {_mm512_castsi512_ps(_mm512_add_epi32(fraction, _mm512_set1_epi32(0x3f3504f3)))};
}
/// Lane i is x's where bit i of `mask` is set, else y's.
MMT_SIMD_INLINE F16 select(std::uint32_t mask, F16 x, F16 y) {
  return {_mm512_mask_blend_ps(static_cast<__mmask16>(mask), y.a, x.a)};
}
MMT_SIMD_INLINE std::uint32_t equal(F16 x, F16 y) { return _mm512_cmp_ps_mask(x.a, y.a, _CMP_EQ_OQ); }

MMT_SIMD_INLINE F16 load(const std::uint16_t* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
/// Rounded to bf16, to nearest even; NaN stays NaN.
MMT_SIMD_INLINE __m256i to_bf16(F16 x) {
#if defined(__AVX512BF16__)  // denormals become zeros there
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x.a));
#else
  const __m512i bits = _mm512_castps_si512(x.a);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i upper = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(x.a, x.a, _CMP_UNORD_Q);
  upper = _mm512_mask_or_epi32(upper, nan, _mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
  return _mm512_cvtepi32_epi16(upper);
#endif
}
MMT_SIMD_INLINE void store(std::uint16_t* p, F16 x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16(x)); }

MMT_SIMD_INLINE __mmask16 first_lanes(int n) { return static_cast<__mmask16>(n >= 16 ? 0xffff : (1 << n) - 1); }
/// The first n (0 .. 16) lanes; the others are zero and their memory is not touched.
MMT_SIMD_INLINE F16 load_part(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
MMT_SIMD_INLINE void store_part(float* p, F16 x, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), x.a); }
/// bf16 as its bits.
MMT_SIMD_INLINE F16 load_part(const std::uint16_t* p, int n) {
  const __m256i half = _mm256_maskz_loadu_epi16(first_lanes(n), p);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
MMT_SIMD_INLINE void store_part(std::uint16_t* p, F16 x, int n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), to_bf16(x));
}

/// Writes lane d of row i to out[d * stride + i], for d < columns.
MMT_SIMD_INLINE void transpose(const F16 (&row)[16], float* out, std::int64_t stride, int columns) {
  __m512 t[16], u[16];
#pragma GCC unroll 16
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_ps(row[2 * i].a, row[2 * i + 1].a);
    t[2 * i + 1] = _mm512_unpackhi_ps(row[2 * i].a, row[2 * i + 1].a);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 4; ++i) {
    const auto pd = [](__m512 x) __attribute__((always_inline)) { return _mm512_castps_pd(x); };
    u[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(pd(t[4 * i]), pd(t[4 * i + 2])));
    u[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(pd(t[4 * i]), pd(t[4 * i + 2])));
    u[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(pd(t[4 * i + 1]), pd(t[4 * i + 3])));
    u[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(pd(t[4 * i + 1]), pd(t[4 * i + 3])));
  }
  // u[4 i + c] holds in 128-bit part b the column 4 b + c of rows 4 i .. 4 i + 3.
#pragma GCC unroll 16
  for (int c = 0; c < 4; ++c) {
    const __m512 low01 = _mm512_shuffle_f32x4(u[c], u[4 + c], 0x88);  // parts 0 2 | 0 2
    const __m512 low23 = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0x88);
    const __m512 high01 = _mm512_shuffle_f32x4(u[c], u[4 + c], 0xdd);  // parts 1 3 | 1 3
    const __m512 high23 = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0xdd);
    _mm512_storeu_ps(out + c * stride, _mm512_shuffle_f32x4(low01, low23, 0x88));
    _mm512_storeu_ps(out + (4 + c) * stride, _mm512_shuffle_f32x4(high01, high23, 0x88));
    if (columns > 8) {
      _mm512_storeu_ps(out + (8 + c) * stride, _mm512_shuffle_f32x4(low01, low23, 0xdd));
      _mm512_storeu_ps(out + (12 + c) * stride, _mm512_shuffle_f32x4(high01, high23, 0xdd));
    }
  }
}

}  // namespace mmt::simd::avx512
