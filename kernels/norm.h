// RMS norm (Zhang and Sennrich 2019) and layer norm (Ba et al. 2016) over the last dimension.
//
// x, y, dx, dy are (rows, features) or (rows, heads, features) with a row stride: the second form normalises every head
// of a column range of a fused q/k/v buffer. n = rows, or rows * heads, is the number of normalised vectors.
// w, b (features): the compute dtype. rstd, mean: (n) contiguous, master dtype, written by forward, read by backward.
// dw, db (features): master dtype.
#pragma once

#include "kernels/accumulate.h"

#include "core/stream.h"

namespace mmt {

struct NormTable {
  void (*rms_norm_forward)(const Stream&, const Tensor& y, const Tensor& rstd, const Tensor& x, const Tensor& w,
                           double epsilon) = nullptr;
  void (*rms_norm_backward_input)(const Stream&, const Tensor& dx, const Tensor& dy, const Tensor& x,
                                  const Tensor& rstd, const Tensor& w, Accumulate) = nullptr;
  void (*rms_norm_backward_weight)(const Stream&, const Tensor& dw, const Tensor& dy, const Tensor& x,
                                   const Tensor& rstd, Accumulate) = nullptr;
  void (*layer_norm_forward)(const Stream&, const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                             const Tensor& w, const Tensor& b, double epsilon) = nullptr;
  void (*layer_norm_backward_input)(const Stream&, const Tensor& dx, const Tensor& dy, const Tensor& x,
                                    const Tensor& mean, const Tensor& rstd, const Tensor& w, Accumulate) = nullptr;
  void (*layer_norm_backward_weight)(const Stream&, const Tensor& dw, const Tensor& db, const Tensor& dy,
                                     const Tensor& x, const Tensor& mean, const Tensor& rstd, Accumulate) = nullptr;
};

namespace ops {

/// y = x * rstd * w, rstd = 1 / sqrt(mean(x^2) + epsilon). y may be x. `rstd` may be absent (no backward will run).
void rms_norm_forward(const Stream& stream, const Tensor& y, const Tensor& rstd, const Tensor& x, const Tensor& w,
                      double epsilon);
/// dx = or += rstd * (w dy - xhat mean(w dy xhat)), xhat = x rstd. dx may be dy.
void rms_norm_backward_input(const Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x,
                             const Tensor& rstd, const Tensor& w, Accumulate accumulate = Accumulate::overwrite);
/// dw = or += sum over vectors of dy * xhat, in fixed order.
void rms_norm_backward_weight(const Stream& stream, const Tensor& dw, const Tensor& dy, const Tensor& x,
                              const Tensor& rstd, Accumulate accumulate = Accumulate::overwrite);

/// y = (x - mean) * rstd * w + b, rstd = 1 / sqrt(mean((x - mean)^2) + epsilon). `b` may be absent; y may be x; `mean`
/// and `rstd` may both be absent.
void layer_norm_forward(const Stream& stream, const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                        const Tensor& w, const Tensor& b, double epsilon);
/// dx = or += rstd * (w dy - mean(w dy) - xhat mean(w dy xhat)), xhat = (x - mean) rstd. dx may be dy.
void layer_norm_backward_input(const Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x,
                               const Tensor& mean, const Tensor& rstd, const Tensor& w,
                               Accumulate accumulate = Accumulate::overwrite);
/// dw = or += sum of dy * xhat, db = or += sum of dy, in fixed order. Either may be absent.
void layer_norm_backward_weight(const Stream& stream, const Tensor& dw, const Tensor& db, const Tensor& dy,
                                const Tensor& x, const Tensor& mean, const Tensor& rstd,
                                Accumulate accumulate = Accumulate::overwrite);

}  // namespace ops
}  // namespace mmt
