#include "kernels/elementwise.h"

#include "kernels/dispatch.h"

namespace mmt::ops {

void add(const Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b) {
  check_compute(stream, a, "add: a");
  check_like(y, a, "add: y");
  MMT_CHECK(b.rows() == a.rows() && b.cols() == a.cols() &&
                (b.dtype == a.dtype || (a.dtype == DType::f32 && b.dtype == DType::bf16)),
            "add: {} + {}", a.describe(), b.describe());
  table_for(stream, a.dtype).elementwise.add(stream, y, a, b);
}

void add_in_place(const Stream& stream, const Tensor& y, const Tensor& x) { add(stream, y, y, x); }

void scale(const Stream& stream, const Tensor& y, const Tensor& x, double factor) {
  check_compute(stream, x, "scale: x");
  check_like(y, x, "scale: y");
  table_for(stream, x.dtype).elementwise.scale(stream, y, x, factor);
}

void fill(const Stream& stream, const Tensor& y, double value) {
  MMT_CHECK(y.defined(), "fill: no tensor");
  table_for(stream, y.dtype).elementwise.fill(stream, y, value);
}

void copy(const Stream& stream, const Tensor& y, const Tensor& x) {
  MMT_CHECK(x.defined() && y.rows() == x.rows() && y.cols() == x.cols() &&
                (y.dtype == x.dtype || (is_float(y.dtype) && is_float(x.dtype))),
            "copy: {} = {}", y.describe(), x.describe());
  const bool wide = y.dtype != x.dtype && (y.dtype == DType::f64 || x.dtype == DType::f64);
  table_for(stream, wide ? DType::f64 : DType::f32).elementwise.copy(stream, y, x);
}

void add_bias(const Stream& stream, const Tensor& y, const Tensor& x, const Tensor& b) {
  check_compute(stream, x, "add_bias: x");
  check_like(y, x, "add_bias: y");
  check_vector(stream, b, x.cols(), x.dtype, "add_bias: b");
  table_for(stream, x.dtype).elementwise.add_bias(stream, y, x, b);
}

}  // namespace mmt::ops
