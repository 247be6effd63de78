// simd.h without any special instruction: vectors of the compiler, for every machine. Included by simd.h alone.
namespace mmt::simd::portable {

typedef float F4 __attribute__((vector_size(16)));
typedef std::int32_t I4 __attribute__((vector_size(16)));

struct F16 {
  F4 a, b, c, d;
};

MMT_SIMD_INLINE F16 set1(float x) {
  const F4 v = {x, x, x, x};
  return {v, v, v, v};
}
MMT_SIMD_INLINE F16 zero() { return set1(0.0f); }
MMT_SIMD_INLINE F16 load(const float* p) {
  F16 x;
  std::memcpy(&x.a, p, 16);
  std::memcpy(&x.b, p + 4, 16);
  std::memcpy(&x.c, p + 8, 16);
  std::memcpy(&x.d, p + 12, 16);
  return x;
}
MMT_SIMD_INLINE void store(float* p, F16 x) {
  std::memcpy(p, &x.a, 16);
  std::memcpy(p + 4, &x.b, 16);
  std::memcpy(p + 8, &x.c, 16);
  std::memcpy(p + 12, &x.d, 16);
}
MMT_SIMD_INLINE F16 add(F16 x, F16 y) { return {x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d}; }
MMT_SIMD_INLINE F16 sub(F16 x, F16 y) { return {x.a - y.a, x.b - y.b, x.c - y.c, x.d - y.d}; }
MMT_SIMD_INLINE F16 mul(F16 x, F16 y) { return {x.a * y.a, x.b * y.b, x.c * y.c, x.d * y.d}; }
MMT_SIMD_INLINE F16 div(F16 x, F16 y) { return {x.a / y.a, x.b / y.b, x.c / y.c, x.d / y.d}; }
/// Rounded once or twice, as the machine has it.
MMT_SIMD_INLINE F16 fma(F16 x, F16 y, F16 z) { return add(mul(x, y), z); }
/// The second where either is NaN.
MMT_SIMD_INLINE F4 max(F4 x, F4 y) { return x > y ? x : y; }
MMT_SIMD_INLINE F16 max(F16 x, F16 y) { return {max(x.a, y.a), max(x.b, y.b), max(x.c, y.c), max(x.d, y.d)}; }
/// To nearest even for |x| < 2^22, else unchanged (NaN and infinity too).
MMT_SIMD_INLINE F4 round(F4 x) {
  const F4 magic = {12582912.0f, 12582912.0f, 12582912.0f, 12582912.0f};  // 1.5 x 2^23
  const F4 limit = {4194304.0f, 4194304.0f, 4194304.0f, 4194304.0f};
  const F4 rounded = (x + magic) - magic;
  return (x < limit) & (x > -limit) ? rounded : x;
}
MMT_SIMD_INLINE F16 round(F16 x) { return {round(x.a), round(x.b), round(x.c), round(x.d)}; }
/// p 2^n for whole n and p of [1/2, 2), 0 where x < -126. Two factors, since 2^128 alone is no float.
MMT_SIMD_INLINE F4 scale2(F4 p, F4 n, F4 x) {
  const F4 low_limit = {-126.0f, -126.0f, -126.0f, -126.0f}, high_limit = {252.0f, 252.0f, 252.0f, 252.0f};
  const F4 zero4 = {0.0f, 0.0f, 0.0f, 0.0f};
  F4 capped = n < high_limit ? n : high_limit;  // NaN too; p is NaN then
  capped = capped > low_limit ? capped : low_limit;
  const I4 whole = __builtin_convertvector(capped, I4);
  const I4 half = whole >> 1;
  const I4 low = (half + 127) << 23, high = (whole - half + 127) << 23;
  F4 low_factor, high_factor;
  std::memcpy(&low_factor, &low, 16);
  std::memcpy(&high_factor, &high, 16);
  return x < low_limit ? zero4 : p * low_factor * high_factor;
}
MMT_SIMD_INLINE F16 scale2(F16 p, F16 n, F16 x) {
  return {scale2(p.a, n.a, x.a), scale2(p.b, n.b, x.b), scale2(p.c, n.c, x.c), scale2(p.d, n.d, x.d)};
}
MMT_SIMD_INLINE F4 split(F4 x, F4& exponent) {
  I4 bits;
  std::memcpy(&bits, &x, 16);
  bits = bits - 0x3f3504f3;
  exponent = __builtin_convertvector(bits >> 23, F4);
  const I4 fraction = (bits & 0x007fffff) + 0x3f3504f3;
  F4 m;
  std::memcpy(&m, &fraction, 16);
  return m;
}
MMT_SIMD_INLINE F16 split(F16 x, F16& exponent) {
  return {split(x.a, exponent.a), split(x.b, exponent.b), split(x.c, exponent.c), split(x.d, exponent.d)};
}
MMT_SIMD_INLINE F4 select(std::uint32_t mask, F4 x, F4 y) {
  const I4 bit = {1, 2, 4, 8};
  const I4 set = (bit & static_cast<std::int32_t>(mask)) != 0;
  return set ? x : y;
}
/// Lane i is x's where bit i of `mask` is set, else y's.
MMT_SIMD_INLINE F16 select(std::uint32_t mask, F16 x, F16 y) {
  return {select(mask, x.a, y.a), select(mask >> 4, x.b, y.b), select(mask >> 8, x.c, y.c),
          select(mask >> 12, x.d, y.d)};
}
MMT_SIMD_INLINE std::uint32_t equal(F16 x, F16 y) {
  alignas(64) float p[16], q[16];
  store(p, x);
  store(q, y);
  std::uint32_t mask = 0;
  for (int i = 0; i < 16; ++i) mask |= static_cast<std::uint32_t>(p[i] == q[i]) << i;
  return mask;
}

MMT_SIMD_INLINE F16 load(const std::uint16_t* p) {
  alignas(64) std::uint32_t bits[16];
  for (int i = 0; i < 16; ++i) bits[i] = static_cast<std::uint32_t>(p[i]) << 16;
  F16 x;
  std::memcpy(&x.a, bits, 16);
  std::memcpy(&x.b, bits + 4, 16);
  std::memcpy(&x.c, bits + 8, 16);
  std::memcpy(&x.d, bits + 12, 16);
  return x;
}
/// Rounds to nearest even; NaN stays NaN.
MMT_SIMD_INLINE void store(std::uint16_t* p, F16 x) {
  alignas(64) float lane[16];
  store(lane, x);
  for (int i = 0; i < 16; ++i) {
    std::uint32_t u;
    std::memcpy(&u, &lane[i], 4);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    p[i] = static_cast<std::uint16_t>(nan ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
}

/// Writes lane d of row i to out[d * stride + i], for d < columns.
MMT_SIMD_INLINE void transpose(const F16 (&row)[16], float* out, std::int64_t stride, int columns) {
  alignas(64) float lane[16][16];
  for (int i = 0; i < 16; ++i) store(lane[i], row[i]);
  for (int d = 0; d < columns; ++d)
    for (int i = 0; i < 16; ++i) out[d * stride + i] = lane[i][d];
}

}  // namespace mmt::simd::portable
