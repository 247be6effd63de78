#pragma once

#include "kernels/cpu/inner.h"
#include "kernels/cpu/vec_math.h"

namespace mmt::cpu::MMT_VEC_NS {

// Tanh form of GELU: x sigmoid(u), u = 2 sqrt(2/pi) (x + 0.044715 x^3).
inline constexpr float kLinear = 1.59576912f, kCubic = 0.044715f * kLinear;
inline constexpr float kQuick = 1.702f;

// kRounded, here and below: for a result that is rounded to bf16 (vec_math.h).

// x / divisor is the activation, 1 / divisor the sigmoid in it. Not for gelu_erf.
template <Activation kKind, bool kRounded, class V> MMT_INLINE V divisor_of(V x) {
  if constexpr (kKind == Activation::gelu_tanh)
    return logistic_divisor<kRounded>(x * (-kLog2E * kLinear + (-kLog2E * kCubic) * (x * x)));
  else
    return logistic_divisor<kRounded>(x * (kKind == Activation::gelu_quick ? -kLog2E * kQuick : -kLog2E));
}

template <Activation kKind, bool kRounded, class V> MMT_INLINE V value_of(V x) {
  if constexpr (kKind == Activation::gelu_erf)
    return x * distribution<kRounded>(x);
  else if constexpr (kRounded)
    return x * inverse<true>(divisor_of<kKind, true>(x));
  else
    return x / divisor_of<kKind, false>(x);
}

template <Activation kKind, bool kRounded, class V> MMT_INLINE V slope_of(V x) {
  if constexpr (kKind == Activation::gelu_erf && kRounded) {
    return gelu_slope_rounded(x);
  } else if constexpr (kKind == Activation::gelu_erf) {
    const Normal<V> n = normal(x);
    return n.distribution + x * n.density;
  } else if constexpr (kKind == Activation::gelu_tanh) {
    // Beyond +-32 the slope is 0 or 1 to the last bit; without the bound x^2 overflows and meets a zero.
    const V b = apply([](F y) MMT_INLINE_LAMBDA { return max(splat(-32.0f), min(splat(32.0f), y)); }, x), q = b * b;
    const V s = inverse<kRounded>(divisor_of<kKind, kRounded>(b));
    return s + (s - s * s) * (b * (kLinear + (3 * kCubic) * q));
  } else {
    const V s = inverse<kRounded>(divisor_of<kKind, kRounded>(x)), slope = s - s * s;
    if constexpr (kKind == Activation::gelu_quick)
      return s + (x * slope) * kQuick;
    else
      return s + x * slope;
  }
}

template <class T, Activation kKind>
void activate_kind(Rows<T> y, Rows<const T> x, std::int64_t rows, std::int64_t cols) {
  for (std::int64_t r = 0; r < rows; ++r)
    map_elements(
        y.base + r * y.stride, cols, [](auto v) MMT_INLINE_LAMBDA { return value_of<kKind, kRounds<T>>(v); },
        x.base + r * x.stride);
}

template <class T, Activation kKind>
void activate_backward_kind(Rows<T> dx, Rows<const T> dy, Rows<const T> x, std::int64_t rows, std::int64_t cols) {
  for (std::int64_t r = 0; r < rows; ++r)
    map_elements(
        dx.base + r * dx.stride, cols,
        [](auto d, auto v) MMT_INLINE_LAMBDA { return d * slope_of<kKind, kRounds<T>>(v); }, dy.base + r * dy.stride,
        x.base + r * x.stride);
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
  for (std::int64_t r = 0; r < rows; ++r)
    map_elements(
        y.base + r * y.stride, cols,
        [](auto g, auto u) MMT_INLINE_LAMBDA { return value_of<Activation::silu, kRounds<T>>(g) * u; },
        gate.base + r * gate.stride, up.base + r * up.stride);
}

template <class V> struct GatedGradients { V gate, up; };

template <class T> void swiglu_backward(Rows<T> dgate, Rows<T> dup, Rows<const T> dy, Rows<const T> gate,
                                        Rows<const T> up, std::int64_t rows, std::int64_t cols) {
  const auto of = [](auto g, auto u, auto d) MMT_INLINE_LAMBDA {
    const auto s = inverse<kRounds<T>>(divisor_of<Activation::silu, kRounds<T>>(g));
    const auto gs = g * s;
    return GatedGradients{d * u * (s + gs * (1.0f - s)), d * gs};
  };
  for (std::int64_t r = 0; r < rows; ++r) {
    T* pdg = dgate.base + r * dgate.stride;
    T* pdu = dup.base + r * dup.stride;
    const T* pdy = dy.base + r * dy.stride;
    const T* pg = gate.base + r * gate.stride;
    const T* pu = up.base + r * up.stride;
    std::int64_t j = 0;
    for (; j + kLanes * kWidth <= cols; j += kLanes * kWidth) {
      const auto v = of(load_wide(pg + j), load_wide(pu + j), load_wide(pdy + j));
      store_wide(pdg + j, v.gate);
      store_wide(pdu + j, v.up);
    }
    each_vector(cols - j, [&](std::int64_t k, int n) {
      const auto v = of(load_at(pg + j + k, n), load_at(pu + j + k, n), load_at(pdy + j + k, n));
      store_at(pdg + j + k, v.gate, n);
      store_at(pdu + j + k, v.up, n);
    });
  }
}

}  // namespace mmt::cpu::MMT_VEC_NS
