#include "kernels/cpu/dropout.h"

#include "core/philox.h"
#include "kernels/cpu/tables.h"

namespace mmt::cpu {
namespace {

void dropout(const Stream&, const Tensor& y, const Tensor& x, const Tensor& address, const DropoutOptions& o) {
  const std::uint32_t threshold = dropout_threshold(o.probability);
  visit_float(x.dtype, [&]<class T>() {
    const double factor =
        std::is_same_v<T, double> ? 1.0 / (1.0 - o.probability) : static_cast<double>(dropout_factor(o.probability));
    for (std::int64_t r = 0; r < x.rows(); ++r) {
      const std::int64_t sample = address.row<std::int64_t>(r)[0], row = address.row<std::int64_t>(r)[1];
      for (std::int64_t c = 0; c < x.cols(); ++c) {
        const auto element = static_cast<std::uint64_t>(row * o.features + o.first_col + c);
        const bool keep =
            sample >= 0 && random_bits(o.key, static_cast<std::uint64_t>(sample), o.step, element) >= threshold;
        const double value = keep ? static_cast<double>(x.row<T>(r)[c]) * factor : 0.0;
        const double old = o.accumulate == Accumulate::add ? static_cast<double>(y.row<T>(r)[c]) : 0.0;
        y.row<T>(r)[c] = T(old + value);
      }
    }
  });
}

}  // namespace

DropoutTable reference_dropout() { return {.dropout = dropout}; }

}  // namespace mmt::cpu
