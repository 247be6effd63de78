#include "kernels/gemm.h"

#include "kernels/dispatch.h"

namespace mmt::ops {

void gemm(const Stream& stream, Transpose ta, Transpose tb, const Tensor& c, const Tensor& a, const Tensor& b,
          const GemmOptions& options) {
  check_compute(stream, a, "gemm: a");
  check_tensor(stream, a, 2, a.dtype, "gemm: a");
  check_tensor(stream, b, 2, a.dtype, "gemm: b");
  check_tensor(stream, c, 2, c.dtype == DType::f32 && a.dtype == DType::bf16 ? DType::f32 : a.dtype, "gemm: c");
  const bool t = ta == Transpose::yes, u = tb == Transpose::yes;
  const std::int64_t m = a.dims[t ? 1 : 0], k = a.dims[t ? 0 : 1], n = b.dims[u ? 0 : 1];
  MMT_CHECK(b.dims[u ? 1 : 0] == k && c.dims[0] == m && c.dims[1] == n, "gemm: {} = {}{} * {}{}", c.describe(),
            a.describe(), t ? "^T" : "", b.describe(), u ? "^T" : "");
  if (options.bias.defined()) {
    check_vector(stream, options.bias, n, a.dtype, "gemm: bias");
    MMT_CHECK(options.accumulate == Accumulate::overwrite, "gemm: a bias together with accumulation");
  }
  if (options.packed.defined()) {
    check_vector(stream, options.packed, packed_bytes(stream, a.dtype, tb, k, n), DType::u8, "gemm: packed b");
  }
  if (m == 0 || n == 0) return;
  table_for(stream, a.dtype).gemm.gemm(stream, ta, tb, c, a, b, options);
}

std::int64_t packed_bytes(const Stream& stream, DType dtype, Transpose tb, std::int64_t k, std::int64_t n) {
  const GemmTable& table = table_for(stream, dtype).gemm;
  return table.packed_bytes == nullptr || k == 0 || n == 0 ? 0 : table.packed_bytes(stream, dtype, tb, k, n);
}

void pack(const Stream& stream, const Tensor& packed, Transpose tb, const Tensor& b) {
  check_compute(stream, b, "pack: b");
  check_tensor(stream, b, 2, b.dtype, "pack: b");
  const bool t = tb == Transpose::yes;
  const std::int64_t bytes = packed_bytes(stream, b.dtype, tb, b.dims[t ? 1 : 0], b.dims[t ? 0 : 1]);
  MMT_CHECK(bytes > 0, "pack: this backend keeps no layout of its own for {}{}", b.describe(), t ? "^T" : "");
  check_vector(stream, packed, bytes, DType::u8, "pack: the packed matrix");
  table_for(stream, b.dtype).gemm.pack(stream, packed, tb, b);
}

}  // namespace mmt::ops
