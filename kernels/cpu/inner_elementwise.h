#pragma once

#include "kernels/cpu/inner.h"
#include "kernels/cpu/vec.h"

namespace mmt::cpu::MMT_VEC_NS {

template <class Y, class A, class B>
void add(Rows<Y> y, Rows<const A> a, Rows<const B> b, std::int64_t rows, std::int64_t cols) {
  for (std::int64_t r = 0; r < rows; ++r) {
    Y* py = y.base + r * y.stride;
    const A* pa = a.base + r * a.stride;
    const B* pb = b.base + r * b.stride;
    each_vector(cols, [&](std::int64_t j, int n) { store_at(py + j, load_at(pa + j, n) + load_at(pb + j, n), n); });
  }
}

template <class T> void scale(Rows<T> y, Rows<const T> x, float factor, std::int64_t rows, std::int64_t cols) {
  for (std::int64_t r = 0; r < rows; ++r) {
    T* py = y.base + r * y.stride;
    const T* px = x.base + r * x.stride;
    each_vector(cols, [&](std::int64_t j, int n) { store_at(py + j, load_at(px + j, n) * factor, n); });
  }
}

template <class T> void add_bias(Rows<T> y, Rows<const T> x, const T* b, std::int64_t rows, std::int64_t cols) {
  for (std::int64_t r = 0; r < rows; ++r) {
    T* py = y.base + r * y.stride;
    const T* px = x.base + r * x.stride;
    each_vector(cols, [&](std::int64_t j, int n) { store_at(py + j, load_at(px + j, n) + load_at(b + j, n), n); });
  }
}

template <class Y, class X> void convert(Rows<Y> y, Rows<const X> x, std::int64_t rows, std::int64_t cols) {
  for (std::int64_t r = 0; r < rows; ++r) {
    Y* py = y.base + r * y.stride;
    const X* px = x.base + r * x.stride;
    each_vector(cols, [&](std::int64_t j, int n) { store_at(py + j, load_at(px + j, n), n); });
  }
}

template <class T, bool kBias, bool kAdd>
MMT_INLINE void store_rows(Rows<T> y, Rows<const float> x, const T* bias, std::int64_t rows, std::int64_t cols) {
  for (std::int64_t r = 0; r < rows; ++r) {
    T* py = y.base + r * y.stride;
    const float* px = x.base + r * x.stride;
    each_vector(cols, [&](std::int64_t j, int n) {
      F v = load_at(px + j, n);
      if constexpr (kBias) v += load_at(bias + j, n);
      if constexpr (kAdd) v += load_at(py + j, n);
      store_at(py + j, v, n);
    });
  }
}

template <class T>
void store_product(Rows<T> y, Rows<const float> x, const T* bias, bool add, std::int64_t rows, std::int64_t cols) {
  if (add)
    store_rows<T, false, true>(y, x, nullptr, rows, cols);
  else if (bias)
    store_rows<T, true, false>(y, x, bias, rows, cols);
  else
    store_rows<T, false, false>(y, x, nullptr, rows, cols);
}

// Rows are summed in runs of kRun, the runs then in order: the error grows with the run length and the number of runs,
// not with the number of rows. Four vectors of columns at a time stay in registers.
inline constexpr std::int64_t kRun = 64;

template <class T, int kVectors>
MMT_INLINE void sum_columns(float* sums, Rows<const T> x, bool add, std::int64_t rows, std::int64_t j, int n) {
  F total[kVectors] = {};
  for (std::int64_t first = 0; first < rows; first += kRun) {
    const std::int64_t end = first + kRun < rows ? first + kRun : rows;
    F run[kVectors] = {};
    for (std::int64_t r = first; r < end; ++r)
      for (int k = 0; k < kVectors; ++k) run[k] += load_at(x.base + r * x.stride + j + k * kWidth, n);
    for (int k = 0; k < kVectors; ++k) total[k] += run[k];
  }
  for (int k = 0; k < kVectors; ++k) {
    float* out = sums + j + k * kWidth;
    store_at(out, add ? load_at(out, n) + total[k] : total[k], n);
  }
}

template <class T> void column_sums(float* sums, Rows<const T> x, bool add, std::int64_t rows, std::int64_t cols) {
  std::int64_t j = 0;
  for (; j + 4 * kWidth <= cols; j += 4 * kWidth) sum_columns<T, 4>(sums, x, add, rows, j, kWidth);
  for (; j + kWidth <= cols; j += kWidth) sum_columns<T, 1>(sums, x, add, rows, j, kWidth);
  if (j < cols) sum_columns<T, 1>(sums, x, add, rows, j, static_cast<int>(cols - j));
}

}  // namespace mmt::cpu::MMT_VEC_NS
