// First unit of an audio encoder (Whisper: Radford 2022): two convolutions over time, GELU after each, positions.
#pragma once

#include "models/linear.h"

namespace mmt::models {

struct AudioStemOptions {
  std::string unit;  ///< "ears.embed"
  std::int64_t hidden = 0;
  int mels = 80;
  std::int64_t max_positions = 1500;
  bool train_positions = false;  ///< the table is sinusoids, which Whisper freezes
};

/// Rows::source holds mel frames, clips packed without gaps; Rows::source_spans their spans. conv1 (kernel 3, stride 1)
/// keeps the frames, conv2 (kernel 3, stride 2) halves them (odd counts round up): an item's rows. An item may have
/// one frame more than two a row: where its clip ends and padding goes on, its last row sees that frame through conv1.
/// No input port.
class AudioStem final : public run::Unit {
 public:
  AudioStem(const UnitPlanner::Setting& setting, const AudioStemOptions& options);

  void forward(Ctx& ctx, std::span<const Tensor> in, const Tensor& out, Saved& saved) const override;
  void backward_input(Ctx& ctx, const Tensor& d_out, std::span<const Tensor> d_in, Saved& saved) const override;
  void backward_weight(Ctx& ctx, Saved& saved) const override;
  void recompute(Ctx& ctx, Saved& saved) const override;

 private:
  void convolve(Ctx& ctx, Saved& saved) const;
  void check_items(const run::Rows& rows) const;
  Tensor frames(Ctx& ctx, const Saved& saved) const;
  Tensor columns(Ctx& ctx, const Tensor& x, int stride) const;

  std::int64_t hidden_ = 0, mels_ = 0;
  bool conv1_needs_grad_ = false, conv2_needs_grad_ = false;
  LinearLayer conv1_, conv2_;
  ParamId positions_ = kNone;
  bool positions_train_ = false;
  SlotId frames_ = kNone;  ///< the source in the compute dtype, where that is bf16
  SlotId pre1_ = kNone, act1_ = kNone, pre2_ = kNone;
  SlotId d_pre1_ = kNone, d_pre2_ = kNone;
};

}  // namespace mmt::models
