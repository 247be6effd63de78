// Boxes of tensors: pure index arithmetic.
#include "core/hdf5/impl.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

namespace mmt::h5 {
namespace {

std::string text(const Box& box) {
  return fmt::format("[{}]+[{}]", fmt::join(box.offset, ","), fmt::join(box.shape, ","));
}

void copy_dims(const char* from, const Box& a, char* to, const Box& b, const Box& common, std::int64_t element_bytes,
               std::size_t dim) {
  if (dim == common.shape.size()) {
    std::memcpy(to, from, static_cast<std::size_t>(element_bytes));
    return;
  }
  const auto stride = [&](const Box& box) { return count(std::span(box.shape).subspan(dim + 1)) * element_bytes; };
  const std::int64_t from_stride = stride(a);
  const std::int64_t to_stride = stride(b);
  const std::int64_t n = common.shape[dim];
  from += (common.offset[dim] - a.offset[dim]) * from_stride;
  to += (common.offset[dim] - b.offset[dim]) * to_stride;
  // Where the rest is whole on both sides, the rows lie one behind the other.
  const auto whole = [&](const Box& box) {
    return std::equal(box.shape.begin() + static_cast<std::ptrdiff_t>(dim) + 1, box.shape.end(),
                      common.shape.begin() + static_cast<std::ptrdiff_t>(dim) + 1);
  };
  if (whole(a) && whole(b)) {
    std::memcpy(to, from, static_cast<std::size_t>(n * from_stride));
    return;
  }
  for (std::int64_t i = 0; i < n; ++i)
    copy_dims(from + i * from_stride, a, to + i * to_stride, b, common, element_bytes, dim + 1);
}

}  // namespace

std::string describe(DType dtype, std::span<const std::int64_t> shape) {
  return fmt::format("{}[{}]", name_of(dtype), fmt::join(shape, ","));
}

std::int64_t count(std::span<const std::int64_t> shape) {
  std::int64_t n = 1;
  for (const std::int64_t d : shape) {
    MMT_CHECK(d >= 0 && !__builtin_mul_overflow(n, d, &n), "impossible shape [{}]", fmt::join(shape, ","));
  }
  return n;
}

std::optional<Box> overlap(const Box& a, const Box& b) {
  Box common = a;
  for (std::size_t i = 0; i < a.shape.size(); ++i) {
    const std::int64_t first = std::max(a.offset[i], b.offset[i]);
    const std::int64_t last = std::min(a.offset[i] + a.shape[i], b.offset[i] + b.shape[i]);
    if (first >= last) return std::nullopt;
    common.offset[i] = first;
    common.shape[i] = last - first;
  }
  return common;
}

void check_inside(const Box& box, std::span<const std::int64_t> shape, const std::string& what) {
  bool inside = box.offset.size() == shape.size() && box.shape.size() == shape.size();
  for (std::size_t i = 0; inside && i < shape.size(); ++i) {
    inside = box.offset[i] >= 0 && box.shape[i] >= 0 && box.offset[i] <= shape[i] &&
             box.shape[i] <= shape[i] - box.offset[i];
  }
  MMT_CHECK(inside, "{}: the box {} does not lie in [{}]", what, text(box), fmt::join(shape, ","));
}

void check_exact_cover(std::span<const std::int64_t> shape, std::span<const Box> boxes, const std::string& what) {
  // Disjoint boxes inside the shape cover it exactly when their sizes add up. Sorted by the first coordinate, only
  // boxes that begin before one ends can overlap it.
  std::vector<const Box*> sorted;
  std::int64_t covered = 0;
  for (const Box& box : boxes) {
    check_inside(box, shape, what);
    if (count(box.shape) == 0) continue;
    covered += count(box.shape);
    sorted.push_back(&box);
  }
  const auto first = [](const Box* box) { return box->offset.empty() ? 0 : box->offset[0]; };
  std::ranges::sort(sorted, {}, first);
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const std::int64_t end = first(sorted[i]) + (shape.empty() ? 1 : sorted[i]->shape[0]);
    for (std::size_t j = i + 1; j < sorted.size() && first(sorted[j]) < end; ++j) {
      MMT_CHECK(!overlap(*sorted[i], *sorted[j]), "{}: the boxes {} and {} overlap", what, text(*sorted[i]),
                text(*sorted[j]));
    }
  }
  MMT_CHECK(covered == count(shape), "{}: the boxes cover {} of {} elements", what, covered, count(shape));
}

void copy_overlap(const void* from, const Box& from_box, void* to, const Box& to_box, std::int64_t element_bytes) {
  const auto common = overlap(from_box, to_box);
  if (common)
    copy_dims(static_cast<const char*>(from), from_box, static_cast<char*>(to), to_box, *common, element_bytes, 0);
}

void for_each_piece(const Dims& shape, std::int64_t element_bytes, std::int64_t max_bytes,
                    const std::function<void(const Box&)>& f) {
  if (count(shape) == 0) return;
  Box box{Dims(shape.size(), 0), shape};
  if (shape.empty()) return f(box);
  // All dims behind `split` fit whole; those before it are taken one index at a time.
  std::size_t split = 0;
  while (count(std::span(shape).subspan(split + 1)) * element_bytes > max_bytes) ++split;
  const std::int64_t row_bytes = count(std::span(shape).subspan(split + 1)) * element_bytes;
  const std::int64_t rows = std::max<std::int64_t>(1, max_bytes / row_bytes);
  for (std::size_t i = 0; i < split; ++i) box.shape[i] = 1;
  for (;;) {
    for (box.offset[split] = 0; box.offset[split] < shape[split]; box.offset[split] += rows) {
      box.shape[split] = std::min(rows, shape[split] - box.offset[split]);
      f(box);
    }
    std::size_t dim = split;
    while (dim > 0 && ++box.offset[dim - 1] == shape[dim - 1]) box.offset[--dim] = 0;
    if (dim == 0) return;
  }
}

}  // namespace mmt::h5
