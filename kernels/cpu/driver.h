// What the drivers of the fast CPU kernels share: from tensors to pointers, dtype selection, splitting over threads.
#pragma once

#include "kernels/cpu/inner.h"
#include "kernels/cpu/parallel.h"

#include "core/error.h"
#include "core/tensor.h"

#include <utility>

namespace mmt::cpu {

template <class T> const Inner<T>& inner_of(Isa level) {
  if constexpr (std::is_same_v<T, bf16>)
    return inner_kernels(level).bf;
  else
    return inner_kernels(level).f32;
}

/// f.template operator()<level>(): the drivers exist once per level, so that a table entry is a plain function.
template <class F> auto for_level(Isa level, F&& f) {
  switch (level) {
    case Isa::avx512: return f.template operator()<Isa::avx512>();
    case Isa::avx2: return f.template operator()<Isa::avx2>();
    case Isa::portable: break;
  }
  return f.template operator()<Isa::portable>();
}

/// Calls f.template operator()<T>() with T = float or bf16: f64 never reaches the fast kernels (kernels/dispatch.h).
template <class F> decltype(auto) visit_fast(DType dtype, F&& f) {
  if (dtype == DType::bf16) return std::forward<F>(f).template operator()<bf16>();
  MMT_CHECK(dtype == DType::f32, "{} in a fast CPU kernel", name_of(dtype));
  return std::forward<F>(f).template operator()<float>();
}

template <class T> Rows<T> rows_of(const Tensor& t) { return {t.as<std::remove_const_t<T>>(), t.row_stride}; }

template <class T> Rows<T> advance(Rows<T> r, std::int64_t rows, std::int64_t cols) {
  return {r.base + rows * r.stride + cols, r.stride};
}

/// A piece of a (rows, cols) elementwise loop.
struct Piece {
  std::int64_t row, rows, col, cols;
  template <class T> Rows<T> operator()(Rows<T> r) const { return advance(r, row, col); }
};

/// f(piece) over the threads. `flat`: all operands are contiguous, so the loop is one row of rows * cols.
template <class F> void each_piece(std::int64_t rows, std::int64_t cols, bool flat, F&& f) {
  if (flat)
    parallel_shares(rows * cols, 64, rows * cols, [&](std::int64_t first, std::int64_t count) {
      f(Piece{0, 1, first, count});
    });
  else
    parallel_shares(rows, 1, rows * cols, [&](std::int64_t first, std::int64_t count) {
      f(Piece{first, count, 0, cols});
    });
}

}  // namespace mmt::cpu
