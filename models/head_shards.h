// Logits and loss of a head whose vocabulary is cut over the tp ranks.
#pragma once

#include "kernels/cross_entropy.h"
#include "models/layer.h"
#include "parallel/plan/route.h"

namespace mmt::models {

/// Rows [first, first + count) of a table over the vocabulary that a tp rank holds. Shares differ by one row at most,
/// so that an odd vocabulary needs no padding rows.
inline plan::Share vocabulary_share(const UnitPlanner& planner, std::int64_t vocabulary) {
  return plan::share_of(vocabulary, planner.tp_rank(), planner.tp());
}
/// Gives the spec this rank's rows of dim 0.
void cut_vocabulary(const UnitPlanner& planner, ParamSpec& spec);

/// What ops::linear_cross_entropy is on one rank. Per chunk of rows, each rank makes the logits of its classes and
/// their statistics; those of all ranks are gathered and combined in rank order; the gradients of the logits follow
/// from the whole log-sum-exp. The gradient of a rank's weights is complete, that of x is summed over tp.
class HeadShards {
 public:
  HeadShards() = default;
  HeadShards(UnitPlanner& planner, std::int64_t vocabulary, std::int64_t hidden, std::int64_t chunk,
             bool normed_needs_grad);
  bool active() const { return ranks_ > 1; }

  /// As ops::linear_cross_entropy, w and dw being this rank's rows. `loss` and `predicted` are whole on every rank.
  void run(Ctx& ctx, const Tensor& loss, const Tensor& predicted, const Tensor& dx, const Tensor& dw,
           const LinearCrossEntropy& in, Accumulate accumulate) const;
  /// Evaluation that hands chunks of whole logits to Ctx::logits.
  void show_logits(Ctx& ctx, const Tensor& loss, const Tensor& predicted, const LinearCrossEntropy& in) const;
  Linear sum_scratch() const { return input_sum_.scratch(); }
  /// Bytes of the logits and their statistics in a call.
  std::int64_t scratch(std::int64_t rows) const;

 private:
  std::int64_t width() const;  ///< row stride of this rank's logits
  std::int64_t shown_chunk() const;

  DType dtype_ = DType::f32;
  int ranks_ = 1;
  plan::Share share_;
  std::int64_t vocabulary_ = 0, chunk_ = 0;
  TpSum input_sum_;
};

}  // namespace mmt::models
