// Last unit of an encoder's tower: the rows that leave are gathered, then normalised where the tower has a final norm.
#pragma once

#include "models/norm.h"

namespace mmt::models {

struct EncoderExitOptions {
  std::string unit;  ///< "eyes.exit"
  std::int64_t hidden = 0;
  std::string norm;  ///< layer norm's name; empty: none
  double epsilon = 1e-5;
};

/// Output row i = [norm of] row Rows::out_rows[i]. Rows that do not leave have gradient zero.
class EncoderExit final : public run::Unit {
 public:
  EncoderExit(const UnitPlanner::Setting& setting, const EncoderExitOptions& options, bool input_needs_grad);

  void forward(Ctx& ctx, std::span<const Tensor> in, const Tensor& out, Saved& saved) const override;
  void backward_input(Ctx& ctx, const Tensor& d_out, std::span<const Tensor> d_in, Saved& saved) const override;
  void backward_weight(Ctx& ctx, Saved& saved) const override;
  void recompute(Ctx& ctx, Saved& saved) const override;

 private:
  std::int64_t hidden_ = 0;
  bool has_norm_ = false, input_needs_grad_ = false;
  Norm norm_;
  SlotId gathered_ = kNone;
};

}  // namespace mmt::models
