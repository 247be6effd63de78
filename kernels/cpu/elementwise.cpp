// The fast elementwise ops.
#include "kernels/cpu/driver.h"
#include "kernels/cpu/tables.h"

#include <cmath>
#include <cstring>

namespace mmt::cpu {
namespace {

template <Isa kLevel> struct Elementwise {
  static void add(const Stream&, const Tensor& y, const Tensor& a, const Tensor& b) {
    const bool flat = y.contiguous() && a.contiguous() && b.contiguous();
    visit_fast(b.dtype, [&]<class T>() {
      const Inner<T>& inner = inner_of<T>(kLevel);
      if (a.dtype == b.dtype) {
        const auto py = rows_of<T>(y);
        const auto pa = rows_of<const T>(a), pb = rows_of<const T>(b);
        each_piece(y.rows(), y.cols(), flat, [&](Piece p) { inner.add(p(py), p(pa), p(pb), p.rows, p.cols); });
      } else {
        const auto py = rows_of<float>(y);
        const auto pa = rows_of<const float>(a);
        const auto pb = rows_of<const T>(b);
        each_piece(y.rows(), y.cols(), flat, [&](Piece p) { inner.add_to_f32(p(py), p(pa), p(pb), p.rows, p.cols); });
      }
    });
  }

  static void scale(const Stream&, const Tensor& y, const Tensor& x, double factor) {
    visit_fast(x.dtype, [&]<class T>() {
      const auto py = rows_of<T>(y);
      const auto px = rows_of<const T>(x);
      each_piece(y.rows(), y.cols(), y.contiguous() && x.contiguous(),
                 [&](Piece p) { inner_of<T>(kLevel).scale(p(py), p(px), static_cast<float>(factor), p.rows, p.cols); });
    });
  }

  static void fill(const Stream& stream, const Tensor& y, double value) {
    if (value != 0 || std::signbit(value) || y.dtype == DType::f64)
      return reference_elementwise().fill(stream, y, value);
    const std::int64_t size = size_of(y.dtype);
    each_piece(y.rows(), y.cols() * size, y.contiguous(), [&](Piece p) {
      for (std::int64_t r = 0; r < p.rows; ++r)
        std::memset(static_cast<char*>(y.data) + (p.row + r) * y.row_stride * size + p.col, 0,
                    static_cast<std::size_t>(p.cols));
    });
  }

  static void copy(const Stream& stream, const Tensor& y, const Tensor& x) {
    const bool flat = y.contiguous() && x.contiguous();
    if (y.dtype == x.dtype) {
      const std::int64_t size = size_of(x.dtype);
      each_piece(y.rows(), y.cols() * size, flat, [&](Piece p) {
        for (std::int64_t r = p.row; r < p.row + p.rows; ++r)
          std::memmove(static_cast<char*>(y.data) + r * y.row_stride * size + p.col,
                       static_cast<const char*>(x.data) + r * x.row_stride * size + p.col,
                       static_cast<std::size_t>(p.cols));
      });
      return;
    }
    if (y.dtype == DType::f64 || x.dtype == DType::f64) return reference_elementwise().copy(stream, y, x);
    const Inner<bf16>& inner = inner_of<bf16>(kLevel);
    each_piece(y.rows(), y.cols(), flat, [&](Piece p) {
      if (y.dtype == DType::bf16)
        inner.from_f32(p(rows_of<bf16>(y)), p(rows_of<const float>(x)), p.rows, p.cols);
      else
        inner.to_f32(p(rows_of<float>(y)), p(rows_of<const bf16>(x)), p.rows, p.cols);
    });
  }

  static void add_bias(const Stream&, const Tensor& y, const Tensor& x, const Tensor& b) {
    visit_fast(x.dtype, [&]<class T>() {
      const auto py = rows_of<T>(y);
      const auto px = rows_of<const T>(x);
      const T* bias = b.as<T>();
      each_piece(y.rows(), y.cols(), false,
                 [&](Piece p) { inner_of<T>(kLevel).add_bias(p(py), p(px), bias, p.rows, p.cols); });
    });
  }

  static void backward_bias(const Stream&, const Tensor& db, const Tensor& dy, Accumulate accumulate) {
    visit_fast(dy.dtype, [&]<class T>() {
      float* sums = db.as<float>();
      const auto px = rows_of<const T>(dy);
      parallel_shares(dy.cols(), 64, dy.rows() * dy.cols(), [&](std::int64_t first, std::int64_t count) {
        inner_of<T>(kLevel).column_sums(sums + first, advance(px, 0, first), accumulate == Accumulate::add, dy.rows(),
                                        count);
      });
    });
  }
};

template <Isa kLevel> constexpr ElementwiseTable kElementwise = {
    .add = Elementwise<kLevel>::add,
    .scale = Elementwise<kLevel>::scale,
    .fill = Elementwise<kLevel>::fill,
    .copy = Elementwise<kLevel>::copy,
    .add_bias = Elementwise<kLevel>::add_bias,
};

}  // namespace

ElementwiseTable cpu_elementwise(Isa level) {
  return for_level(level, []<Isa kLevel>() { return kElementwise<kLevel>; });
}

LinearTable cpu_linear(Isa level) {
  return for_level(level,
                   []<Isa kLevel>() { return LinearTable{.backward_bias = Elementwise<kLevel>::backward_bias}; });
}

}  // namespace mmt::cpu
