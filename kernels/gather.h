// Moving rows by index: (rows, cols) tensors of one dtype (f32, bf16, f64, or i32 and wider for payload tests), row
// strides allowed, index i32. An index outside its range throws std::logic_error.
#pragma once

#include "kernels/accumulate.h"

#include "core/stream.h"

namespace mmt {

struct GatherTable {
  void (*gather_rows)(const Stream&, const Tensor& dst, const Tensor& src, const Tensor& index) = nullptr;
  void (*scatter_rows)(const Stream&, const Tensor& dst, const Tensor& src, const Tensor& index) = nullptr;
  void (*scatter_add_rows)(const Stream&, const Tensor& dst, const Tensor& src, const Tensor& index) = nullptr;
};

namespace ops {

/// dst[i] = src[index[i]]; index -1 writes a zero row. index has dst's rows.
void gather_rows(const Stream& stream, const Tensor& dst, const Tensor& src, const Tensor& index);
/// dst[index[i]] = src[i]; index -1 skips row i; other rows of dst are untouched. index has src's rows and must not
/// repeat (not checked).
void scatter_rows(const Stream& stream, const Tensor& dst, const Tensor& src, const Tensor& index);
/// dst[index[i]] += src[i] in the order of i, float dtypes only; -1 skips; an index may repeat. dst has src's dtype or
/// is f32 beside bf16. In bf16 every addition rounds: give an f32 dst where rows repeat.
void scatter_add_rows(const Stream& stream, const Tensor& dst, const Tensor& src, const Tensor& index);

}  // namespace ops
}  // namespace mmt
