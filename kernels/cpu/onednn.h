// oneDNN 2.x behind plain functions; onednn.cpp is the one file that includes its header.
#pragma once

#include "core/tensor.h"

#include <cstdint>
#include <string>

namespace mmt::cpu::onednn {

/// A matrix operand: pointer, row stride, and whether the product reads its transpose. T: float or bf16.
template <class T> struct Operand {
  const T* data;
  std::int64_t ld;
  bool transposed;
};

/// c (m, n) = beta * c + a b in f32 sums, any shape, nothing prepared. Returns the library's status: 0 when done.
[[nodiscard]] int gemm(std::int64_t m, std::int64_t n, std::int64_t k, Operand<float> a, Operand<float> b, float beta,
                       float* c, std::int64_t ldc);
/// Only where the machine multiplies bf16.
[[nodiscard]] int gemm(std::int64_t m, std::int64_t n, std::int64_t k, Operand<bf16> a, Operand<bf16> b, float beta,
                       float* c, std::int64_t ldc);

/// A product for the matmul primitive: c (m, n) = [c +] a b [+ bias], rounded once.
struct Product {
  std::int64_t m, n, k;
  DType in, out;  ///< of a, b and bias; of c
  const void* a;  ///< row-major, not transposed
  std::int64_t lda;
  const void* b;  ///< in the layout of pack() when `packed`
  std::int64_t ldb;
  bool b_transposed, packed;
  const void* bias;  ///< (n) or null
  void* c;
  std::int64_t ldc;
  bool add;
};
/// False, and nothing is done, where the library has no blocked kernel for it. A primitive is made for every new
/// combination of shapes, strides and number of threads (up to half a millisecond) and kept; each thread keeps the
/// last few hundred.
[[nodiscard]] bool matmul(const Product& product);

/// Bytes of a (k, n) matrix in the layout that matmul reads fastest; 0 where the library has none or would pad it.
std::int64_t packed_bytes(DType dtype, std::int64_t k, std::int64_t n);
void pack(DType dtype, std::int64_t k, std::int64_t n, void* packed, const void* b, std::int64_t ldb,
          bool b_transposed);

std::string version();  ///< "2.6.3": of the library that is loaded

/// Primitives that the calling thread keeps, and how many it may: for tests.
std::int64_t kept_primitives();
inline constexpr std::int64_t kMaxPrimitives = 256;

}  // namespace mmt::cpu::onednn
