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
  if (m == 0 || n == 0) return;
  table_for(stream, a.dtype).gemm.gemm(stream, ta, tb, c, a, b, options);
}

}  // namespace mmt::ops
