// How parts of tensors become boxes, and the table of who wrote which.
#pragma once

#include "parallel/run/checkpoint.h"

namespace mmt::run {

/// The boxes that make up elements [first, first + count) of `box` in row-major order, in that order: each is
/// contiguous in the range. At most 2 * rank - 1.
std::vector<h5::Box> boxes_of_range(const h5::Box& box, std::int64_t first, std::int64_t count);

/// Elements from `first` on of the flattened box, put at their places in a whole row-major tensor of `shape`.
void put_range(std::span<const std::int64_t> shape, const h5::Box& box, std::int64_t first,
               std::span<const float> values, std::span<float> whole);

std::int64_t num_elements(std::span<const std::int64_t> shape);

/// Checks name, shape, box, range and data against each other; returns the boxes of the part.
std::vector<h5::Box> boxes_of(const TensorPart& part);

/// A box that a rank writes.
struct PieceRow {
  std::string tensor;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  h5::Box box;
  bool frozen = false;
  int writer = 0;
  std::string dataset() const;  ///< "<tensor>/0_128"
  std::string file() const;     ///< "rank_00000.h5"
};
std::string pack(std::span<const PieceRow> rows);
std::vector<PieceRow> unpack(const std::string& text, int writer);

/// By tensor: all its pieces. Throws Error naming the tensor and the ranks when they disagree on its shape or dtype, or
/// do not cover it exactly once.
std::map<std::string, std::vector<PieceRow>> check_coverage(const std::vector<PieceRow>& rows);

}  // namespace mmt::run
