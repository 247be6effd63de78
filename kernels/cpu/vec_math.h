// Vector exp and what is built on it. Errors are stated against the exact value and tested.
#pragma once

#include "kernels/cpu/vec.h"

namespace mmt::cpu::MMT_VEC_NS {

/// e^x, relative error < 2e-7; subnormal results included, 0 below -104, inf above 88.73, NaN stays NaN.
/// x = n ln2 + r with |r| <= ln2 / 2 (two-part ln2), e^r by a polynomial (Chebyshev fit, 1e-8), scaled by 2^n: by one
/// instruction where there is one, else in two steps so that neither factor overflows.
MMT_INLINE F exp(F x) {
  x = max(splat(-104.0f), min(splat(89.0f), x));
#if MMT_VEC_WIDTH == 16
  const F n = reinterpret_cast<F>(_mm512_maskz_roundscale_ps(0xffff, raw(x * 1.44269504f), 8));
#else
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const F shifted = x * 1.44269504f + kMagic;
  const F n = shifted - kMagic;
#endif
  const F r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  F p = splat(0.00139337324f);
  p = p * r + 0.00836323574f;
  p = p * r + 0.041666463f;
  p = p * r + 0.166665763f;
  p = p * r + 0.5f;
  p = (p * r) * r + r + 1.0f;
#if MMT_VEC_WIDTH == 16
  return reinterpret_cast<F>(_mm512_maskz_scalef_ps(0xffff, raw(p), raw(n)));
#else
  const I whole = reinterpret_cast<I>(shifted) - 0x4b400000;
  const I half = whole >> 1;
  const F a = reinterpret_cast<F>((half + 127) << 23), b = reinterpret_cast<F>((whole - half + 127) << 23);
  return p * a * b;
#endif
}

/// 1 / (1 + e^-x), relative error < 4e-7.
MMT_INLINE F sigmoid(F x) { return 1.0f / (1.0f + exp(-x)); }

struct Normal {
  F distribution, density;
};

/// Phi(x) and phi(x) of the standard normal distribution. erfc(z) = e^(-z^2) t P(t), t = 1 / (1 + 0.38 z), z = |x| /
/// sqrt2 (own Chebyshev fit, 3e-8). Absolute error of Phi < 1.5e-7; relative error of its lower tail < (3 + x^2) 2^-23.
MMT_INLINE Normal normal(F x) {
  const F z = abs(x) * 0.707106781f;
  const F e = exp(-0.5f * x * x);
  const F t = 1.0f / (1.0f + 0.38f * z);
  F p = splat(0.058230754f);
  p = p * t + -0.258759022f;
  p = p * t + 0.356710196f;
  p = p * t + -0.153431535f;
  p = p * t + 0.224589065f;
  p = p * t + 0.140918866f;
  p = p * t + 0.203337595f;
  p = p * t + 0.213997662f;
  p = p * t + 0.214406431f;
  const F tail = 0.5f * e * (p * t);
  return {x > 0.0f ? 1.0f - tail : tail, e * 0.398942280f};
}

}  // namespace mmt::cpu::MMT_VEC_NS
