// First unit of a vision encoder (CLIP, SigLIP: Radford 2021, Zhai 2023): patches to rows, class row, learned
// positions.
#pragma once

#include "models/linear.h"
#include "models/norm.h"

namespace mmt::models {

struct PatchEmbeddingOptions {
  std::string unit;  ///< "eyes.embed"
  std::int64_t hidden = 0;
  int patch = 14;
  int channels = 3;
  bool bias = false;               ///< of the patch product (SigLIP)
  bool class_token = true;         ///< a learned row before each item's patches (CLIP)
  std::int64_t max_positions = 0;  ///< rows of the position table
  bool pre_norm = true;            ///< layer norm `pre_layrnorm` after the positions (CLIP)
  double epsilon = 1e-5;
  double init_scale = 0.02;
};

/// Rows::source holds one patch a row, (channels, patch, patch) flattened. The rows of an item, or of each of its
/// tiles, are its class row, if any, and its patches in order; Rows::positions says which position each row gets. No
/// input port.
class PatchEmbedding final : public run::Unit {
 public:
  PatchEmbedding(const UnitPlanner::Setting& setting, const PatchEmbeddingOptions& options);

  void forward(Ctx& ctx, std::span<const Tensor> in, const Tensor& out, Saved& saved) const override;
  void backward_input(Ctx& ctx, const Tensor& d_out, std::span<const Tensor> d_in, Saved& saved) const override;
  void backward_weight(Ctx& ctx, Saved& saved) const override;
  void recompute(Ctx& ctx, Saved& saved) const override;

 private:
  /// Calls use(first row, first patch, patches) for every item, or every tile of it.
  template <class F> void each_tile(const run::Rows& rows, F&& use) const;
  void embed(Ctx& ctx, const Tensor& x, Saved& saved) const;
  Tensor pixels(Ctx& ctx, const Saved& saved) const;

  std::int64_t hidden_ = 0;
  bool class_token_ = false, pre_norm_ = false, patches_train_ = false, positions_train_ = false;
  LinearLayer patch_;
  Norm norm_;
  ParamId class_ = kNone, positions_ = kNone;
  SlotId pixels_ = kNone;    ///< the source in the compute dtype, where that is bf16
  SlotId patches_ = kNone;   ///< products, before they take their places
  SlotId embedded_ = kNone;  ///< input of the norm
  SlotId class_grad_ = kNone, d_patches_ = kNone, d_embedded_ = kNone;
};

}  // namespace mmt::models
