// Matrix product on row-major matrices with row strides.
#pragma once

#include "kernels/accumulate.h"

#include "core/stream.h"

namespace mmt {

enum class Transpose : bool { no, yes };

struct GemmOptions {
  Accumulate accumulate = Accumulate::overwrite;
  Tensor bias{};  ///< (n), the compute dtype; added to every row; only with overwrite
};

struct GemmTable {
  void (*gemm)(const Stream&, Transpose ta, Transpose tb, const Tensor& c, const Tensor& a, const Tensor& b,
               const GemmOptions& options) = nullptr;
};

namespace ops {

/// c (m, n) = or += op(a) (m, k) * op(b) (k, n) [+ bias], where op(x) is x or its transpose as stored: a is (m, k), or
/// (k, m) when ta is yes. All are rank 2 with any row stride.
/// a and b have the compute dtype; c has it too or is f32 (weight gradients of bf16 products). Sums are f32 (f64 for
/// f64); a bf16 c is rounded once, after bias and old contents. k == 0 or no rows: zeros (or bias), or c unchanged.
/// The order of the sums is the library's: bits may depend on shape, instruction set and thread count.
void gemm(const Stream& stream, Transpose ta, Transpose tb, const Tensor& c, const Tensor& a, const Tensor& b,
          const GemmOptions& options = {});

}  // namespace ops
}  // namespace mmt
