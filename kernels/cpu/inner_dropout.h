#pragma once

#include "kernels/cpu/inner.h"
#include "kernels/cpu/vec.h"

namespace mmt::cpu::MMT_VEC_NS {

// Philox-4x32-10 (core/philox.h) on kHalf blocks at once. Words lie in the lower halves of 64-bit lanes; what is in the
// upper halves does not matter, since the multiplication does not read them.
typedef std::uint64_t Lanes64 __attribute__((vector_size(kHalf * 8)));

#if MMT_VEC_WIDTH == 16
MMT_INLINE Lanes64 multiply_low(Lanes64 a, Lanes64 b) {
  return reinterpret_cast<Lanes64>(
      _mm512_maskz_mul_epu32(0xff, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
}
#elif MMT_VEC_WIDTH == 8
MMT_INLINE Lanes64 multiply_low(Lanes64 a, Lanes64 b) {
  return reinterpret_cast<Lanes64>(_mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
}
#else
MMT_INLINE Lanes64 multiply_low(Lanes64 a, Lanes64 b) {
  return reinterpret_cast<Lanes64>(_mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
}
#endif
MMT_INLINE Lanes64 splat_word(std::uint64_t x) { return x - Lanes64{}; }

/// The 4 * kHalf words of blocks [block, block + kHalf).
MMT_INLINE void philox_words(std::uint32_t* words, std::uint64_t key, std::uint64_t sample, std::uint32_t step,
                             std::uint64_t block) {
  constexpr std::uint64_t kLow = 0xffffffffu;
  const Lanes64 m0 = splat_word(0xD2511F53u), m1 = splat_word(0xCD9E8D57u);
  Lanes64 number = splat_word(block);
  for (int i = 0; i < kHalf; ++i) number[i] += static_cast<std::uint64_t>(i);
  Lanes64 c0 = number, c1 = number >> 32 | splat_word(sample << 16), c2 = splat_word(sample >> 16),
          c3 = splat_word(step);
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const Lanes64 p0 = multiply_low(c0, m0), p1 = multiply_low(c2, m1);
    c0 = (p1 >> 32) ^ c1 ^ splat_word(k0);
    c1 = p1;
    c2 = (p0 >> 32) ^ c3 ^ splat_word(k1);
    c3 = p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const Lanes64 first = (c0 & kLow) | c1 << 32,
                second = (c2 & kLow) | c3 << 32;  // words 0 and 1, 2 and 3 of each block
  for (int i = 0; i < kHalf; ++i) {
    __builtin_memcpy(words + 4 * i, reinterpret_cast<const char*>(&first) + 8 * i, 8);
    __builtin_memcpy(words + 4 * i + 2, reinterpret_cast<const char*>(&second) + 8 * i, 8);
  }
}

template <class T, bool kAdd> MMT_INLINE void drop(T* y, const T* x, const std::uint32_t* words,
                                                   std::uint32_t threshold, float factor, std::int64_t n) {
  each_vector(n, [&](std::int64_t j, int m) {
    const U bits = *reinterpret_cast<const UMem*>(words + j);
    F v = load_at(x + j, m) * factor;
    v = from_bits(bits_of(v) & reinterpret_cast<U>(bits >= threshold));
    if constexpr (kAdd) v += load_at(y + j, m);
    store_at(y + j, v, m);
  });
}

template <class T> void dropout(T* y, const T* x, const DropoutRow& row, std::int64_t cols) {
  constexpr std::int64_t kPiece = 512, kBlocks = kPiece / 4 + 1;
  // The first block may begin before the first element, and vectors read past the last word.
  alignas(64) std::uint32_t words[4 * (kBlocks + kHalf) + kWidth];
  for (std::int64_t first = 0; first < cols; first += kPiece) {
    const std::int64_t n = cols - first < kPiece ? cols - first : kPiece;
    const std::uint64_t element = row.element + static_cast<std::uint64_t>(first), skip = element & 3u;
    if (row.all) {
      for (std::int64_t i = 0; i < n; ++i) words[i] = 0;
    } else {
      const std::int64_t blocks = (static_cast<std::int64_t>(skip) + n + 3) / 4;
      for (std::int64_t b = 0; b < blocks; b += kHalf)
        philox_words(words + 4 * b, row.key, row.sample, row.step, (element >> 2) + static_cast<std::uint64_t>(b));
    }
    const std::uint32_t* from = row.all ? words : words + skip;
    // A padding row is dropped whole, with a probability of zero, too.
    const std::uint32_t threshold = row.all ? 1 : row.threshold;
    if (row.add)
      drop<T, true>(y + first, x + first, from, threshold, row.factor, n);
    else
      drop<T, false>(y + first, x + first, from, threshold, row.factor, n);
  }
}

}  // namespace mmt::cpu::MMT_VEC_NS
