#pragma once

#include "kernels/cpu/inner.h"
#include "kernels/cpu/vec.h"

namespace mmt::cpu::MMT_VEC_NS {

/// A loop count that the compiler knows.
template <int kCount> struct Count {
  MMT_INLINE constexpr operator int() const { return kCount; }
};

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
    each_vector(cols, [&](std::int64_t j, int n) { store_exactly(py + j, load_at(px + j, n), n); });
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

// Column sums walk down the rows kRun at a time: a run is summed in registers, then added to the totals in memory. Rows
// are read once and in order, whatever their stride; the error grows with kRun + rows / kRun.
inline constexpr int kRun = 8;

template <class T> void column_sums(float* sums, Rows<const T> x, bool add, std::int64_t rows, std::int64_t cols) {
  const auto run = [&](std::int64_t first, auto count, bool keep) {
    const std::int64_t ahead = first + 2 * kRun <= rows ? kRun : 0;
    each_vector(cols, [&](std::int64_t j, int n) {
      F s{};
      for (int i = 0; i < count; ++i) {
        prefetch(x.base + (first + i + ahead) * x.stride + j);
        s += load_at(x.base + (first + i) * x.stride + j, n);
      }
      store_at(sums + j, keep ? load_at(sums + j, n) + s : s, n);
    });
  };
  std::int64_t r = 0;
  for (; r + kRun <= rows; r += kRun) run(r, Count<kRun>{}, add || r > 0);
  if (r < rows || rows == 0) run(r, static_cast<int>(rows - r), add || r > 0);
}

}  // namespace mmt::cpu::MMT_VEC_NS
