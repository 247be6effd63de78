// The learned row behind each line of a picture that was cut into tiles (LLaVA-NeXT's `image_newline`).
//
// Rows of an encoder's output that no inner row becomes (Rows::newline_rows) leave the tower as zeros, so that all that
// moves rows counts the LLM's rows; here they get the parameter, and its gradient is the sum of theirs.
#pragma once

#include "models/layer.h"

namespace mmt::models {

class Newline {
 public:
  Newline() = default;
  /// Parameter `image_newline` (cols), of a unit whose output has `cols` columns and RowCount::out rows.
  Newline(UnitPlanner& planner, std::int64_t cols);

  bool trains() const { return grad_ != kNone; }
  /// What `write` and `split` take of Ctx::scratch.
  Linear scratch() const { return scratch_; }

  void write(Ctx& ctx, const Tensor& out) const;
  /// `rest` = d_out with zeros in the newlines' rows, whose sum goes into the stash.
  void split(Ctx& ctx, Saved& saved, const Tensor& rest, const Tensor& d_out) const;
  void backward_weight(Ctx& ctx, Saved& saved) const;

 private:
  std::int64_t cols_ = 0;
  ParamId param_ = kNone;
  SlotId grad_ = kNone;
  Linear scratch_;
};

}  // namespace mmt::models
