#pragma once

#include "kernels/cpu/inner.h"
#include "kernels/cpu/vec_math.h"

namespace mmt::cpu::MMT_VEC_NS {

inline constexpr float kTwoSqrt2OverPi = 1.59576912f;  // tanh form: x sigmoid(2 u), u = sqrt(2/pi) (x + 0.044715 x^3)
inline constexpr float kCubic = 0.044715f;

template <Activation kKind> MMT_INLINE F value_of(F x) {
  if constexpr (kKind == Activation::gelu_erf) return x * normal(x).distribution;
  if constexpr (kKind == Activation::gelu_tanh) return x * sigmoid(kTwoSqrt2OverPi * (x + kCubic * x * x * x));
  if constexpr (kKind == Activation::gelu_quick) return x * sigmoid(1.702f * x);
  return x * sigmoid(x);
}

template <Activation kKind> MMT_INLINE F slope_of(F x) {
  if constexpr (kKind == Activation::gelu_erf) {
    const Normal n = normal(x);
    return n.distribution + x * n.density;
  }
  if constexpr (kKind == Activation::gelu_tanh) {
    // Beyond +-32 the slope is 0 or 1 to the last bit; without the bound x^2 overflows and meets a zero.
    const F b = max(splat(-32.0f), min(splat(32.0f), x));
    const F s = sigmoid(kTwoSqrt2OverPi * (b + kCubic * b * b * b));
    return s + b * s * (1.0f - s) * (kTwoSqrt2OverPi * (1.0f + 3 * kCubic * b * b));
  }
  constexpr float kSlope = kKind == Activation::gelu_quick ? 1.702f : 1.0f;
  const F s = sigmoid(kSlope * x);
  return s + x * s * (1.0f - s) * kSlope;
}

template <class T, Activation kKind>
void activate_kind(Rows<T> y, Rows<const T> x, std::int64_t rows, std::int64_t cols) {
  for (std::int64_t r = 0; r < rows; ++r) {
    T* py = y.base + r * y.stride;
    const T* px = x.base + r * x.stride;
    each_vector(cols, [&](std::int64_t j, int n) { store_at(py + j, value_of<kKind>(load_at(px + j, n)), n); });
  }
}

template <class T, Activation kKind>
void activate_backward_kind(Rows<T> dx, Rows<const T> dy, Rows<const T> x, std::int64_t rows, std::int64_t cols) {
  for (std::int64_t r = 0; r < rows; ++r) {
    T* pdx = dx.base + r * dx.stride;
    const T* pdy = dy.base + r * dy.stride;
    const T* px = x.base + r * x.stride;
    each_vector(cols, [&](std::int64_t j, int n) {
      store_at(pdx + j, load_at(pdy + j, n) * slope_of<kKind>(load_at(px + j, n)), n);
    });
  }
}

template <class T> void activate(Activation kind, Rows<T> y, Rows<const T> x, std::int64_t rows, std::int64_t cols) {
  switch (kind) {
    case Activation::gelu_erf: return activate_kind<T, Activation::gelu_erf>(y, x, rows, cols);
    case Activation::gelu_tanh: return activate_kind<T, Activation::gelu_tanh>(y, x, rows, cols);
    case Activation::gelu_quick: return activate_kind<T, Activation::gelu_quick>(y, x, rows, cols);
    case Activation::silu: return activate_kind<T, Activation::silu>(y, x, rows, cols);
  }
}

template <class T> void activate_backward(Activation kind, Rows<T> dx, Rows<const T> dy, Rows<const T> x,
                                          std::int64_t rows, std::int64_t cols) {
  switch (kind) {
    case Activation::gelu_erf: return activate_backward_kind<T, Activation::gelu_erf>(dx, dy, x, rows, cols);
    case Activation::gelu_tanh: return activate_backward_kind<T, Activation::gelu_tanh>(dx, dy, x, rows, cols);
    case Activation::gelu_quick: return activate_backward_kind<T, Activation::gelu_quick>(dx, dy, x, rows, cols);
    case Activation::silu: return activate_backward_kind<T, Activation::silu>(dx, dy, x, rows, cols);
  }
}

template <class T> void swiglu(Rows<T> y, Rows<const T> gate, Rows<const T> up, std::int64_t rows, std::int64_t cols) {
  for (std::int64_t r = 0; r < rows; ++r) {
    T* py = y.base + r * y.stride;
    const T* pg = gate.base + r * gate.stride;
    const T* pu = up.base + r * up.stride;
    each_vector(cols, [&](std::int64_t j, int n) {
      store_at(py + j, value_of<Activation::silu>(load_at(pg + j, n)) * load_at(pu + j, n), n);
    });
  }
}

template <class T> void swiglu_backward(Rows<T> dgate, Rows<T> dup, Rows<const T> dy, Rows<const T> gate,
                                        Rows<const T> up, std::int64_t rows, std::int64_t cols) {
  for (std::int64_t r = 0; r < rows; ++r) {
    T* pdg = dgate.base + r * dgate.stride;
    T* pdu = dup.base + r * dup.stride;
    const T* pdy = dy.base + r * dy.stride;
    const T* pg = gate.base + r * gate.stride;
    const T* pu = up.base + r * up.stride;
    each_vector(cols, [&](std::int64_t j, int n) {
      const F g = load_at(pg + j, n), u = load_at(pu + j, n), d = load_at(pdy + j, n);
      const F s = sigmoid(g), gs = g * s;
      store_at(pdg + j, d * u * (s + gs * (1.0f - s)), n);
      store_at(pdu + j, d * gs, n);
    });
  }
}

}  // namespace mmt::cpu::MMT_VEC_NS
