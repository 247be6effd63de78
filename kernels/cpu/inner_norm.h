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

/// Rows ahead that short vectors are asked for; the processor itself finds vectors that fill pages.
template <class T> MMT_INLINE std::int64_t rows_ahead(std::int64_t elements) {
  const std::int64_t bytes = elements * static_cast<std::int64_t>(sizeof(T));
  return bytes > 2048 ? 0 : 1 + 4096 / bytes;
}

template <class T, bool kRms, bool kBias> void norm_rows(Rows<T> y, float* mean, float* rstd, Rows<const T> x,
                                                         const float* w, const float* b, float epsilon,
                                                         VectorShape shape) {
  const std::int64_t f = shape.features;
  const float inverse = 1.0f / static_cast<float>(f);
  const std::int64_t ahead = rows_ahead<T>(shape.heads * f);
  std::int64_t i = 0;
  for (std::int64_t r = 0; r < shape.rows; ++r)
    for (std::int64_t h = 0; h < shape.heads; ++h, ++i) {
      const T* px = x.base + r * x.stride + h * f;
      const T* later = ahead > 0 && r + ahead < shape.rows ? px + ahead * x.stride : nullptr;
      T* py = y.base + r * y.stride + h * f;
      float mu = 0;
      if constexpr (!kRms) mu = sum_features(f, [&](std::int64_t j, int n) { return load_at(px + j, n); }) * inverse;
      const float squares = sum_features(f, [&](std::int64_t j, int n) {
        if (later) prefetch(later + j);
        F d = load_at(px + j, n);
        if constexpr (!kRms) d = keep_first(d - mu, n);
        return d * d;
      });
      const float scale = 1.0f / __builtin_sqrtf(squares * inverse + epsilon);
      if (mean) mean[i] = mu;
      if (rstd) rstd[i] = scale;
      each_vector(f, [&](std::int64_t j, int n) {
        F v = load_at(px + j, n);
        if constexpr (!kRms) v -= mu;
        v = v * scale * load_at(w + j, n);
        if constexpr (kBias) v += load_at(b + j, n);
        store_at(py + j, v, n);
      });
    }
}

template <class T> void norm(bool rms, Rows<T> y, float* mean, float* rstd, Rows<const T> x, const float* w,
                             const float* b, float epsilon, VectorShape shape) {
  if (rms)
    norm_rows<T, true, false>(y, mean, rstd, x, w, b, epsilon, shape);
  else if (b)
    norm_rows<T, false, true>(y, mean, rstd, x, w, b, epsilon, shape);
  else
    norm_rows<T, false, false>(y, mean, rstd, x, w, b, epsilon, shape);
}

// dx = rstd (g - mean(g) - d k), g = w dy, d = x - mean, k = rstd mean(g xhat), xhat = rstd d.
template <class T, bool kRms, bool kAdd> void norm_backward_input_rows(Rows<T> dx, Rows<const T> dy, Rows<const T> x,
                                                                       const float* mean, const float* rstd,
                                                                       const float* w, VectorShape shape) {
  const std::int64_t f = shape.features;
  const float inverse = 1.0f / static_cast<float>(f);
  std::int64_t i = 0;
  for (std::int64_t r = 0; r < shape.rows; ++r)
    for (std::int64_t h = 0; h < shape.heads; ++h, ++i) {
      const T* px = x.base + r * x.stride + h * f;
      const T* pdy = dy.base + r * dy.stride + h * f;
      T* pdx = dx.base + r * dx.stride + h * f;
      const float mu = kRms ? 0.0f : mean[i], scale = rstd[i];
      // Lanes past the end: g is zero there, so is every product with it.
      F sum[2] = {}, product[4] = {};
      const auto term = [&](std::int64_t j, int n, F& s, F& p) {
        const F g = load_at(pdy + j, n) * load_at(w + j, n);
        F d = load_at(px + j, n);
        if constexpr (!kRms) {
          d -= mu;
          s += g;
        }
        p += g * d;
      };
      std::int64_t j = 0;
      for (; j + 4 * kWidth <= f; j += 4 * kWidth)
        for (int k = 0; k < 4; ++k) term(j + k * kWidth, kWidth, sum[k % 2], product[k]);
      for (; j < f; j += kWidth) term(j, f - j < kWidth ? static_cast<int>(f - j) : kWidth, sum[0], product[0]);
      const float dot = sum_lanes((product[0] + product[1]) + (product[2] + product[3])) * scale * inverse;
      const float mean_g = kRms ? 0.0f : sum_lanes(sum[0] + sum[1]) * inverse;
      const float along = dot * scale;
      each_vector(f, [&](std::int64_t at, int n) {
        F d = load_at(px + at, n), g = load_at(pdy + at, n) * load_at(w + at, n);
        if constexpr (!kRms) {
          d -= mu;
          g -= mean_g;
        }
        F v = scale * (g - d * along);
        if constexpr (kAdd) v += load_at(pdx + at, n);
        store_at(pdx + at, v, n);
      });
    }
}

template <class T> void norm_backward_input(Rows<T> dx, Rows<const T> dy, Rows<const T> x, const float* mean,
                                            const float* rstd, const float* w, bool add, VectorShape shape) {
  if (mean && add)
    norm_backward_input_rows<T, false, true>(dx, dy, x, mean, rstd, w, shape);
  else if (mean)
    norm_backward_input_rows<T, false, false>(dx, dy, x, mean, rstd, w, shape);
  else if (add)
    norm_backward_input_rows<T, true, true>(dx, dy, x, mean, rstd, w, shape);
  else
    norm_backward_input_rows<T, true, false>(dx, dy, x, mean, rstd, w, shape);
}

// Runs of vectors as in column_sums; a run stays inside one row when there are several heads.
template <class T> void norm_backward_weight(float* dw, float* db, Rows<const T> dy, Rows<const T> x, const float* mean,
                                             const float* rstd, bool add, VectorShape shape, std::int64_t first,
                                             std::int64_t cols) {
  bool keep = add;
  // `count` vectors that lie `step_*` elements apart; i: number of the first. later: whether as many follow.
  const auto run = [&](const T* px, std::int64_t step_x, const T* pdy, std::int64_t step_dy, std::int64_t i, auto count,
                       bool later) {
    const std::int64_t ahead = later ? count : 0;
    each_vector(cols, [&](std::int64_t j, int n) {
      F w{}, b{};
      for (int k = 0; k < count; ++k) {
        prefetch(pdy + (k + ahead) * step_dy + j);
        prefetch(px + (k + ahead) * step_x + j);
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
    for (; k + kRun <= count; k += kRun)
      run(px + k * step_x, step_x, pdy + k * step_dy, step_dy, i + k, Count<kRun>{}, k + 2 * kRun <= count);
    if (k < count) run(px + k * step_x, step_x, pdy + k * step_dy, step_dy, i + k, static_cast<int>(count - k), false);
  };
  if (shape.heads == 1)
    runs(x.base + first, x.stride, dy.base + first, dy.stride, 0, shape.rows);
  else
    for (std::int64_t r = 0; r < shape.rows; ++r)
      runs(x.base + r * x.stride + first, shape.features, dy.base + r * dy.stride + first, shape.features,
           r * shape.heads, shape.heads);
  if (!keep) run(x.base, 0, dy.base, 0, 0, 0, false);  // no vectors at all: zeros
}

}  // namespace mmt::cpu::MMT_VEC_NS
