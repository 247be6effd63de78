// RMS norm and layer norm with weights, over rows or over every head of a row.
#pragma once

#include "models/layer.h"

namespace mmt::models {

enum class NormKind : std::uint8_t { rms, layer };

struct NormOptions {
  std::string name;  ///< parameters "<name>.weight" and, for layer norms, "<name>.bias"
  NormKind kind = NormKind::rms;
  std::int64_t features = 0;
  double epsilon = 1e-5;
  RowCount count = RowCount::rows;
  std::int64_t heads = 0;  ///< parts of a row of this rank that are normalised alone; 0: rows are normalised whole
  /// The tp ranks normalise different heads: their weight gradients are partial sums.
  bool partial_over_tp = false;
  /// Its backward runs inside F (the head of a sink): statistics and gradients do not outlive the call.
  bool backward_in_forward = false;
};

class Norm {
 public:
  Norm() = default;
  Norm(UnitPlanner& planner, const NormOptions& options, bool input_needs_grad);

  bool output_needs_grad() const { return input_needs_grad_ || trains(); }
  bool trains() const { return weight_trains_ || bias_trains_; }
  /// A bias alone needs no more than dy.
  Life input_life() const { return input_needs_grad_ || weight_trains_ ? Life::kept : Life::scratch; }

  /// x, y (rows, heads * features or features). y may be x.
  void forward(Ctx& ctx, Saved& saved, const Tensor& y, const Tensor& x) const;
  /// dx (may be absent, may be dy) = or += the input gradient; leaves the weight gradients in the stash.
  void backward_input(Ctx& ctx, Saved& saved, const Tensor& dx, const Tensor& dy, const Tensor& x,
                      Accumulate accumulate = Accumulate::overwrite) const;
  void backward_weight(Ctx& ctx, Saved& saved) const;
  /// Weight gradients straight into the parameters' accumulators, for `backward_in_forward`.
  void backward_weight_now(Ctx& ctx, Saved& saved, const Tensor& dy, const Tensor& x) const;

 private:
  Tensor shaped(const Tensor& x) const;
  Tensor stat(const Saved& saved, SlotId slot) const;

  NormKind kind_ = NormKind::rms;
  std::int64_t features_ = 0, heads_ = 0;
  double epsilon_ = 0;
  ParamId weight_ = kNone, bias_ = kNone;
  SlotId mean_ = kNone, rstd_ = kNone, weight_grad_ = kNone, bias_grad_ = kNone;
  bool input_needs_grad_ = false, weight_trains_ = false, bias_trains_ = false;
};

}  // namespace mmt::models
