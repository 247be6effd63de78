#pragma once

#include "kernels/cpu/inner.h"
#include "kernels/cpu/vec.h"

namespace mmt::cpu::MMT_VEC_NS {

template <class T> double sum(const T* x, std::int64_t count) {
  D s{};
  each_vector(count, [&](std::int64_t j, int n) { s += __builtin_convertvector(load_at(x + j, n), D); });
  return sum_lanes(s);
}

template <class T> double sum_of_squares(const T* x, std::int64_t count) {
  D s{};
  each_vector(count, [&](std::int64_t j, int n) {
    const D d = __builtin_convertvector(load_at(x + j, n), D);
    s += d * d;
  });
  return sum_lanes(s);
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
