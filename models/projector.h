// Projector between an encoder and the LLM: one linear layer, two with an activation between (LLaVA-1.5), or those
// behind a norm of every merged patch (Qwen2-VL's merger).
#pragma once

#include "kernels/activation.h"
#include "models/linear.h"
#include "models/newline.h"
#include "models/norm.h"

namespace mmt::models {

enum class ProjectorKind : std::uint8_t {
  linear,  ///< parameters linear.{weight,bias}
  mlp2,    ///< parameters linear_1.{weight,bias}, linear_2.{weight,bias}
  merger,  ///< parameters ln_q.{weight,bias}, mlp.0.{weight,bias}, mlp.2.{weight,bias}
};

struct ProjectorOptions {
  std::string unit;  ///< "eyes.projector"
  ProjectorKind kind = ProjectorKind::mlp2;
  std::int64_t in = 0;
  std::int64_t inner = 0;  ///< mlp2, merger
  std::int64_t out = 0;
  bool bias = true;
  Activation activation = Activation::gelu_erf;
  std::int64_t parts = 1;  ///< merger: inner rows that lie side by side in a row
  double norm_epsilon = 1e-6;
  bool newline = false;  ///< rows that are newlines become the parameter image_newline
};

/// Works on the rows that left the encoder (RowCount::out). Setting::module is "<encoder>.projector".
class Projector final : public run::Unit {
 public:
  Projector(const UnitPlanner::Setting& setting, const ProjectorOptions& options, bool input_needs_grad);

  void forward(Ctx& ctx, std::span<const Tensor> in, const Tensor& out, Saved& saved) const override;
  void backward_input(Ctx& ctx, const Tensor& d_out, std::span<const Tensor> d_in, Saved& saved) const override;
  void backward_weight(Ctx& ctx, Saved& saved) const override;
  void recompute(Ctx& ctx, Saved& saved) const override;

 private:
  /// The backward of the layers for the gradient of their output.
  void layers_backward(Ctx& ctx, const Tensor& d_out, std::span<const Tensor> d_in, Saved& saved) const;
  void hide(Ctx& ctx, const Tensor& x, Saved& saved) const;
  /// What the first layer reads.
  Tensor first_input(const Tensor& x, const Saved& saved) const { return has_norm_ ? saved[normed_] : x; }

  bool two_ = false, has_norm_ = false, has_newline_ = false, middle_needs_grad_ = false;
  Activation activation_ = Activation::gelu_erf;
  LinearLayer first_, last_;
  Norm norm_;
  Newline newline_;
  SlotId normed_ = kNone, pre_ = kNone, middle_ = kNone, d_pre_ = kNone;
  SlotId d_last_ = kNone;  ///< with newlines, the gradient of what the last layer makes
};

}  // namespace mmt::models
