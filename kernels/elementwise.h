// Sums, scaling, filling and conversion of (rows, cols) tensors; row strides allowed on every operand.
#pragma once

#include "core/stream.h"

namespace mmt {

struct ElementwiseTable {
  void (*add)(const Stream&, const Tensor& y, const Tensor& a, const Tensor& b) = nullptr;
  void (*scale)(const Stream&, const Tensor& y, const Tensor& x, double factor) = nullptr;
  void (*fill)(const Stream&, const Tensor& y, double value) = nullptr;
  void (*copy)(const Stream&, const Tensor& y, const Tensor& x) = nullptr;
  void (*add_bias)(const Stream&, const Tensor& y, const Tensor& x, const Tensor& b) = nullptr;
};

namespace ops {

/// y = a + b. y and a have one dtype, b the same or bf16 beside f32. y may be a or b.
void add(const Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b);
/// y += x.
void add_in_place(const Stream& stream, const Tensor& y, const Tensor& x);
/// y = factor * x, one dtype (the factor is rounded to the inner precision). y may be x.
void scale(const Stream& stream, const Tensor& y, const Tensor& x, double factor);
/// y = value. Any dtype; integers take the value when they can hold it exactly.
void fill(const Stream& stream, const Tensor& y, double value);
/// y = x: the same number of rows and columns; equal dtypes (any), or a conversion between f32, bf16 and f64, rounded
/// to nearest even.
void copy(const Stream& stream, const Tensor& y, const Tensor& x);
/// y = x + b for every row, b (cols), one dtype. y may be x.
void add_bias(const Stream& stream, const Tensor& y, const Tensor& x, const Tensor& b);

}  // namespace ops
}  // namespace mmt
