#pragma once

#include "kernels/cpu/inner.h"
#include "kernels/cpu/vec.h"

namespace mmt::cpu::MMT_VEC_NS {

inline constexpr int kTaps = 3;

// As many elements as a register holds, of 32 or 16 bits, as they lie in memory.
template <class T> struct Words;
template <> struct Words<float> {
  using Lane = std::uint32_t;
  typedef std::uint32_t V __attribute__((vector_size(kWidth * 4)));
  typedef std::uint32_t Mem __attribute__((vector_size(kWidth * 4), aligned(4), may_alias));
};
template <> struct Words<bf16> {
  using Lane = std::uint16_t;
  typedef std::uint16_t V __attribute__((vector_size(kWidth * 2)));
  typedef std::uint16_t Mem __attribute__((vector_size(kWidth * 2), aligned(2), may_alias));
};
template <class T> using Word = typename Words<T>::V;
template <class T> MMT_INLINE Word<T> load_words(const T* p) {
  return *reinterpret_cast<const typename Words<T>::Mem*>(p);
}
template <class T> MMT_INLINE void store_words(T* p, Word<T> v) { *reinterpret_cast<typename Words<T>::Mem*>(p) = v; }

// Which lane of three vectors element i of the whole is, i < 3 kWidth. Interleaved: element i is lane i / 3 of vector
// i % 3. Two selections make one vector: the first from vectors 0 and 1, the second from that and vector 2.
template <class T> struct Selection {
  using Lane = typename Words<T>::Lane;
  alignas(64) Lane pair[kWidth];
  Lane third[kWidth];
};
template <class T> MMT_INLINE constexpr Selection<T> interleaving(int part) {
  Selection<T> s{};
  for (int i = 0; i < kWidth; ++i) {
    const int element = part * kWidth + i, lane = element / kTaps, from = element % kTaps;
    s.pair[i] = static_cast<typename Words<T>::Lane>(from == 1 ? kWidth + lane : lane);
    s.third[i] = static_cast<typename Words<T>::Lane>(from == 2 ? kWidth + lane : i);
  }
  return s;
}
// Tap k: lane c is element 3 c + k of three vectors that follow one another.
template <class T> MMT_INLINE constexpr Selection<T> picking(int tap) {
  Selection<T> s{};
  for (int c = 0; c < kWidth; ++c) {
    const int element = kTaps * c + tap;
    s.pair[c] = static_cast<typename Words<T>::Lane>(element < 2 * kWidth ? element : 0);
    s.third[c] = static_cast<typename Words<T>::Lane>(element >= 2 * kWidth ? element - kWidth : c);
  }
  return s;
}
template <class T> MMT_INLINE Word<T> select(Word<T> a, Word<T> b, Word<T> c, const Selection<T>& s) {
  Word<T> pair, third;
  __builtin_memcpy(&pair, s.pair, sizeof pair);
  __builtin_memcpy(&third, s.third, sizeof third);
  return __builtin_shuffle(__builtin_shuffle(a, b, pair), c, third);
}

template <class T> void interleave_taps(T* y, const T* tap0, const T* tap1, const T* tap2, std::int64_t channels) {
  using V = Word<T>;
  static constexpr Selection<T> first = interleaving<T>(0), second = interleaving<T>(1), last = interleaving<T>(2);
  std::int64_t c = 0;
  for (; c + kWidth <= channels; c += kWidth) {
    const V a = tap0 ? load_words(tap0 + c) : V{}, b = tap1 ? load_words(tap1 + c) : V{},
            d = tap2 ? load_words(tap2 + c) : V{};
    store_words(y + kTaps * c, select<T>(a, b, d, first));
    store_words(y + kTaps * c + kWidth, select<T>(a, b, d, second));
    store_words(y + kTaps * c + 2 * kWidth, select<T>(a, b, d, last));
  }
  for (; c < channels; ++c) {
    y[kTaps * c] = tap0 ? tap0[c] : T{};
    y[kTaps * c + 1] = tap1 ? tap1[c] : T{};
    y[kTaps * c + 2] = tap2 ? tap2[c] : T{};
  }
}

template <class T> void sum_taps(T* y, const T* tap0, const T* tap1, const T* tap2, bool add, std::int64_t channels) {
  using V = Word<T>;
  static constexpr Selection<T> picks[kTaps] = {picking<T>(0), picking<T>(1), picking<T>(2)};
  // Stays inside its row: a tap's values begin at the row's element k.
  const auto tap = [](const T* row, std::int64_t at, int k) {
    const T* p = row + kTaps * at;
    return select<T>(load_words(p), load_words(p + kWidth), load_words(p + 2 * kWidth), picks[k]);
  };
  const auto wide = [](V words) {
    if constexpr (sizeof(T) == 2)
      return widen(words);
    else
      return from_bits(words);
  };
  std::int64_t c = 0;
  for (; c + kWidth <= channels; c += kWidth) {
    F sum = add ? load(y + c) : F{};
    if (tap0) sum += wide(tap(tap0, c, 0));
    if (tap1) sum += wide(tap(tap1, c, 1));
    if (tap2) sum += wide(tap(tap2, c, 2));
    store(y + c, sum);
  }
  const auto element = [](const T* row, std::int64_t at, int k) {
    return static_cast<float>(scalar_f64(row + kTaps * at + k));
  };
  for (; c < channels; ++c) {
    float sum = add ? element(y, 0, static_cast<int>(c)) : 0.0f;
    if (tap0) sum += element(tap0, c, 0);
    if (tap1) sum += element(tap1, c, 1);
    if (tap2) sum += element(tap2, c, 2);
    store_n(y + c, splat(sum), 1);
  }
}

}  // namespace mmt::cpu::MMT_VEC_NS
