#include "kernels/cpu/master.h"
#include "kernels/cpu/tables.h"
#include "kernels/cpu/vectors.h"

#include <cmath>

namespace mmt::cpu {
namespace {

// RMS norm is layer norm with mean 0 and no bias: one body serves both (an absent `mean` tensor means RMS).
template <class T> double mean_of(const T* x, std::int64_t n) {
  double sum = 0;
  for (std::int64_t j = 0; j < n; ++j) sum += static_cast<double>(x[j]);
  return sum / static_cast<double>(n);
}

template <class T> void forward(bool rms, const Tensor& y_, const Tensor& mean_, const Tensor& rstd_, const Tensor& x_,
                                const Tensor& w_, const Tensor& b_, double epsilon) {
  const Vectors<T> y(y_), x(x_);
  const T* w = w_.as<T>();
  const T* b = b_.defined() ? b_.as<T>() : nullptr;
  const std::int64_t n = x.features;
  for (std::int64_t i = 0; i < x.count(); ++i) {
    const double mean = rms ? 0.0 : mean_of(x[i], n);
    double squares = 0;
    for (std::int64_t j = 0; j < n; ++j) squares += std::pow(static_cast<double>(x[i][j]) - mean, 2);
    const double rstd = 1.0 / std::sqrt(squares / static_cast<double>(n) + epsilon);
    for (std::int64_t j = 0; j < n; ++j) {
      const double xhat = (static_cast<double>(x[i][j]) - mean) * rstd;
      y[i][j] = T(xhat * static_cast<double>(w[j]) + (b ? static_cast<double>(b[j]) : 0.0));
    }
    if (mean_.defined()) mean_.as<Master<T>>()[i] = static_cast<Master<T>>(mean);
    if (rstd_.defined()) rstd_.as<Master<T>>()[i] = static_cast<Master<T>>(rstd);
  }
}

template <class T> void backward_input(const Tensor& dx_, const Tensor& dy_, const Tensor& x_, const Tensor& mean_,
                                       const Tensor& rstd_, const Tensor& w_, Accumulate accumulate) {
  const Vectors<T> dx(dx_), dy(dy_), x(x_);
  const T* w = w_.as<T>();
  const bool rms = !mean_.defined();
  const std::int64_t n = x.features;
  for (std::int64_t i = 0; i < x.count(); ++i) {
    const double mean = rms ? 0.0 : static_cast<double>(mean_.as<Master<T>>()[i]);
    const double rstd = rstd_.as<Master<T>>()[i];
    double dot = 0, total = 0;
    for (std::int64_t j = 0; j < n; ++j) {
      const double g = static_cast<double>(w[j]) * static_cast<double>(dy[i][j]);
      total += g;
      dot += g * (static_cast<double>(x[i][j]) - mean) * rstd;
    }
    const double mean_dot = dot / static_cast<double>(n), mean_g = rms ? 0.0 : total / static_cast<double>(n);
    for (std::int64_t j = 0; j < n; ++j) {
      const double g = static_cast<double>(w[j]) * static_cast<double>(dy[i][j]);
      const double xhat = (static_cast<double>(x[i][j]) - mean) * rstd;
      const double d = rstd * (g - mean_g - xhat * mean_dot);
      dx[i][j] = T(accumulate == Accumulate::add ? static_cast<double>(dx[i][j]) + d : d);
    }
  }
}

template <class T> void backward_weight(const Tensor& dw_, const Tensor& db_, const Tensor& dy_, const Tensor& x_,
                                        const Tensor& mean_, const Tensor& rstd_, Accumulate accumulate) {
  const Vectors<T> dy(dy_), x(x_);
  const bool add = accumulate == Accumulate::add;
  for (std::int64_t j = 0; j < x.features; ++j) {
    double dw = 0, db = 0;
    for (std::int64_t i = 0; i < x.count(); ++i) {
      const double mean = mean_.defined() ? static_cast<double>(mean_.as<Master<T>>()[i]) : 0.0;
      const double g = dy[i][j];
      dw += g * (static_cast<double>(x[i][j]) - mean) * static_cast<double>(rstd_.as<Master<T>>()[i]);
      db += g;
    }
    const auto write = [&](const Tensor& t, double sum) {
      if (!t.defined()) return;
      auto* out = t.as<Master<T>>() + j;
      *out = static_cast<Master<T>>(add ? static_cast<double>(*out) + sum : sum);
    };
    write(dw_, dw);
    write(db_, db);
  }
}

}  // namespace

NormTable reference_norm() {
  return {
      .rms_norm_forward =
          [](const Stream&, const Tensor& y, const Tensor& rstd, const Tensor& x, const Tensor& w, double epsilon) {
            visit_float(x.dtype, [&]<class T>() { forward<T>(true, y, {}, rstd, x, w, {}, epsilon); });
          },
      .rms_norm_backward_input =
          [](const Stream&, const Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor& rstd, const Tensor& w,
             Accumulate a) { visit_float(x.dtype, [&]<class T>() { backward_input<T>(dx, dy, x, {}, rstd, w, a); }); },
      .rms_norm_backward_weight =
          [](const Stream&, const Tensor& dw, const Tensor& dy, const Tensor& x, const Tensor& rstd, Accumulate a) {
            visit_float(x.dtype, [&]<class T>() { backward_weight<T>(dw, {}, dy, x, {}, rstd, a); });
          },
      .layer_norm_forward =
          [](const Stream&, const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x, const Tensor& w,
             const Tensor& b, double epsilon) {
            visit_float(x.dtype, [&]<class T>() { forward<T>(false, y, mean, rstd, x, w, b, epsilon); });
          },
      .layer_norm_backward_input =
          [](const Stream&, const Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
             const Tensor& w, Accumulate a) {
            visit_float(x.dtype, [&]<class T>() { backward_input<T>(dx, dy, x, mean, rstd, w, a); });
          },
      .layer_norm_backward_weight =
          [](const Stream&, const Tensor& dw, const Tensor& db, const Tensor& dy, const Tensor& x, const Tensor& mean,
             const Tensor& rstd, Accumulate a) {
            visit_float(x.dtype, [&]<class T>() { backward_weight<T>(dw, db, dy, x, mean, rstd, a); });
          },
  };
}

}  // namespace mmt::cpu
