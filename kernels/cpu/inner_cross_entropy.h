#pragma once

#include "kernels/cpu/inner.h"
#include "kernels/cpu/vec_math.h"

namespace mmt::cpu::MMT_VEC_NS {

inline constexpr float kMinusInfinity = -__builtin_inff();

// Lanes past the end hold -inf.
template <class T> MMT_INLINE F load_logits(const T* x, int n) {
  const F v = load_at(x, n);
  if (n == kWidth) return v;
  I lane;
  for (int i = 0; i < kWidth; ++i) lane[i] = i;
  return lane < n ? v : splat(kMinusInfinity);
}

/// Largest element; NaN elements are passed over.
template <class T> MMT_INLINE float maximum_of(const T* x, std::int64_t n) {
  F m[4];
  for (F& v : m) v = splat(kMinusInfinity);
  std::int64_t j = 0;
  for (; j + 4 * kWidth <= n; j += 4 * kWidth)
    for (int k = 0; k < 4; ++k) m[k] = max(load(x + j + k * kWidth), m[k]);
  for (; j < n; j += kWidth) m[0] = max(load_logits(x + j, n - j < kWidth ? static_cast<int>(n - j) : kWidth), m[0]);
  return max_lanes(max(max(m[0], m[1]), max(m[2], m[3])));
}

// Sum of exp(x - m), each term also given to keep(j, term, n). Sums run over pieces of kPiece elements, the pieces in
// double: error does not grow with the vocabulary. `next`: a row that will be read after this one, or null.
template <class T, class Keep>
MMT_INLINE double sum_exponentials(const T* x, std::int64_t count, float m, const T* next, Keep&& keep) {
  constexpr std::int64_t kPiece = 64 * kWidth;
  double total = 0;
  for (std::int64_t first = 0; first < count; first += kPiece) {
    const std::int64_t end = first + kPiece < count ? first + kPiece : count;
    F s[4] = {};
    std::int64_t j = first;
    for (; j + 4 * kWidth <= end; j += 4 * kWidth)
      for (int k = 0; k < 4; ++k) {
        if (next) prefetch(next + j + k * kWidth);
        const F e = exp(load(x + j + k * kWidth) - m);
        s[k] += e;
        keep(j + k * kWidth, e, kWidth);
      }
    for (; j < end; j += kWidth) {
      const int n = end - j < kWidth ? static_cast<int>(end - j) : kWidth;
      const F e = exp(load_logits(x + j, n) - m);
      s[0] += e;
      keep(j, e, n);
    }
    total += static_cast<double>(sum_lanes((s[0] + s[1]) + (s[2] + s[3])));
  }
  return total;
}

template <class T> RowStats softmax_stats(const T* x, const T* next, std::int64_t n) {
  const float m = maximum_of(x, n);
  return {m, static_cast<float>(sum_exponentials(x, n, m, next, [](std::int64_t, F, int) {}))};
}

template <class T> RowStats softmax_terms(float* terms, const T* x, const T* next, std::int64_t n) {
  const float m = maximum_of(x, n);
  const double sum = sum_exponentials(x, n, m, next, [&](std::int64_t j, F e, int k) { store_at(terms + j, e, k); });
  return {m, static_cast<float>(sum)};
}

template <class G> void scale_terms(G* d, const float* terms, float factor, std::int64_t n) {
  each_vector(n, [&](std::int64_t j, int k) { store_at(d + j, load_at(terms + j, k) * factor, k); });
}

template <class G, class T> void softmax_gradient(G* d, const T* x, float weight, float lse, std::int64_t n) {
  each_vector(n, [&](std::int64_t j, int k) { store_at(d + j, weight * exp(load_at(x + j, k) - lse), k); });
}

template <class T> std::int64_t argmax(const T* x, std::int64_t n) {
  const float m = maximum_of(x, n);
  for (std::int64_t j = 0; j < n; j += kWidth) {
    const int k = n - j < kWidth ? static_cast<int>(n - j) : kWidth;
    const I equal = load_logits(x + j, k) == m;
    for (int i = 0; i < k; ++i)
      if (equal[i]) return j + i;
  }
  return 0;  // nothing but NaN
}

}  // namespace mmt::cpu::MMT_VEC_NS
