#include "core/tensor.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace mmt {

Tensor::Tensor(void* memory, DType type, std::span<const std::int64_t> shape, Device where)
    : data(memory), rank(static_cast<std::int8_t>(shape.size())), dtype(type), device(where) {
  MMT_CHECK(!shape.empty() && shape.size() <= kMaxRank, "rank {} is not in 1..{}", shape.size(), kMaxRank);
  for (std::size_t i = 0; i < shape.size(); ++i) {
    MMT_CHECK(shape[i] >= 0, "dimension {} is {}", i, shape[i]);
    dims[i] = shape[i];
  }
  // No product of the dims that are not zero may overflow, so that cols(), numel() and bytes() never do.
  std::int64_t product = size_of(type);
  for (const std::int64_t d : shape) {
    MMT_CHECK(!__builtin_mul_overflow(product, std::max<std::int64_t>(d, 1), &product),
              "{}[{}] has more than 2^63 bytes", name_of(type), fmt::join(shape, ","));
  }
  row_stride = cols();
}

Tensor::Tensor(void* memory, DType type, std::initializer_list<std::int64_t> shape, Device where)
    : Tensor(memory, type, std::span<const std::int64_t>(shape.begin(), shape.size()), where) {}

std::int64_t Tensor::cols() const {
  std::int64_t n = rank == 0 ? 0 : 1;
  for (int i = 1; i < rank; ++i) n *= dims[i];
  return n;
}

Tensor Tensor::row_range(std::int64_t first, std::int64_t count) const {
  MMT_CHECK(defined() && first >= 0 && count >= 0 && first <= rows() && count <= rows() - first,
            "{} rows from {} of {}", count, first, describe());
  Tensor t = *this;
  t.data = static_cast<char*>(data) + first * row_stride * size_of(dtype);
  t.dims[0] = count;
  return t;
}

Tensor Tensor::col_range(std::int64_t first, std::int64_t count) const {
  MMT_CHECK(rank == 2 && first >= 0 && count >= 0 && first <= dims[1] && count <= dims[1] - first,
            "{} columns from {} of {}", count, first, describe());
  Tensor t = *this;
  t.data = static_cast<char*>(data) + first * size_of(dtype);
  t.dims[1] = count;
  return t;
}

Tensor Tensor::reshape(std::initializer_list<std::int64_t> shape) const {
  MMT_CHECK(contiguous(), "{} is not contiguous", describe());
  Tensor t(data, dtype, shape, device);
  MMT_CHECK(t.numel() == numel(), "{} has {} elements, not {}", describe(), numel(), t.numel());
  return t;
}

std::string Tensor::describe() const {
  if (!defined()) return "absent";
  return fmt::format("{}[{}]", name_of(dtype), fmt::join(shape(), ","));
}

void check_shape(const Tensor& t, std::initializer_list<std::int64_t> shape, const char* what) {
  MMT_CHECK(std::ranges::equal(t.shape(), std::span<const std::int64_t>(shape.begin(), shape.size())),
            "{} is {}, expected [{}]", what, t.describe(), fmt::join(shape, ","));
}

void check_same_shape(const Tensor& a, const Tensor& b, const char* what) {
  MMT_CHECK(a.dtype == b.dtype && std::ranges::equal(a.shape(), b.shape()), "{}: {} and {} differ", what, a.describe(),
            b.describe());
}

}  // namespace mmt
