#pragma once

#include "kernels/cpu/inner.h"
#include "kernels/cpu/inner_elementwise.h"
#include "kernels/cpu/vec.h"

namespace mmt::cpu::MMT_VEC_NS {

// Sum of term(j, n) over n features with four accumulators; lanes past the end must give zero.
template <class Term> MMT_INLINE float sum_features(std::int64_t features, Term&& term) {
  F s[4] = {};
  std::int64_t j = 0;
  for (; j + 4 * kWidth <= features; j += 4 * kWidth)
    for (int k = 0; k < 4; ++k) s[k] += term(j + k * kWidth, kWidth);
  for (; j + kWidth <= features; j += kWidth) s[0] += term(j, kWidth);
  if (j < features) s[1] += term(j, static_cast<int>(features - j));
  return sum_lanes((s[0] + s[1]) + (s[2] + s[3]));
}

/// Lanes at or past n become zero.
MMT_INLINE F keep_first(F x, int n) {
  if (n == kWidth) return x;
  I lane;
  for (int i = 0; i < kWidth; ++i) lane[i] = i;
  return lane < n ? x : F{};
}

template <class T> void norm(bool rms, Rows<T> y, float* mean, float* rstd, Rows<const T> x, const T* w, const T* b,
                             float epsilon, VectorShape shape) {
  const std::int64_t f = shape.features;
  const float inverse = 1.0f / static_cast<float>(f);
  std::int64_t i = 0;
  for (std::int64_t r = 0; r < shape.rows; ++r)
    for (std::int64_t h = 0; h < shape.heads; ++h, ++i) {
      const T* px = x.base + r * x.stride + h * f;
      T* py = y.base + r * y.stride + h * f;
      float mu = 0;
      if (!rms) mu = sum_features(f, [&](std::int64_t j, int n) { return load_at(px + j, n); }) * inverse;
      const float squares = sum_features(f, [&](std::int64_t j, int n) {
        const F d = rms ? load_at(px + j, n) : keep_first(load_at(px + j, n) - mu, n);
        return d * d;
      });
      const float scale = 1.0f / __builtin_sqrtf(squares * inverse + epsilon);
      if (mean) mean[i] = mu;
      if (rstd) rstd[i] = scale;
      if (b)
        each_vector(f, [&](std::int64_t j, int n) {
          store_at(py + j, (load_at(px + j, n) - mu) * scale * load_at(w + j, n) + load_at(b + j, n), n);
        });
      else
        each_vector(f, [&](std::int64_t j, int n) {
          store_at(py + j, (load_at(px + j, n) - mu) * scale * load_at(w + j, n), n);
        });
    }
}

template <class T, bool kRms> void norm_backward_input_rows(Rows<T> dx, Rows<const T> dy, Rows<const T> x,
                                                            const float* mean, const float* rstd, const T* w, bool add,
                                                            VectorShape shape) {
  const std::int64_t f = shape.features;
  const float inverse = 1.0f / static_cast<float>(f);
  std::int64_t i = 0;
  for (std::int64_t r = 0; r < shape.rows; ++r)
    for (std::int64_t h = 0; h < shape.heads; ++h, ++i) {
      const T* px = x.base + r * x.stride + h * f;
      const T* pdy = dy.base + r * dy.stride + h * f;
      T* pdx = dx.base + r * dx.stride + h * f;
      const float mu = kRms ? 0.0f : mean[i], scale = rstd[i];
      const auto xhat = [&](std::int64_t j, int n) { return (load_at(px + j, n) - mu) * scale; };
      const auto g = [&](std::int64_t j, int n) { return load_at(pdy + j, n) * load_at(w + j, n); };
      // Lanes past the end: g is zero there, so is every product with it.
      const float dot = sum_features(f, [&](std::int64_t j, int n) { return g(j, n) * xhat(j, n); }) * inverse;
      float mean_g = 0;
      if constexpr (!kRms) mean_g = sum_features(f, g) * inverse;
      each_vector(f, [&](std::int64_t j, int n) {
        F d = scale * (g(j, n) - mean_g - xhat(j, n) * dot);
        if (add) d += load_at(pdx + j, n);
        store_at(pdx + j, d, n);
      });
    }
}

template <class T> void norm_backward_input(Rows<T> dx, Rows<const T> dy, Rows<const T> x, const float* mean,
                                            const float* rstd, const T* w, bool add, VectorShape shape) {
  if (mean)
    norm_backward_input_rows<T, false>(dx, dy, x, mean, rstd, w, add, shape);
  else
    norm_backward_input_rows<T, true>(dx, dy, x, mean, rstd, w, add, shape);
}

// Runs of vectors as in column_sums; a run stays inside one row when there are several heads.
template <class T> void norm_backward_weight(float* dw, float* db, Rows<const T> dy, Rows<const T> x, const float* mean,
                                             const float* rstd, bool add, VectorShape shape, std::int64_t first,
                                             std::int64_t cols) {
  bool keep = add;
  // `count` vectors that lie `step_*` elements apart; i: number of the first.
  const auto run = [&](const T* px, std::int64_t step_x, const T* pdy, std::int64_t step_dy, std::int64_t i,
                       auto count) {
    each_vector(cols, [&](std::int64_t j, int n) {
      F w{}, b{};
      for (int k = 0; k < count; ++k) {
        const F g = load_at(pdy + k * step_dy + j, n);
        const float mu = mean ? mean[i + k] : 0.0f;
        w += g * ((load_at(px + k * step_x + j, n) - mu) * rstd[i + k]);
        b += g;
      }
      if (dw) store_at(dw + first + j, keep ? load_at(dw + first + j, n) + w : w, n);
      if (db) store_at(db + first + j, keep ? load_at(db + first + j, n) + b : b, n);
    });
    keep = true;
  };
  const auto runs = [&](const T* px, std::int64_t step_x, const T* pdy, std::int64_t step_dy, std::int64_t i,
                        std::int64_t count) {
    std::int64_t k = 0;
    for (; k + kRun <= count; k += kRun) run(px + k * step_x, step_x, pdy + k * step_dy, step_dy, i + k, Count<kRun>{});
    if (k < count) run(px + k * step_x, step_x, pdy + k * step_dy, step_dy, i + k, static_cast<int>(count - k));
  };
  if (shape.heads == 1)
    runs(x.base + first, x.stride, dy.base + first, dy.stride, 0, shape.rows);
  else
    for (std::int64_t r = 0; r < shape.rows; ++r)
      runs(x.base + r * x.stride + first, shape.features, dy.base + r * dy.stride + first, shape.features,
           r * shape.heads, shape.heads);
  if (!keep) run(x.base, 0, dy.base, 0, 0, 0);  // no vectors at all: zeros
}

}  // namespace mmt::cpu::MMT_VEC_NS
