#pragma once

#include "kernels/cpu/inner.h"
#include "kernels/cpu/vec.h"

namespace mmt::cpu::MMT_VEC_NS {

template <class T>
void rotate(Rows<T> x, const float* cos, const float* sin, std::int64_t pairs, bool backward, VectorShape shape) {
  const float sign = backward ? -1.0f : 1.0f;
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    const float *pc = cos + r * pairs, *ps = sin + r * pairs;
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      T* lower = x.base + r * x.stride + h * shape.features;
      T* upper = lower + pairs;
      each_vector(pairs, [&](std::int64_t j, int n) {
        const F c = load_at(pc + j, n), s = sign * load_at(ps + j, n);
        const F a = load_at(lower + j, n), b = load_at(upper + j, n);
        store_at(lower + j, a * c - b * s, n);
        store_at(upper + j, b * c + a * s, n);
      });
    }
  }
}

// sin and cos of kHalf angles in double: x = n pi/2 + r, |r| <= pi/4 (pi/2 in two parts: exact to 1e-12 for |n| <
// 2^20), Taylor series to r^15 and r^14 (error < 1e-14), quadrant by n mod 4.
struct SinCos {
  D sin, cos;
};

MMT_INLINE SinCos sin_cos(D x) {
  typedef std::int64_t L __attribute__((vector_size(kHalf * 8)));
  constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52
  const D shifted = x * 0.63661977236758134 + kMagic;
  const D n = shifted - kMagic;
  const D r = (x - n * 1.5707963267341256) - n * 6.0771005065061922e-11, q = r * r;
  D s = -7.6471637318198164e-13 + D{};
  s = s * q + 1.6059043836821613e-10;
  s = s * q - 2.5052108385441720e-8;
  s = s * q + 2.7557319223985893e-6;
  s = s * q - 1.9841269841269841e-4;
  s = s * q + 8.3333333333333333e-3;
  s = s * q - 1.6666666666666667e-1;
  s = s * q * r + r;
  D c = -1.1470745597729725e-11 + D{};
  c = c * q + 2.0876756987868099e-9;
  c = c * q - 2.7557319223985888e-7;
  c = c * q + 2.4801587301587302e-5;
  c = c * q - 1.3888888888888889e-3;
  c = c * q + 4.1666666666666667e-2;
  c = c * q - 0.5;
  c = c * q + 1.0;
  const L quadrant = reinterpret_cast<L>(shifted);  // its low bits hold n in two's complement
  const L odd = (quadrant & 1) != 0;
  const D sine = odd ? c : s, cosine = odd ? s : c;
  return {(quadrant & 2) != 0 ? -sine : sine, ((quadrant + 1) & 2) != 0 ? -cosine : cosine};
}

inline void rotary_table(float* cos, float* sin, const std::int32_t* positions, std::int64_t axes,
                         const double* inv_freq, const std::uint8_t* axis, double scale, std::int64_t rows,
                         std::int64_t pairs) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t j = 0; j < pairs; j += kHalf) {
      const int n = pairs - j < kHalf ? static_cast<int>(pairs - j) : kHalf;
      D angle{};
      if (axis == nullptr && n == kHalf) {
        __builtin_memcpy(&angle, inv_freq + j, sizeof angle);
        angle *= static_cast<double>(positions[r * axes]);
      } else {
        for (int i = 0; i < n; ++i)
          angle[i] = static_cast<double>(positions[r * axes + (axis ? axis[j + i] : 0)]) * inv_freq[j + i];
      }
      const SinCos v = sin_cos(angle);
      const FHalf c = __builtin_convertvector(v.cos * scale, FHalf), s = __builtin_convertvector(v.sin * scale, FHalf);
      __builtin_memcpy(cos + r * pairs + j, &c, static_cast<std::size_t>(n) * sizeof(float));
      __builtin_memcpy(sin + r * pairs + j, &s, static_cast<std::size_t>(n) * sizeof(float));
    }
}

}  // namespace mmt::cpu::MMT_VEC_NS
