// Sequence parallelism: between layers a tp rank holds its share of a block's rows; layers that need all of them
// gather.
#pragma once

#include "models/layer.h"

namespace mmt::models {

/// Plans an all-gather of shares of (rows, cols).
run::InnerEvent rows_gather(const UnitPlanner& planner, std::int64_t cols);
/// Fills `whole` (rows, cols) from every rank's share.
void gather_rows_over_tp(Ctx& ctx, const Tensor& share, const Tensor& whole);
/// This rank's share of `whole`.
Tensor own_rows(const Ctx& ctx, const Tensor& whole);

/// A unit that works on all rows (stem, embedding, exit, head) among units that hold shares: gathers its input, passes
/// on its share of the output, and the other way round with gradients. What it computes, every rank does alike. The
/// unit may read its input in the forward alone.
class WholeRows final : public run::Unit {
 public:
  WholeRows(const UnitPlanner::Setting& setting, std::unique_ptr<run::Unit> unit);

  void forward(Ctx& ctx, std::span<const Tensor> in, const Tensor& out, Saved& saved) const override;
  void backward_input(Ctx& ctx, const Tensor& d_out, std::span<const Tensor> d_in, Saved& saved) const override;
  void backward_weight(Ctx& ctx, Saved& saved) const override;
  void recompute(Ctx& ctx, Saved& saved) const override;
  void recompute_cheap(Ctx& ctx, Saved& saved) const override { unit_->recompute_cheap(ctx, saved); }

 private:
  std::vector<Tensor> gathered(Ctx& ctx, std::span<const Tensor> in) const;

  std::unique_ptr<run::Unit> unit_;
  int shared_input_ = kNone;  ///< the port that takes a share
  bool shares_output_ = false;
  SlotId d_out_ = kNone;  ///< of all rows, where the backward of the weights reads it
};

/// The unit itself, or a WholeRows of it where the setting says so.
std::unique_ptr<run::Unit> among_shares(const UnitPlanner::Setting& setting, std::unique_ptr<run::Unit> unit);

}  // namespace mmt::models
