#include "kernels/cpu/tables.h"

#include <cmath>
#include <cstring>

namespace mmt::cpu {
namespace {

template <class F> void each(const Tensor& shape, F&& f) {
  for (std::int64_t i = 0; i < shape.rows(); ++i)
    for (std::int64_t j = 0; j < shape.cols(); ++j) f(i, j);
}

void add(const Stream&, const Tensor& y, const Tensor& a, const Tensor& b) {
  visit_float(a.dtype, [&]<class T>() {
    visit_float(b.dtype, [&]<class U>() {
      each(y, [&](std::int64_t i, std::int64_t j) {
        y.row<T>(i)[j] = T(static_cast<double>(a.row<T>(i)[j]) + static_cast<double>(b.row<U>(i)[j]));
      });
    });
  });
}

void scale(const Stream&, const Tensor& y, const Tensor& x, double factor) {
  visit_float(x.dtype, [&]<class T>() {
    each(y, [&](std::int64_t i, std::int64_t j) { y.row<T>(i)[j] = T(static_cast<double>(x.row<T>(i)[j]) * factor); });
  });
}

template <class T> void fill_integers(const Tensor& y, double value) {
  MMT_CHECK(value == std::trunc(value) && value >= static_cast<double>(std::numeric_limits<T>::min()) &&
                value < std::ldexp(1.0, std::numeric_limits<T>::digits),
            "fill: {} into {}", value, name_of(y.dtype));
  each(y, [&](std::int64_t i, std::int64_t j) {
    (static_cast<T*>(y.data) + i * y.row_stride)[j] = static_cast<T>(value);
  });
}

void fill(const Stream&, const Tensor& y, double value) {
  switch (y.dtype) {
    case DType::u8: return fill_integers<std::uint8_t>(y, value);
    case DType::i32: return fill_integers<std::int32_t>(y, value);
    case DType::i64: return fill_integers<std::int64_t>(y, value);
    case DType::u64: return fill_integers<std::uint64_t>(y, value);
    default: break;
  }
  visit_float(y.dtype, [&]<class T>() { each(y, [&](std::int64_t i, std::int64_t j) { y.row<T>(i)[j] = T(value); }); });
}

void copy(const Stream&, const Tensor& y, const Tensor& x) {
  if (y.dtype == x.dtype) {
    const std::int64_t size = size_of(x.dtype), bytes = x.cols() * size;
    for (std::int64_t i = 0; i < x.rows(); ++i)
      std::memmove(static_cast<char*>(y.data) + i * y.row_stride * size,
                   static_cast<const char*>(x.data) + i * x.row_stride * size, static_cast<std::size_t>(bytes));
    return;
  }
  visit_float(y.dtype, [&]<class T>() {
    visit_float(x.dtype, [&]<class U>() {
      each(y, [&](std::int64_t i, std::int64_t j) { y.row<T>(i)[j] = T(x.row<U>(i)[j]); });
    });
  });
}

void add_bias(const Stream&, const Tensor& y, const Tensor& x, const Tensor& b) {
  visit_float(x.dtype, [&]<class T>() {
    each(y, [&](std::int64_t i, std::int64_t j) {
      y.row<T>(i)[j] = T(static_cast<double>(x.row<T>(i)[j]) + static_cast<double>(b.as<T>()[j]));
    });
  });
}

}  // namespace

ElementwiseTable reference_elementwise() {
  return {.add = add, .scale = scale, .fill = fill, .copy = copy, .add_bias = add_bias};
}

}  // namespace mmt::cpu
