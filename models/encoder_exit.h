// Last unit of an encoder's tower: the rows that leave are gathered, then normalised where the tower has a final norm.
//
// A tower whose projector merges neighbours (Qwen2-VL: 2 x 2 patches) lays them side by side here: a row that leaves is
// merge * hidden wide. So all that moves rows (routes, ports, a projector on the LLM's side or cut over tp) counts the
// rows of the LLM and cannot tear neighbours apart, and a projector works row by row. A tower that averages
// neighbours in time (Qwen2-Audio: two) does so here, too, before the norm.
#pragma once

#include "models/norm.h"

namespace mmt::models {

struct EncoderExitOptions {
  std::string unit;  ///< "eyes.exit"
  std::int64_t hidden = 0;
  std::string norm;  ///< layer norm's name; empty: none
  double epsilon = 1e-5;
  std::int64_t merge =
      1;                  ///< above 1: so many consecutive rows leave as one; then all rows leave, and there is no norm
  std::int64_t pool = 1;  ///< above 1: the mean of so many consecutive rows leaves; not both
};

/// Output row i = [norm of] row Rows::out_rows[i] (-1: of zeros), or the mean of that and the pool - 1 rows behind it,
/// or that and the merge - 1 rows behind it side by side. Rows that do not leave have gradient zero. A mean is summed
/// in the master dtype and rounded once.
class EncoderExit final : public run::Unit {
 public:
  EncoderExit(const UnitPlanner::Setting& setting, const EncoderExitOptions& options, bool input_needs_grad);

  void forward(Ctx& ctx, std::span<const Tensor> in, const Tensor& out, Saved& saved) const override;
  void backward_input(Ctx& ctx, const Tensor& d_out, std::span<const Tensor> d_in, Saved& saved) const override;
  void backward_weight(Ctx& ctx, Saved& saved) const override;
  void recompute(Ctx& ctx, Saved& saved) const override;

 private:
  /// The inner rows that leave, as they leave.
  Tensor merged(const Ctx& ctx, const Tensor& x) const;
  void gather(Ctx& ctx, const Tensor& to, const Tensor& x) const;
  void scatter(Ctx& ctx, const Tensor& dx, const Tensor& d) const;

  std::int64_t hidden_ = 0, merge_ = 1, pool_ = 1;
  bool has_norm_ = false, input_needs_grad_ = false;
  Norm norm_;
  SlotId gathered_ = kNone;
};

}  // namespace mmt::models
