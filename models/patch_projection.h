// First unit of a vision encoder without learned positions (Qwen2-VL): patches to rows by one product.
#pragma once

#include "models/linear.h"

namespace mmt::models {

struct PatchProjectionOptions {
  std::string unit;  ///< "eyes.embed"
  std::int64_t hidden = 0;
  int patch = 14;
  int frames = 2;  ///< that a patch spans
  int channels = 3;
};

/// Rows::source holds one patch a row, (channels, frames, patch, patch) flattened; patch i becomes row i. The parameter
/// is `patch_embed.proj.weight` with these dims. No input port.
class PatchProjection final : public run::Unit {
 public:
  PatchProjection(const UnitPlanner::Setting& setting, const PatchProjectionOptions& options);

  void forward(Ctx& ctx, std::span<const Tensor> in, const Tensor& out, Saved& saved) const override;
  void backward_input(Ctx& ctx, const Tensor& d_out, std::span<const Tensor> d_in, Saved& saved) const override;
  void backward_weight(Ctx& ctx, Saved& saved) const override;
  void recompute(Ctx& ctx, Saved& saved) const override;

 private:
  Tensor pixels(Ctx& ctx, const Saved& saved) const;

  LinearLayer patch_;
  SlotId pixels_ = kNone;  ///< the source in the compute dtype, where that is bf16
};

}  // namespace mmt::models
