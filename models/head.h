// Last unit of a decoder, a sink: final norm, linear head and cross-entropy of the supervised rows.
#pragma once

#include "models/head_shards.h"
#include "models/norm.h"

namespace mmt::models {

struct HeadOptions {
  std::string unit;  ///< "llm.head"
  NormOptions norm;  ///< name, kind, epsilon
  std::string head;  ///< parameter "<head>.weight" (vocabulary, hidden); the embedding's name when they are tied
  std::int64_t vocabulary = 0;
  std::int64_t hidden = 0;
  double init_scale = 0.02;
  std::int64_t chunk = 512;  ///< rows whose logits exist at a time
};

/// Gathers the supervised rows first, so that norm and head cost nothing for the others. In training F also makes the
/// gradients of norm and head, seeded with weight * Ctx::loss_scale, and keeps the supervised rows' input gradient;
/// backward_input scatters it, zero elsewhere. Rows::loss gets the unweighted loss of each label. Over tp each rank
/// holds a share of the vocabulary.
class HeadUnit final : public run::Unit {
 public:
  HeadUnit(const UnitPlanner::Setting& setting, const HeadOptions& options, bool input_needs_grad);

  void forward(Ctx& ctx, std::span<const Tensor> in, const Tensor& out, Saved& saved) const override;
  void backward_input(Ctx& ctx, const Tensor& d_out, std::span<const Tensor> d_in, Saved& saved) const override;
  void backward_weight(Ctx&, Saved&) const override {}
  /// Refills the kept input gradient; writes no parameter gradient and no loss.
  void recompute(Ctx& ctx, Saved& saved) const override;

 private:
  void train(Ctx& ctx, const Tensor& x, Saved& saved, bool again) const;
  void evaluate(Ctx& ctx, const Tensor& x, Saved& saved) const;
  Tensor store_loss(Ctx& ctx) const;

  std::int64_t hidden_ = 0, vocabulary_ = 0, chunk_ = 0;
  bool input_needs_grad_ = false, head_trains_ = false;
  Norm norm_;
  HeadShards shards_;
  ParamId head_ = kNone;
  SlotId gathered_ = kNone, normed_ = kNone, d_gathered_ = kNone;
};

}  // namespace mmt::models
