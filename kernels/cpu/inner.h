// The inner loops of the fast CPU kernels: one table of plain functions over pointers per storage type and instruction
// set. They run on one thread; the drivers (cpu/<op>.cpp) check, split the work and call them. f32 inside.
#pragma once

#include "kernels/activation.h"
#include "kernels/cpu/isa.h"
#include "kernels/rotary.h"

#include "core/dtype.h"

#include <cstdint>

namespace mmt::cpu {

/// Rows of a matrix: pointer to the first element and elements from row to row.
template <class T> struct Rows {
  T* base;
  std::int64_t stride;
};

/// `rows` rows of `heads` vectors of `features` elements each; vector (r, h) starts at base + r * stride + h *
/// features.
struct VectorShape {
  std::int64_t rows, heads, features;
};

struct AdamwScalars {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, decay_rate, step_size, inv_sqrt_correction2, epsilon,
      grad_scale;
  bool zero_grad;
};

/// One row of a dropout (kernels/dropout.h): `element` is the address of its first column.
struct DropoutRow {
  std::uint64_t key, sample, element;
  std::uint32_t step, threshold;
  float factor;
  bool all, add;  ///< the whole row is dropped; the result is added
};

struct RowStats {
  float maximum, sum;
};

template <class T> struct Inner {
  // ---- elementwise over rows x cols
  void (*add)(Rows<T> y, Rows<const T> a, Rows<const T> b, std::int64_t rows, std::int64_t cols);
  void (*scale)(Rows<T> y, Rows<const T> x, float factor, std::int64_t rows, std::int64_t cols);
  void (*add_bias)(Rows<T> y, Rows<const T> x, const T* b, std::int64_t rows, std::int64_t cols);
  void (*to_f32)(Rows<float> y, Rows<const T> x, std::int64_t rows, std::int64_t cols);
  void (*from_f32)(Rows<T> y, Rows<const float> x, std::int64_t rows, std::int64_t cols);
  void (*add_to_f32)(Rows<float> y, Rows<const float> a, Rows<const T> b, std::int64_t rows, std::int64_t cols);
  /// y = [y +] x [+ bias] from a product's f32 result.
  void (*store_product)(Rows<T> y, Rows<const float> x, const T* bias, bool add, std::int64_t rows, std::int64_t cols);
  /// sums[j] = or += column sums of columns [0, cols).
  void (*column_sums)(float* sums, Rows<const T> x, bool add, std::int64_t rows, std::int64_t cols);

  // ---- activations
  void (*activate)(Activation, Rows<T> y, Rows<const T> x, std::int64_t rows, std::int64_t cols);
  void (*activate_backward)(Activation, Rows<T> dx, Rows<const T> dy, Rows<const T> x, std::int64_t rows,
                            std::int64_t cols);
  void (*swiglu)(Rows<T> y, Rows<const T> gate, Rows<const T> up, std::int64_t rows, std::int64_t cols);
  void (*swiglu_backward)(Rows<T> dgate, Rows<T> dup, Rows<const T> dy, Rows<const T> gate, Rows<const T> up,
                          std::int64_t rows, std::int64_t cols);

  // ---- norms; mean == nullptr: RMS norm. rstd, mean: one per vector; null on forward: not saved
  void (*norm)(bool rms, Rows<T> y, float* mean, float* rstd, Rows<const T> x, const float* w, const float* b,
               float epsilon, VectorShape);
  void (*norm_backward_input)(Rows<T> dx, Rows<const T> dy, Rows<const T> x, const float* mean, const float* rstd,
                              const float* w, bool add, VectorShape);
  /// Columns [first, first + cols) of dw and db (either may be null).
  void (*norm_backward_weight)(float* dw, float* db, Rows<const T> dy, Rows<const T> x, const float* mean,
                               const float* rstd, bool add, VectorShape, std::int64_t first, std::int64_t cols);

  // ---- rotary; cos, sin: rows x pairs, contiguous
  void (*rotate)(Rows<T> x, const float* cos, const float* sin, std::int64_t pairs, bool backward, VectorShape);

  // ---- loss
  /// `next` (or null): a row of n elements that is asked for meanwhile.
  RowStats (*softmax_stats)(const T* x, const T* next, std::int64_t n);
  /// The same; terms = exp(x - maximum). `terms` may be x.
  RowStats (*softmax_terms)(float* terms, const T* x, const T* next, std::int64_t n);
  /// d = factor * terms. d may be terms.
  void (*scale_terms)(T* d, const float* terms, float factor, std::int64_t n);
  /// d = weight * exp(x - lse); T is the logits' type
  void (*softmax_gradient_f32)(float* d, const T* x, float weight, float lse, std::int64_t n);
  void (*softmax_gradient_bf16)(bf16* d, const T* x, float weight, float lse, std::int64_t n);
  std::int64_t (*argmax)(const T* x, std::int64_t n);

  // ---- convolution with three taps; a tap that is null counts as zeros
  /// y[3 c + k] = tap_k[c], c < channels.
  void (*interleave_taps)(T* y, const T* tap0, const T* tap1, const T* tap2, std::int64_t channels);
  /// y[c] = [y[c] +] tap0[3 c] + tap1[3 c + 1] + tap2[3 c + 2].
  void (*sum_taps)(T* y, const T* tap0, const T* tap1, const T* tap2, bool add, std::int64_t channels);

  // ---- dropout of a row
  void (*dropout)(T* y, const T* x, const DropoutRow& row, std::int64_t cols);

  // ---- optimizer: `compute` of this type, or null
  void (*adamw)(float* master, float* m, float* v, float* grad, T* compute, const AdamwScalars&, std::int64_t n);

  // ---- reductions
  double (*sum)(const T* x, std::int64_t n);
  double (*sum_of_squares)(const T* x, std::int64_t n);
  float (*max_abs)(const T* x, std::int64_t n);  ///< NaN when an element is NaN
};

/// Not tied to a storage type.
struct InnerCommon {
  /// cos and sin of position[axis[j]] * inv_freq[j], times scale, for `rows` rows of `pairs` values.
  void (*rotary_table)(float* cos, float* sin, const std::int32_t* positions, std::int64_t axes, const double* inv_freq,
                       const std::uint8_t* axis, double scale, std::int64_t rows, std::int64_t pairs);
};

struct InnerKernels {
  Inner<float> f32;
  Inner<bf16> bf;
  InnerCommon common;
};

const InnerKernels& inner_portable();
const InnerKernels& inner_avx2();
const InnerKernels& inner_avx512();
const InnerKernels& inner_avx512bf16();  ///< rounds to bf16 by AVX512_BF16

inline const InnerKernels& inner_kernels(Isa level) {
  if (level == Isa::avx512) return cpu_isa().avx512bf16 ? inner_avx512bf16() : inner_avx512();
  return level == Isa::avx2 ? inner_avx2() : inner_portable();
}

}  // namespace mmt::cpu
