#include "kernels/reduce.h"

#include "kernels/dispatch.h"

#include <cmath>

namespace mmt::ops {
namespace {

void check_reduction(const Stream& stream, const Tensor& out, const Tensor& x) {
  check_compute(stream, x, "reduce: x");
  MMT_CHECK(x.contiguous(), "reduce: {} is not contiguous", x.describe());
  check_vector(stream, out, 1, DType::f64, "reduce: out");
}

}  // namespace

void sum_of_squares(const Stream& stream, const Tensor& out, const Tensor& x, Accumulate accumulate) {
  check_reduction(stream, out, x);
  table_for(stream, x.dtype).reduce.sum_of_squares(stream, out, x, accumulate);
}

void sum(const Stream& stream, const Tensor& out, const Tensor& x, Accumulate accumulate) {
  check_reduction(stream, out, x);
  table_for(stream, x.dtype).reduce.sum(stream, out, x, accumulate);
}

void max_abs(const Stream& stream, const Tensor& out, const Tensor& x) {
  check_reduction(stream, out, x);
  table_for(stream, x.dtype).reduce.max_abs(stream, out, x);
}

bool all_finite(const Stream& stream, const Tensor& x) {
  MMT_CHECK(stream.device.kind == DeviceKind::cpu, "all_finite on a device needs the device's own result buffer");
  double largest = 0;
  max_abs(stream, Tensor(&largest, DType::f64, {1}), x);
  return std::isfinite(largest);
}

}  // namespace mmt::ops
