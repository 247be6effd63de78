#include "kernels/cpu/tables.h"

#include <cmath>

namespace mmt::cpu {
namespace {

template <class F> double fold(const Tensor& x, F&& f) {
  double result = 0;
  visit_float(x.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < x.numel(); ++i) result = f(result, static_cast<double>(x.as<T>()[i]));
  });
  return result;
}

void write(const Tensor& out, double value, Accumulate accumulate) {
  double& result = *out.as<double>();
  result = accumulate == Accumulate::add ? result + value : value;
}

}  // namespace

ReduceTable reference_reduce() {
  return {
      .sum_of_squares =
          [](const Stream&, const Tensor& out, const Tensor& x, Accumulate accumulate) {
            write(out, fold(x, [](double r, double v) { return r + v * v; }), accumulate);
          },
      .sum = [](const Stream&, const Tensor& out, const Tensor& x,
                Accumulate accumulate) { write(out, fold(x, [](double r, double v) { return r + v; }), accumulate); },
      .max_abs =
          [](const Stream&, const Tensor& out, const Tensor& x) {
            // Written so that NaN wins and stays.
            write(out, fold(x, [](double r, double v) { return std::isnan(r) || std::abs(v) <= r ? r : std::abs(v); }),
                  Accumulate::overwrite);
          },
  };
}

}  // namespace mmt::cpu
