// RowsMemory: the device side of one block's rows, of fixed capacity, filled anew for every step.
#pragma once

#include "parallel/run/stage.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace mmt::run {

struct RowsCapacity {
  DType master = DType::f32;  ///< of weights, losses and media: f64 where the module computes in f64
  plan::BlockSize size;
  int num_positions = 1;
  int num_masks = 1;
  std::int64_t items = 0;               ///< media items of an encoder block
  std::int64_t rotary_pairs = 0;        ///< of the stage's RotarySpec; 0: none
  std::int64_t source_cols = 0;         ///< columns of Rows::source; 0: the module reads no media
  std::vector<std::int64_t> port_rows;  ///< by stage port; 0 for the port of an inner link
  std::int64_t bytes() const;           ///< of a RowsMemory
};

class RowsMemory {
 public:
  explicit RowsMemory(const RowsCapacity& capacity);

  /// Lays the block out and mirrors the plan. ids are -1, labels -1, weights 0, source 0 until they are set. `ports`
  /// names for each stage port the edge that fills it, -1 for an inner link; the stage's rotary tables are made, too.
  /// The plan must outlive the use of rows().
  void reset(const plan::RowsPlan& plan, std::span<const int> port_edges, const Stage& stage, const Stream& stream);
  Rows& rows() { return rows_; }

  /// Token ids of sample `index` of the block (rows that a port fills keep -1, whatever id stands there: their gradient
  /// is not that of a token), and the labels with their weights that its rows must predict:
  /// `labels[i]` belongs to `ids[i]` (-100: none), so row i - 1 predicts it. Rows that no label supervises must not be
  /// in the plan's supervised rows, and the other way round: throws std::logic_error with the sample.
  void set_sample(std::size_t index, std::span<const std::int32_t> ids, std::span<const std::int32_t> labels,
                  std::span<const float> weights);
  /// Ids alone, without labels (their places hold label 0 with weight 0): for runs that only look at outputs.
  void set_ids(std::size_t index, std::span<const std::int32_t> ids);
  std::int64_t bytes() const { return static_cast<std::int64_t>(arena_.capacity()); }
  /// Where item `index` of the block puts its media rows (count, source_cols).
  Tensor source_of(std::size_t index) const;

 private:
  void copy_ids(const plan::SamplePlan& sample, std::span<const std::int32_t> ids);
  void set_weight(std::int64_t at, float weight);

  RowsCapacity capacity_;
  Arena arena_;
  Rows rows_;
  std::vector<std::uint8_t> from_port_;  ///< by row of the block
};

}  // namespace mmt::run
