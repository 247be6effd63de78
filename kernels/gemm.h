// Matrix product on row-major matrices with row strides.
#pragma once

#include "kernels/accumulate.h"

#include "core/stream.h"

namespace mmt {

enum class Transpose : bool { no, yes };

struct GemmOptions {
  Accumulate accumulate = Accumulate::overwrite;
  Tensor bias{};    ///< (n), the compute dtype; added to every row; only with overwrite
  Tensor packed{};  ///< op(b) as ops::pack laid it out, or absent; b itself must be given all the same
};

struct GemmTable {
  void (*gemm)(const Stream&, Transpose ta, Transpose tb, const Tensor& c, const Tensor& a, const Tensor& b,
               const GemmOptions& options) = nullptr;
  std::int64_t (*packed_bytes)(const Stream&, DType, Transpose tb, std::int64_t k, std::int64_t n) = nullptr;
  void (*pack)(const Stream&, const Tensor& packed, Transpose tb, const Tensor& b) = nullptr;
};

namespace ops {

/// c (m, n) = or += op(a) (m, k) * op(b) (k, n) [+ bias], where op(x) is x or its transpose as stored: a is (m, k), or
/// (k, m) when ta is yes. All are rank 2 with any row stride.
/// a and b have the compute dtype; c has it too or is f32 (weight gradients of bf16 products). Sums are f32 (f64 for
/// f64); a bf16 c is rounded once, after bias and old contents. k == 0 or no rows: zeros (or bias), or c unchanged.
/// The order of the sums is the library's: bits may depend on shape, strides, instruction set and thread count, and on
/// whether b is packed; equal calls have equal bits.
void gemm(const Stream& stream, Transpose ta, Transpose tb, const Tensor& c, const Tensor& a, const Tensor& b,
          const GemmOptions& options = {});

/// A matrix that many products read and nothing changes (a frozen weight) may be kept in the backend's own layout
/// besides: op(b) is (k, n). 0 where the backend has none for this shape, dtype or machine, or gains nothing by it:
/// then there is nothing to pack. Values of op(b) keep their bits in it; the layout is good for this process alone.
std::int64_t packed_bytes(const Stream& stream, DType dtype, Transpose tb, std::int64_t k, std::int64_t n);
/// packed: u8, packed_bytes() of them, 64-byte aligned.
void pack(const Stream& stream, const Tensor& packed, Transpose tb, const Tensor& b);

}  // namespace ops
}  // namespace mmt
