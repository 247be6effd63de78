// Reductions of whole tensors to one number, in an order that depends on the element count alone.
#pragma once

#include "kernels/accumulate.h"

#include "core/stream.h"

namespace mmt {

struct ReduceTable {
  void (*sum_of_squares)(const Stream&, const Tensor& out, const Tensor& x, Accumulate) = nullptr;
  void (*sum)(const Stream&, const Tensor& out, const Tensor& x, Accumulate) = nullptr;
  void (*max_abs)(const Stream&, const Tensor& out, const Tensor& x) = nullptr;
};

namespace ops {

/// out f64 (1) = or += sum of x^2, in double. x: f32, bf16 or f64, contiguous. A sum that is finite proves that every
/// element of an f32 or bf16 tensor is finite (their squares cannot overflow a double).
void sum_of_squares(const Stream& stream, const Tensor& out, const Tensor& x,
                    Accumulate accumulate = Accumulate::overwrite);
/// out f64 (1) = or += sum of x, in double.
void sum(const Stream& stream, const Tensor& out, const Tensor& x, Accumulate accumulate = Accumulate::overwrite);
/// out f64 (1) = largest |x|, 0 for an empty tensor; NaN when any element is NaN.
void max_abs(const Stream& stream, const Tensor& out, const Tensor& x);
/// Whether no element is NaN or infinite (waits for the stream).
bool all_finite(const Stream& stream, const Tensor& x);

}  // namespace ops
}  // namespace mmt
