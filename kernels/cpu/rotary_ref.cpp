#include "kernels/cpu/master.h"
#include "kernels/cpu/tables.h"
#include "kernels/cpu/vectors.h"

#include <cmath>

namespace mmt::cpu {
namespace {

void table(const Stream&, const Tensor& cos, const Tensor& sin, const Tensor& positions,
           std::span<const double> inv_freq, std::span<const std::uint8_t> axis, double scale) {
  visit_float(cos.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < positions.rows(); ++i)
      for (std::size_t j = 0; j < inv_freq.size(); ++j) {
        const double angle = positions.row<std::int32_t>(i)[axis.empty() ? 0 : axis[j]] * inv_freq[j];
        cos.row<T>(i)[j] = T(std::cos(angle) * scale);
        sin.row<T>(i)[j] = T(std::sin(angle) * scale);
      }
  });
}

void apply(const Stream&, const Tensor& x_, const Tensor& cos, const Tensor& sin, Direction direction) {
  visit_float(x_.dtype, [&]<class T>() {
    const Vectors<T> x(x_);
    const std::int64_t pairs = cos.cols();
    const double sign = direction == Direction::forward ? 1.0 : -1.0;
    for (std::int64_t i = 0; i < x.count(); ++i) {
      const std::int64_t row = i / x.heads;
      for (std::int64_t j = 0; j < pairs; ++j) {
        const double c = cos.row<Master<T>>(row)[j], s = sign * static_cast<double>(sin.row<Master<T>>(row)[j]);
        const double a = x[i][j], b = x[i][j + pairs];
        x[i][j] = T(a * c - b * s);
        x[i][j + pairs] = T(b * c + a * s);
      }
    }
  });
}

}  // namespace

RotaryTable reference_rotary() { return {.table = table, .apply = apply}; }

}  // namespace mmt::cpu
