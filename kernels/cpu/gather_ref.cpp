#include "kernels/cpu/index_check.h"
#include "kernels/cpu/tables.h"

#include <cstring>

namespace mmt::cpu {
namespace {

char* row_of(const Tensor& t, std::int64_t r) {
  return static_cast<char*>(t.data) + r * t.row_stride * size_of(t.dtype);
}

void gather_rows(const Stream&, const Tensor& dst, const Tensor& src, const Tensor& index) {
  check_indices(index, -1, src.rows(), "gather_rows: index");
  const auto bytes = static_cast<std::size_t>(dst.cols() * size_of(dst.dtype));
  for (std::int64_t i = 0; i < dst.rows(); ++i) {
    const std::int32_t from = index.as<std::int32_t>()[i];
    if (from < 0)
      std::memset(row_of(dst, i), 0, bytes);
    else
      std::memcpy(row_of(dst, i), row_of(src, from), bytes);
  }
}

void scatter_rows(const Stream&, const Tensor& dst, const Tensor& src, const Tensor& index) {
  check_indices(index, -1, dst.rows(), "scatter_rows: index");
  const auto bytes = static_cast<std::size_t>(dst.cols() * size_of(dst.dtype));
  for (std::int64_t i = 0; i < src.rows(); ++i) {
    const std::int32_t to = index.as<std::int32_t>()[i];
    if (to >= 0) std::memcpy(row_of(dst, to), row_of(src, i), bytes);
  }
}

void scatter_add_rows(const Stream&, const Tensor& dst, const Tensor& src, const Tensor& index) {
  check_indices(index, -1, dst.rows(), "scatter_add_rows: index");
  visit_float(dst.dtype, [&]<class T>() {
    visit_float(src.dtype, [&]<class U>() {
      for (std::int64_t i = 0; i < src.rows(); ++i) {
        const std::int32_t to = index.as<std::int32_t>()[i];
        if (to < 0) continue;
        for (std::int64_t j = 0; j < src.cols(); ++j)
          dst.row<T>(to)[j] = T(static_cast<double>(dst.row<T>(to)[j]) + static_cast<double>(src.row<U>(i)[j]));
      }
    });
  });
}

}  // namespace

GatherTable reference_gather() {
  return {.gather_rows = gather_rows, .scatter_rows = scatter_rows, .scatter_add_rows = scatter_add_rows};
}

}  // namespace mmt::cpu
