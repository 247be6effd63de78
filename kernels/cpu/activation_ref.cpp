#include "kernels/cpu/tables.h"

#include <cmath>
#include <numbers>

namespace mmt::cpu {
namespace {

struct ValueAndSlope {
  double value, slope;
};

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

ValueAndSlope evaluate(Activation activation, double x) {
  switch (activation) {
    case Activation::gelu_erf: {
      const double phi = 0.5 * std::erfc(-x / std::numbers::sqrt2);
      const double density = std::exp(-0.5 * x * x) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
      return {x * phi, phi + x * density};
    }
    case Activation::gelu_tanh: {
      const double c = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
      const double t = std::tanh(c * (x + 0.044715 * x * x * x));
      return {0.5 * x * (1 + t), 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x)};
    }
    case Activation::gelu_quick: {
      const double s = sigmoid(1.702 * x);
      return {x * s, s + 1.702 * x * s * (1 - s)};
    }
    case Activation::silu: {
      const double s = sigmoid(x);
      return {x * s, s + x * s * (1 - s)};
    }
  }
  return {};
}

template <class F> void each_row(const Tensor& shape, F&& f) {
  for (std::int64_t i = 0; i < shape.rows(); ++i)
    for (std::int64_t j = 0; j < shape.cols(); ++j) f(i, j);
}

void forward(const Stream&, const Tensor& y, const Tensor& x, Activation activation) {
  visit_float(x.dtype, [&]<class T>() {
    each_row(x, [&](std::int64_t i, std::int64_t j) {
      y.row<T>(i)[j] = T(evaluate(activation, static_cast<double>(x.row<T>(i)[j])).value);
    });
  });
}

void backward(const Stream&, const Tensor& dx, const Tensor& dy, const Tensor& x, Activation activation) {
  visit_float(x.dtype, [&]<class T>() {
    each_row(x, [&](std::int64_t i, std::int64_t j) {
      const double slope = evaluate(activation, static_cast<double>(x.row<T>(i)[j])).slope;
      dx.row<T>(i)[j] = T(static_cast<double>(dy.row<T>(i)[j]) * slope);
    });
  });
}

void swiglu_forward(const Stream&, const Tensor& y, const Tensor& gate, const Tensor& up) {
  visit_float(gate.dtype, [&]<class T>() {
    each_row(gate, [&](std::int64_t i, std::int64_t j) {
      const double g = gate.row<T>(i)[j], u = up.row<T>(i)[j];
      y.row<T>(i)[j] = T(evaluate(Activation::silu, g).value * u);
    });
  });
}

void swiglu_backward(const Stream&, const Tensor& dgate, const Tensor& dup, const Tensor& dy, const Tensor& gate,
                     const Tensor& up) {
  visit_float(gate.dtype, [&]<class T>() {
    each_row(gate, [&](std::int64_t i, std::int64_t j) {
      const double g = gate.row<T>(i)[j], u = up.row<T>(i)[j], d = dy.row<T>(i)[j];
      const auto [value, slope] = evaluate(Activation::silu, g);
      dgate.row<T>(i)[j] = T(d * u * slope);
      dup.row<T>(i)[j] = T(d * value);
    });
  });
}

}  // namespace

ActivationTable reference_activation() {
  return {
      .forward = forward, .backward = backward, .swiglu_forward = swiglu_forward, .swiglu_backward = swiglu_backward};
}

}  // namespace mmt::cpu
