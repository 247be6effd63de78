// Vector exponentials and what is built on them. Errors are stated against the exact value and tested.
#pragma once

#include "kernels/cpu/vec.h"

namespace mmt::cpu::MMT_VEC_NS {

inline constexpr float kLog2E = 1.44269504f;

// How exactly a function is computed: for a result kept in f32, or for one that is rounded to bf16. The second kind is
// wrong by less than 2^-12 of the value, a sixteenth of that rounding.
template <class T> inline constexpr bool kRounds = sizeof(T) == 2;

/// 2^t: 0 below -150, inf from 128 on, subnormal results included, NaN stays NaN. Relative error < 2e-7, or 9e-5 for
/// results that are rounded. t = n + r; 2^r by a polynomial (minimax, 9e-8, exact at 0), scaled by 2^n: by one
/// instruction where there is one (it takes the floor of t itself), else in two steps so that neither factor overflows.
template <bool kRounded = false, class V> MMT_INLINE V pow2(V t) {
#if MMT_VEC_WIDTH == 16
  const V r = apply(  // t - floor(t); 0 of an infinity
      [](F x) MMT_INLINE_LAMBDA { return reinterpret_cast<F>(_mm512_maskz_reduce_ps(0xffff, raw(x), 0x09)); }, t);
  V p;
  if constexpr (kRounded)
    p = (0.0770670697f * r + 0.22764495f) * r + 0.695116818f;
  else
    p = (((0.00186713052f * r + 0.00901702978f) * r + 0.0557999127f) * r + 0.240164444f) * r + 0.693151295f;
  return apply([](F x, F y)
                   MMT_INLINE_LAMBDA { return reinterpret_cast<F>(_mm512_maskz_scalef_ps(0xffff, raw(x), raw(y))); },
               p * r + 1.0f, t);
#else
  return apply(
      [](F x) MMT_INLINE_LAMBDA {
        x = max(splat(-151.0f), min(splat(129.0f), x));
        constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
        const F shifted = x + kMagic;
        const F r = x - (shifted - kMagic);
        F p = splat(0.00132647273f);
        p = p * r + 0.00967151299f;
        p = p * r + 0.0555073358f;
        p = p * r + 0.240222424f;
        p = p * r + 0.693147004f;
        p = p * r + 1.0f;
        const I whole = reinterpret_cast<I>(shifted) - 0x4b400000;
        const I half = whole >> 1;
        const F a = reinterpret_cast<F>((half + 127) << 23), b = reinterpret_cast<F>((whole - half + 127) << 23);
        return p * a * b;
      },
      t);
#endif
}

/// e^x for x <= 88, -inf included. Its relative error is that of x log2(e) rounded to f32: < |x| 2^-24 + 2e-7.
template <class V> MMT_INLINE V exp(V x) { return pow2(x * kLog2E); }

/// 1 / x; relative error 2^-14 for results that are rounded, and exactly 1 and 0 of 1 and infinity. (A division of 16
/// floats keeps the multipliers for six cycles, the estimate for one.)
template <bool kRounded, class V> MMT_INLINE V inverse(V x) {
#if MMT_VEC_WIDTH == 16
  if constexpr (kRounded)
    return apply([](F y) MMT_INLINE_LAMBDA { return reinterpret_cast<F>(_mm512_maskz_rcp14_ps(0xffff, raw(y))); }, x);
#endif
  return 1.0f / x;
}

template <class V> MMT_INLINE V magnitude(V x) {
  return apply([](F y) MMT_INLINE_LAMBDA { return abs(y); }, x);
}

/// 1 - tail where x > 0, else tail.
template <class V> MMT_INLINE V fold(V x, V tail) {
  return apply([](F y, F t) MMT_INLINE_LAMBDA { return y > 0.0f ? 1.0f - t : t; }, x, tail);
}

/// 1 + 2^t, t = -slope log2(e) x: the divisor of a sigmoid. Finite t give a finite number or +inf; so x / it is x or -0
/// far out.
template <bool kRounded, class V> MMT_INLINE V logistic_divisor(V t) { return 1.0f + pow2<kRounded>(t); }

template <class V> struct Normal { V distribution, density; };

/// Phi(x) and phi(x) of the standard normal distribution. erfc(z) = e^(-z^2) t P(t), t = 1 / (1 + 0.42 z), z = |x| /
/// sqrt2 (own minimax fit, 2e-7; half of its coefficients). Absolute error of Phi < 2e-7; relative error of its lower
/// tail < (5 + x^2) 2^-23.
template <class V> MMT_INLINE Normal<V> normal(V x) {
  const V e = pow2((x * x) * (-0.5f * kLog2E));  // x^2 may be inf
  const V t = 1.0f / (1.0f + 0.296984848f * magnitude(x));
  V p = 0.0351975876f * t + -0.160474336f;
  p = p * t + 0.220941044f;
  p = p * t + -0.065828316f;
  p = p * t + 0.134675404f;
  p = p * t + 0.0972691715f;
  p = p * t + 0.119808271f;
  p = p * t + 0.118411092f;
  return {fold(x, e * (p * t)), e * 0.398942280f};
}

/// Phi(x). Phi(-z) = 2^-W(z), z >= 0, with a polynomial for W that rises without end, so that Phi(-z) becomes 0 (own
/// minimax fits, exact at 0). Relative error for z <= 5: (5 + z^2) 2^-23; for results that are rounded 2^-13 for z
/// <= 4. Beyond, absolute 1e-11 and 1e-8.
template <bool kRounded, class V> MMT_INLINE V distribution(V x) {
  const V z = magnitude(x);
  V w;
  if constexpr (kRounded) {
    w = -3.41917417e-4f * z + 0.0060491506f;
    w = w * z + -0.0490552671f;
    w = w * z + -0.462841332f;
    w = w * z + -1.1499548f;
  } else {
    w = -2.36692728e-8f * z + 7.17118382e-7f;
    w = w * z + -9.35047592e-6f;
    w = w * z + 6.64968102e-5f;
    w = w * z + -2.43659437e-4f;
    w = w * z + -7.77438909e-5f;
    w = w * z + 0.00704475585f;
    w = w * z + -0.0525083318f;
    w = w * z + -0.45919916f;
    w = w * z + -1.15110648f;
  }
  return fold(x, pow2<kRounded>(w * z + -1.0f));
}

/// Phi(x) + x phi(x), for results that are rounded: e^(-z^2/2) G(z) on the lower side, G a polynomial (own minimax fit)
/// with an error of 2^-12.6 (Phi + z phi) for z <= 3.5, absolute 5e-7 beyond; 1 minus that on the upper side.
template <class V> MMT_INLINE V gelu_slope_rounded(V x) {
  // At 20 e^(-z^2/2) is 0, which G must not turn into NaN.
  const V z = apply([](F y) MMT_INLINE_LAMBDA { return min(splat(20.0f), abs(y)); }, x);
  const V e = pow2<true>((z * z) * (-0.5f * kLog2E));
  V g = 3.243482e-4f * z + -0.004745993f;
  g = g * z + 0.02925491f;
  g = g * z + -0.1022627f;
  g = g * z + 0.235438f;
  g = g * z + -0.7952327f;
  g = g * z + 0.4999211f;
  return fold(x, e * g);
}

}  // namespace mmt::cpu::MMT_VEC_NS
