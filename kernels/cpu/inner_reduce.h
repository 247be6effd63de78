#pragma once

#include "kernels/cpu/inner.h"
#include "kernels/cpu/vec.h"

namespace mmt::cpu::MMT_VEC_NS {

// Adds term(D or double) over the elements with four accumulators.
template <class T, class Term> MMT_INLINE double sum_terms(const T* x, std::int64_t count, Term&& term) {
  D s[4] = {};
  std::int64_t j = 0;
  for (; j + 4 * kHalf <= count; j += 4 * kHalf)
    for (int k = 0; k < 4; ++k) s[k] += term(load_f64(x + j + k * kHalf));
  double rest = 0;
  for (; j < count; ++j) rest += term(scalar_f64(x + j));
  return sum_lanes((s[0] + s[1]) + (s[2] + s[3])) + rest;
}

template <class T> double sum(const T* x, std::int64_t count) {
  return sum_terms(x, count, [](auto v) { return v; });
}

template <class T> double sum_of_squares(const T* x, std::int64_t count) {
  return sum_terms(x, count, [](auto v) { return v * v; });
}

// As integers, magnitudes order like floats and NaN is above infinity.
template <class T> float max_abs(const T* x, std::int64_t count) {
  I most{};
  each_vector(count, [&](std::int64_t j, int n) {
    const I a = reinterpret_cast<I>(bits_of(load_at(x + j, n)) & 0x7fffffffu);
    most = a > most ? a : most;
  });
  std::int32_t largest = 0;
  for (int i = 0; i < kWidth; ++i) largest = most[i] > largest ? most[i] : largest;
  float result;
  __builtin_memcpy(&result, &largest, sizeof result);
  return result;
}

}  // namespace mmt::cpu::MMT_VEC_NS
