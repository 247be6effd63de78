#include "kernels/linear.h"

#include "kernels/dispatch.h"

namespace mmt::ops {

void linear_forward(const Stream& stream, const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& b,
                    const Tensor& packed) {
  gemm(stream, Transpose::no, Transpose::yes, y, x, w, {.bias = b, .packed = packed});
}

void linear_activation_forward(const Stream& stream, const Tensor& y, const Tensor& pre, const Tensor& x,
                               const Tensor& w, const Tensor& b, Activation activation, const Tensor& packed) {
  const Tensor& z = pre.defined() ? pre : y;
  linear_forward(stream, z, x, w, b, packed);
  activation_forward(stream, y, z, activation);
}

void linear_backward_input(const Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& w,
                           Accumulate accumulate, const Tensor& packed) {
  gemm(stream, Transpose::no, Transpose::no, dx, dy, w, {.accumulate = accumulate, .packed = packed});
}

void linear_backward_weight(const Stream& stream, const Tensor& dw, const Tensor& dy, const Tensor& x,
                            Accumulate accumulate) {
  MMT_CHECK(dw.dtype == master_of(x.dtype), "linear: weight gradient {} of activations {}", dw.describe(),
            x.describe());
  gemm(stream, Transpose::yes, Transpose::no, dw, dy, x, {.accumulate = accumulate, .bias = {}});
}

void linear_backward_bias(const Stream& stream, const Tensor& db, const Tensor& dy, Accumulate accumulate) {
  check_compute(stream, dy, "linear: dy");
  check_vector(stream, db, dy.cols(), master_of(dy.dtype), "linear: db");
  table_for(stream, dy.dtype).linear.backward_bias(stream, db, dy, accumulate);
}

}  // namespace mmt::ops
