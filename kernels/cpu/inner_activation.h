#pragma once

#include "kernels/cpu/inner.h"
#include "kernels/cpu/vec_math.h"

namespace mmt::cpu::MMT_VEC_NS {

// Tanh form of GELU: x sigmoid(u), u = 2 sqrt(2/pi) (x + 0.044715 x^3).
inline constexpr float kLinear = 1.59576912f, kCubic = 0.044715f * kLinear;

// x / divisor is the activation, 1 / divisor the sigmoid in it. Not for gelu_erf.
template <Activation kKind> MMT_INLINE F divisor_of(F x) {
  if constexpr (kKind == Activation::gelu_tanh) return logistic_divisor(x * (kLinear + kCubic * (x * x)), 1.0f);
  return logistic_divisor(x, kKind == Activation::gelu_quick ? 1.702f : 1.0f);
}

template <Activation kKind> MMT_INLINE F value_of(F x) {
  if constexpr (kKind == Activation::gelu_erf) return x * normal(x).distribution;
  return x / divisor_of<kKind>(x);
}

template <Activation kKind> MMT_INLINE F slope_of(F x) {
  if constexpr (kKind == Activation::gelu_erf) {
    const Normal n = normal(x);
    return n.distribution + x * n.density;
  }
  if constexpr (kKind == Activation::gelu_tanh) {
    // Beyond +-32 the slope is 0 or 1 to the last bit; without the bound x^2 overflows and meets a zero.
    const F b = max(splat(-32.0f), min(splat(32.0f), x)), q = b * b;
    const F s = 1.0f / (1.0f + pow2(b * (-kLog2E * kLinear + -kLog2E * kCubic * q)));
    return s + (s - s * s) * (b * (kLinear + 3 * kCubic * q));
  }
  constexpr float kSlope = kKind == Activation::gelu_quick ? 1.702f : 1.0f;
  const F s = 1.0f / logistic_divisor(x, kSlope);
  return s + x * (s - s * s) * kSlope;
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
      const F s = 1.0f / logistic_divisor(g, 1.0f), gs = g * s;
      store_at(pdg + j, d * u * (s + gs * (1.0f - s)), n);
      store_at(pdu + j, d * gs, n);
    });
  }
}

}  // namespace mmt::cpu::MMT_VEC_NS
