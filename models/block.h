// Pre-norm transformer block: h = x + attention(norm1(x)), y = h + mlp(norm2(h)).
#pragma once

#include "models/attention.h"
#include "models/mlp.h"
#include "models/norm.h"

#include <memory>

namespace mmt::models {

struct BlockOptions {
  std::string unit;          ///< "llm.layers.3"
  std::string prefix;        ///< before the parameter names: "model.layers.3."
  std::string norm1, norm2;  ///< parameter names, without the prefix
  NormKind norm = NormKind::rms;
  double epsilon = 1e-5;
  AttentionOptions attention;  ///< names without the prefix
  MlpOptions mlp;              ///< names without the prefix
};

class TransformerBlock final : public run::Unit {
 public:
  /// Input and output: port "x", (rows, attention.hidden).
  TransformerBlock(const UnitPlanner::Setting& setting, BlockOptions options, bool input_needs_grad);

  void forward(Ctx& ctx, std::span<const Tensor> in, const Tensor& out, Saved& saved) const override;
  void backward_input(Ctx& ctx, const Tensor& d_out, std::span<const Tensor> d_in, Saved& saved) const override;
  void backward_weight(Ctx& ctx, Saved& saved) const override;
  void recompute(Ctx& ctx, Saved& saved) const override;
  void recompute_cheap(Ctx& ctx, Saved& saved) const override;

 private:
  void run(Ctx& ctx, const Tensor& x, const Tensor& out, Saved& saved) const;
  Tensor all_rows(Ctx& ctx, const Tensor& share, Tensor whole = {}) const;

  bool input_needs_grad_ = false;   ///< of x
  bool middle_needs_grad_ = false;  ///< of h
  Norm norm1_, norm2_;
  SelfAttention attention_;
  Mlp mlp_;
  SlotId normed1_ = kNone, middle_ = kNone, normed2_ = kNone;
  bool cheap1_ = false, cheap2_ = false;  ///< the normed rows are stored, and what they are made of, too
  bool shares_ = false;                   ///< sequence parallelism: between its parts a rank holds a share of the rows
  SlotId d_middle_ = kNone;               ///< where attention's output product trains
  SlotId d_out_ = kNone;                  ///< of all rows, where the MLP's last product trains
};

}  // namespace mmt::models
