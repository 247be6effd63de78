#include "kernels/gather.h"

#include "kernels/dispatch.h"

namespace mmt::ops {
namespace {

void check_rows(const Stream& stream, const Tensor& dst, const Tensor& src, const Tensor& index, std::int64_t count,
                const char* what) {
  MMT_CHECK(dst.defined() && src.defined() && dst.cols() == src.cols(), "{}: {} from {}", what, dst.describe(),
            src.describe());
  check_vector(stream, index, count, DType::i32, what);
}

}  // namespace

void gather_rows(const Stream& stream, const Tensor& dst, const Tensor& src, const Tensor& index) {
  check_rows(stream, dst, src, index, dst.rows(), "gather_rows");
  MMT_CHECK(dst.dtype == src.dtype, "gather_rows: {} from {}", dst.describe(), src.describe());
  table_for(stream, DType::f32).gather.gather_rows(stream, dst, src, index);
}

void scatter_rows(const Stream& stream, const Tensor& dst, const Tensor& src, const Tensor& index) {
  check_rows(stream, dst, src, index, src.rows(), "scatter_rows");
  MMT_CHECK(dst.dtype == src.dtype, "scatter_rows: {} from {}", dst.describe(), src.describe());
  table_for(stream, DType::f32).gather.scatter_rows(stream, dst, src, index);
}

void scatter_add_rows(const Stream& stream, const Tensor& dst, const Tensor& src, const Tensor& index) {
  check_rows(stream, dst, src, index, src.rows(), "scatter_add_rows");
  check_compute(stream, src, "scatter_add_rows: src");
  MMT_CHECK(dst.dtype == src.dtype || (dst.dtype == DType::f32 && src.dtype == DType::bf16),
            "scatter_add_rows: {} += {}", dst.describe(), src.describe());
  table_for(stream, src.dtype).gather.scatter_add_rows(stream, dst, src, index);
}

}  // namespace mmt::ops
