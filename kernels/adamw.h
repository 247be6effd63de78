// AdamW (Loshchilov and Hutter 2019) on many flat spans in one pass.
#pragma once

#include "core/stream.h"

#include <span>

namespace mmt {

/// One span of parameters: 1-D contiguous tensors of equal length. master, m, v, grad have the master dtype (f32 or
/// f64). `compute` receives the new weights in its own dtype (bf16, f32, f64), or is absent (master is what computes).
struct AdamwSpan {
  Tensor master, m, v, grad, compute;
};

struct AdamwStep {
  double lr = 0, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
  std::int64_t updates = 1;  ///< 1 for the first update: bias correction
  double grad_scale = 1;     ///< multiplies the gradient first (clipping)
  bool zero_grad = false;    ///< leave zeros in grad
};

struct AdamwTable {
  void (*step)(const Stream&, std::span<const AdamwSpan>, const AdamwStep&) = nullptr;
};

namespace ops {

/// With g = grad_scale * grad, t = updates:
///   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
///   master = master * (1 - lr weight_decay) - lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + epsilon)
/// then compute = master, rounded to nearest even. Scalars are computed in double and rounded once to the spans' dtype.
/// Elementwise: bits do not depend on how parameters are cut into spans or threads.
void adamw_step(const Stream& stream, std::span<const AdamwSpan> spans, const AdamwStep& step);

}  // namespace ops
}  // namespace mmt
