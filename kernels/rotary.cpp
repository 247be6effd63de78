#include "kernels/rotary.h"

#include "kernels/dispatch.h"

#include <cmath>

namespace mmt::ops {

void rotary_inverse_frequencies(std::span<double> inv_freq, double theta) {
  const auto pairs = static_cast<double>(inv_freq.size());
  for (std::size_t j = 0; j < inv_freq.size(); ++j) inv_freq[j] = std::pow(theta, -static_cast<double>(j) / pairs);
}

void rotary_section_axes(std::span<std::uint8_t> axis, std::span<const int> sections) {
  std::size_t j = 0;
  for (std::size_t s = 0; s < sections.size(); ++s)
    for (int i = 0; i < sections[s]; ++i, ++j) {
      MMT_CHECK(j < axis.size(), "rotary: the sections hold more than {} frequencies", axis.size());
      axis[j] = static_cast<std::uint8_t>(s);
    }
  MMT_CHECK(j == axis.size(), "rotary: the sections hold {} of {} frequencies", j, axis.size());
}

void rotary_table(const Stream& stream, const Tensor& cos, const Tensor& sin, const Tensor& positions,
                  std::span<const double> inv_freq, std::span<const std::uint8_t> axis, double scale) {
  const auto pairs = static_cast<std::int64_t>(inv_freq.size());
  check_compute(stream, cos, "rotary: cos");
  MMT_CHECK(cos.dtype != DType::bf16 && cos.contiguous(), "rotary: cos is {}, expected contiguous f32 or f64",
            cos.describe());
  check_shape(cos, {positions.rows(), pairs}, "rotary: cos");
  check_like(sin, cos, "rotary: sin");
  MMT_CHECK(sin.contiguous(), "rotary: sin is not contiguous");
  check_tensor(stream, positions, 2, DType::i32, "rotary: positions");
  const std::int64_t axes = positions.dims[1];
  MMT_CHECK(axes >= 1 && axes <= 4, "rotary: {} positions a row", axes);
  MMT_CHECK(axis.size() == inv_freq.size() || (axis.empty() && axes == 1), "rotary: {} axes for {} frequencies",
            axis.size(), inv_freq.size());
  for (const std::uint8_t a : axis) MMT_CHECK(a < axes, "rotary: axis {} of {}", a, axes);
  table_for(stream, cos.dtype).rotary.table(stream, cos, sin, positions, inv_freq, axis, scale);
}

void rotary_apply(const Stream& stream, const Tensor& x, const Tensor& cos, const Tensor& sin, Direction direction) {
  check_compute(stream, x, "rotary: x");
  MMT_CHECK(x.rank == 2 || x.rank == 3, "rotary: x is {}, expected (rows, heads, head_dim)", x.describe());
  check_tensor(stream, cos, 2, master_of(x.dtype), "rotary: cos");
  check_like(sin, cos, "rotary: sin");
  MMT_CHECK(cos.rows() == x.rows() && 2 * cos.cols() <= x.dims[static_cast<std::size_t>(x.rank - 1)],
            "rotary: x {} with tables {}", x.describe(), cos.describe());
  MMT_CHECK(cos.contiguous() && sin.contiguous(), "rotary: tables are not contiguous");
  table_for(stream, x.dtype).rotary.apply(stream, x, cos, sin, direction);
}

Tensor split_heads(const Tensor& x, std::int64_t heads) {
  MMT_CHECK(x.rank == 2 && heads > 0 && x.dims[1] % heads == 0, "{} into {} heads", x.describe(), heads);
  Tensor t = x;
  t.rank = 3;
  t.dims[1] = heads;
  t.dims[2] = x.dims[1] / heads;
  return t;
}

}  // namespace mmt::ops
