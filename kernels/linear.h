// Linear layer: y = x W^T + b, with W (out, in) as Hugging Face stores it.
#pragma once

#include "kernels/activation.h"
#include "kernels/gemm.h"

namespace mmt {

struct LinearTable {
  void (*backward_bias)(const Stream&, const Tensor& db, const Tensor& dy, Accumulate) = nullptr;
};

namespace ops {

// `packed`: the weight as ops::pack laid it out for this product (Transpose::yes for y = x w^T, Transpose::no for
// dx = dy w), or absent.

/// y (rows, out) = x (rows, in) w^T + b. `b` (out) may be absent. y, x, w, b: the compute dtype (or y f32).
void linear_forward(const Stream& stream, const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& b = {},
                    const Tensor& packed = {});

/// pre = x w^T + b, y = activation(pre); both (rows, out), both rounded (y is computed from the rounded pre, so that
/// the bits are those of linear_forward followed by activation_forward). `pre` may be absent when no backward will read
/// it.
void linear_activation_forward(const Stream& stream, const Tensor& y, const Tensor& pre, const Tensor& x,
                               const Tensor& w, const Tensor& b, Activation activation, const Tensor& packed = {});

/// dx (rows, in) = or += dy (rows, out) w.
void linear_backward_input(const Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& w,
                           Accumulate accumulate = Accumulate::overwrite, const Tensor& packed = {});

/// dw (out, in), master dtype, = or += dy^T x.
void linear_backward_weight(const Stream& stream, const Tensor& dw, const Tensor& dy, const Tensor& x,
                            Accumulate accumulate = Accumulate::overwrite);

/// db (out), master dtype, = or += column sums of dy (rows, out). Fixed order: bits depend on the rows alone.
void linear_backward_bias(const Stream& stream, const Tensor& db, const Tensor& dy,
                          Accumulate accumulate = Accumulate::overwrite);

}  // namespace ops
}  // namespace mmt
