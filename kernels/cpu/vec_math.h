// Vector exponentials and what is built on them. Errors are stated against the exact value and tested.
#pragma once

#include "kernels/cpu/vec.h"

namespace mmt::cpu::MMT_VEC_NS {

inline constexpr float kLog2E = 1.44269504f;

/// 2^t, relative error < 2e-7, for finite t (narrow registers: any t): 0 below -150, inf from 128 on, subnormal results
/// included, NaN stays NaN. t = n + r with |r| <= 1/2; 2^r by a polynomial (minimax, 9e-8, exact at 0), scaled by 2^n:
/// by one instruction where there is one, else in two steps so that neither factor overflows.
MMT_INLINE F pow2(F t) {
#if MMT_VEC_WIDTH == 16
  const F n = reinterpret_cast<F>(_mm512_maskz_roundscale_ps(0xffff, raw(t), 8));
#else
  t = max(splat(-151.0f), min(splat(129.0f), t));
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const F shifted = t + kMagic;
  const F n = shifted - kMagic;
#endif
  const F r = t - n;
  F p = splat(0.00132647273f);
  p = p * r + 0.00967151299f;
  p = p * r + 0.0555073358f;
  p = p * r + 0.240222424f;
  p = p * r + 0.693147004f;
  p = p * r + 1.0f;
#if MMT_VEC_WIDTH == 16
  return reinterpret_cast<F>(_mm512_maskz_scalef_ps(0xffff, raw(p), raw(n)));
#else
  const I whole = reinterpret_cast<I>(shifted) - 0x4b400000;
  const I half = whole >> 1;
  const F a = reinterpret_cast<F>((half + 127) << 23), b = reinterpret_cast<F>((whole - half + 127) << 23);
  return p * a * b;
#endif
}

/// e^x for x <= 88, -inf included. Its relative error is that of x log2(e) rounded to f32: < |x| 2^-24 + 2e-7.
MMT_INLINE F exp(F x) {
  const F t = x * kLog2E;
  return pow2(kWidth == 16 ? max(splat(-151.0f), t) : t);
}

/// 1 + e^-(slope x), the divisor of a sigmoid: finite x give a finite number or +inf; so x / it is x or -0 far out.
MMT_INLINE F logistic_divisor(F x, float slope) {
  const F t = x * (-kLog2E * slope);
  return 1.0f + pow2(kWidth == 16 ? max(splat(-151.0f), min(splat(129.0f), t)) : t);
}

struct Normal {
  F distribution, density;
};

/// Phi(x) and phi(x) of the standard normal distribution. erfc(z) = e^(-z^2) t P(t), t = 1 / (1 + 0.42 z), z = |x| /
/// sqrt2 (own minimax fit, 2e-7; half of its coefficients). Absolute error of Phi < 2e-7; relative error of its lower
/// tail < (5 + x^2) 2^-23.
MMT_INLINE Normal normal(F x) {
  const F power = (x * x) * (-0.5f * kLog2E);  // x^2 may be inf
  const F e = pow2(kWidth == 16 ? max(splat(-151.0f), power) : power);
  const F t = 1.0f / (1.0f + 0.296984848f * abs(x));
  F p = splat(0.0351975876f);
  p = p * t + -0.160474336f;
  p = p * t + 0.220941044f;
  p = p * t + -0.065828316f;
  p = p * t + 0.134675404f;
  p = p * t + 0.0972691715f;
  p = p * t + 0.119808271f;
  p = p * t + 0.118411092f;
  const F tail = e * (p * t);
  return {x > 0.0f ? 1.0f - tail : tail, e * 0.398942280f};
}

}  // namespace mmt::cpu::MMT_VEC_NS
