#include "kernels/activation.h"
#include "tests/kernels/support.h"

#include <catch2/catch.hpp>

#include <cmath>

using namespace mmt;
using namespace mmt::test;

namespace {

constexpr Activation kAll[] = {Activation::gelu_erf, Activation::gelu_tanh, Activation::gelu_quick, Activation::silu};

// A sweep over the whole range, dense around zero.
std::vector<double> sweep() {
  std::vector<double> list = {0.0,    -0.0, 1e-30, -1e-30, 1e-42, 30.0, -30.0, 100.0,
                              -100.0, 1e4,  -1e4,  1e20,   -1e20, 3e38, -3e38};
  for (int i = -1200; i <= 1200; ++i) list.push_back(i / 100.0);
  return list;
}

// Relative error of a few eps in the sigmoid or the distribution, times |x|; the argument's own rounding moves the tail
// by a relative x^2 eps, where the value itself is below |x| e^(-x^2 / 2).
// In bf16 the functions are approximated to 2^-12 of their size, a sixteenth of the rounding that follows. `size`: of a
// value x s the value, of a slope s + x s' the sum |s| + |x s'|, since the approximation knows nothing of the zero
// where the two cancel.
std::vector<double> bounds(DType dtype, const std::vector<double>& x, const std::vector<double>& size,
                           double upstream) {
  std::vector<double> list;
  for (std::size_t i = 0; i < x.size(); ++i)
    list.push_back(std::abs(upstream) * (std::min(std::abs(x[i]) + 1, 40.0) * std::ldexp(6.0, -24) +
                                         (dtype == DType::bf16 ? std::ldexp(size[i], -12) : 0.0)) +
                   1e-37);
  return list;
}

}  // namespace

TEST_CASE("activations and their slopes equal the f64 reference over the whole range") {
  for (const DType dtype : kFastDTypes)
    for (const Activation kind : kAll) {
      const auto n = static_cast<std::int64_t>(sweep().size());
      const Matrix x = of(dtype, {1, n}, sweep()), dy = of(dtype, {1, n}, std::vector<double>(sweep().size(), 1.5));
      const std::vector<double> rounded = values(x);
      const Matrix x64 = of(DType::f64, {1, n}, rounded), dy64 = of(DType::f64, {1, n}, values(dy)),
                   y64 = empty(DType::f64, {1, n}), dx64 = empty(DType::f64, {1, n});
      ops::activation_forward(reference_stream(), y64, x64, kind);
      ops::activation_backward(reference_stream(), dx64, dy64, x64, kind);
      std::vector<double> value, slope;
      for (std::size_t i = 0; i < rounded.size(); ++i) {
        value.push_back(std::abs(values(y64)[i]));
        const double s = rounded[i] == 0 ? 0.5 : values(y64)[i] / rounded[i];
        slope.push_back(s + std::abs(values(dx64)[i] / 1.5 - s));
      }
      for (const Backend& backend : backends()) {
        const Matrix y = empty(dtype, {1, n}), dx = empty(dtype, {1, n});
        ops::activation_forward(backend.stream, y, x, kind);
        ops::activation_backward(backend.stream, dx, dy, x, kind);
        const std::string what = backend.name + " activation " + std::to_string(static_cast<int>(kind));
        require_close(y, values(y64), bounds(dtype, rounded, value, 1), what);
        require_close(dx, values(dx64), bounds(dtype, rounded, slope, 1.5), what + " slope");
      }
    }
}

TEST_CASE("activations of every bf16 number") {
  constexpr std::int64_t kAll16 = 1 << 16;
  const Matrix x = empty(DType::bf16, {1, kAll16}), dy = empty(DType::bf16, {1, kAll16});
  for (std::int64_t i = 0; i < kAll16; ++i) x->as<bf16>()[i].bits = static_cast<std::uint16_t>(i);
  assign(dy, std::vector<double>(kAll16, 1.0));
  const std::vector<double> v = values(x);
  const Matrix x64 = of(DType::f64, {1, kAll16}, v), dy64 = of(DType::f64, {1, kAll16}, values(dy)),
               y64 = empty(DType::f64, {1, kAll16}), dx64 = empty(DType::f64, {1, kAll16});
  for (const Activation kind : kAll) {
    ops::activation_forward(reference_stream(), y64, x64, kind);
    ops::activation_backward(reference_stream(), dx64, dy64, x64, kind);
    const double *py = y64->as<double>(), *pdx = dx64->as<double>();
    for (const Backend& backend : fast_backends()) {
      const Matrix y = empty(DType::bf16, {1, kAll16}), dx = empty(DType::bf16, {1, kAll16});
      ops::activation_forward(backend.stream, y, x, kind);
      ops::activation_backward(backend.stream, dx, dy, x, kind);
      // One rounding (2^-8) and a sixteenth of one; far down the
      // tails, where the value is below 2e-4 (the slope below 1e-2), an absolute error that no sum of such numbers
      // shows. 1.2e-38: subnormal results may be zero.
      const double relative = std::ldexp(1.0, -8) + std::ldexp(1.0, -12);
      double worst = 0, worst_slope = 0;
      for (std::size_t i = 0; i < kAll16; ++i) {
        if (!std::isfinite(v[i])) continue;
        const double s = v[i] == 0 ? 0.5 : py[i] / v[i], size = s + std::abs(pdx[i] - s);
        const double error = std::abs(static_cast<double>(y->as<bf16>()[i]) - py[i]),
                     slope_error = std::abs(static_cast<double>(dx->as<bf16>()[i]) - pdx[i]);
        const double allowed = relative * std::abs(py[i]) + (std::abs(py[i]) < 2e-4 ? 2e-8 : 0) + 1.2e-38,
                     slope_allowed =
                         std::ldexp(std::abs(pdx[i]), -8) + std::ldexp(size, -12) + (size < 1e-2 ? 1e-6 : 0) + 1.2e-38;
        worst = std::max(worst, std::isnan(error) ? 1e9 : error / allowed);
        worst_slope = std::max(worst_slope, std::isnan(slope_error) ? 1e9 : slope_error / slope_allowed);
      }
      INFO(backend.name << " " << static_cast<int>(kind) << ": " << worst << ", slope " << worst_slope);
      REQUIRE(worst <= 1);
      REQUIRE(worst_slope <= 1);
      REQUIRE(worst > 0.8);  // the rounding alone comes close: a bound that nothing meets would prove nothing
      REQUIRE(worst_slope > 0.8);
    }
  }
}

// torch.nn.functional.gelu(x), gelu(x, approximate="tanh"), x * sigmoid(1.702 x), silu(x), in double.
TEST_CASE("activations have PyTorch's values") {
  const std::vector<double> x = {-3, -1, -0.5, 0.5, 1, 3};
  const std::vector<double> golden[] = {
      {-0.0040496941, -0.1586552539, -0.1542687694, 0.3457312306, 0.8413447461, 2.9959503059},
      {-0.0036373921, -0.1588080094, -0.1542859902, 0.3457140098, 0.8411919906, 2.9963626079},
      {-0.0180713097, -0.1542042341, -0.1496115634, 0.3503884366, 0.8457957659, 2.9819286903},
      {-0.1422776195, -0.2689414214, -0.1887703344, 0.3112296656, 0.7310585786, 2.8577223805}};
  for (const Backend& backend : backends())
    for (const Activation kind : kAll) {
      const Matrix in = of(DType::f32, {1, 6}, x), y = empty(DType::f32, {1, 6});
      ops::activation_forward(backend.stream, y, in, kind);
      require_close(y, golden[static_cast<int>(kind)], {1e-6},
                    backend.name + " " + std::to_string(static_cast<int>(kind)));
    }
}

TEST_CASE("activations keep NaN and may run in place with row strides") {
  for (const Backend& backend : backends())
    for (const DType dtype : kFastDTypes)
      for (const Activation kind : kAll) {
        const Matrix x = random(dtype, {7, 37}, 1, 2, 3);
        std::vector<double> v = values(x);
        v[40] = NAN;
        assign(x, v);
        const Matrix y = empty(dtype, {7, 37}), dy = random(dtype, {7, 37}, 2), dx = empty(dtype, {7, 37});
        ops::activation_forward(backend.stream, y, x, kind);
        ops::activation_backward(backend.stream, dx, dy, x, kind);
        for (std::size_t i = 0; i < v.size(); ++i) {
          REQUIRE(std::isnan(values(y)[i]) == (i == 40));
          REQUIRE(std::isnan(values(dx)[i]) == (i == 40));
        }
        ops::activation_backward(backend.stream, dy, dy, x, kind);
        require_bitwise(dy, dx, backend.name);
        ops::activation_forward(backend.stream, x, x, kind);
        require_bitwise(x, y, backend.name);
      }
}

TEST_CASE("activations of infinities are what their formulas give, and far out x or -0 exactly") {
  for (const Backend& backend : backends())
    for (const DType dtype : kFastDTypes)
      for (const Activation kind : kAll) {
        const std::vector<double> list = {INFINITY, -INFINITY, 1e30, -1e30, -500, 500};
        std::vector<double> many;  // whole registers and a rest
        for (int i = 0; i < 37; ++i) many.push_back(list[static_cast<std::size_t>(i) % list.size()]);
        const Matrix x = of(dtype, {1, 37}, many), y = empty(dtype, {1, 37});
        ops::activation_forward(backend.stream, y, x, kind);
        const std::vector<double> v = values(y), rounded = values(x);
        INFO(backend.name << " " << static_cast<int>(kind));
        for (std::size_t i = 0; i < v.size(); ++i) {
          if (i % 6 == 1)
            REQUIRE(std::isnan(v[i]));
          else
            REQUIRE(v[i] == (rounded[i] > 0 ? rounded[i] : 0.0));
        }
      }
}

TEST_CASE("slopes agree with differences") {
  const Stream stream = reference_stream();
  for (const Activation kind : kAll) {
    const Matrix x = random(DType::f64, {3, 8}, 1, 2), r = random(DType::f64, {3, 8}, 2), y = empty(DType::f64, {3, 8}),
                 dx = empty(DType::f64, {3, 8});
    ops::activation_backward(stream, dx, r, x, kind);
    require_gradient(
        [&] {
          ops::activation_forward(stream, y, x, kind);
          return dot(r, y);
        },
        x, dx, "activation " + std::to_string(static_cast<int>(kind)));
  }
}

TEST_CASE("swiglu: two tensors or two column ranges, forward, backward and differences") {
  {
    const Stream stream = reference_stream();
    const Matrix gate = random(DType::f64, {4, 5}, 1), up = random(DType::f64, {4, 5}, 2),
                 r = random(DType::f64, {4, 5}, 3), y = empty(DType::f64, {4, 5}), dgate = empty(DType::f64, {4, 5}),
                 dup = empty(DType::f64, {4, 5});
    const auto loss = [&] {
      ops::swiglu_forward(stream, y, gate, up);
      return dot(r, y);
    };
    ops::swiglu_backward(stream, dgate, dup, r, gate, up);
    require_gradient(loss, gate, dgate, "dgate");
    require_gradient(loss, up, dup, "dup");
  }
  for (const DType dtype : kFastDTypes) {
    const Matrix fused = random(dtype, {50, 2 * 37}, 1, 2), dy = random(dtype, {50, 37}, 2);
    const Tensor gate = fused->col_range(0, 37), up = fused->col_range(37, 37);
    const Matrix g64 = of(DType::f64, {50, 37}, values(gate)), u64 = of(DType::f64, {50, 37}, values(up)),
                 dy64 = of(DType::f64, {50, 37}, values(dy)), y64 = empty(DType::f64, {50, 37}),
                 dg64 = empty(DType::f64, {50, 37}), du64 = empty(DType::f64, {50, 37});
    ops::swiglu_forward(reference_stream(), y64, g64, u64);
    ops::swiglu_backward(reference_stream(), dg64, du64, dy64, g64, u64);
    for (const Backend& backend : backends()) {
      const Matrix y = empty(dtype, {50, 37}), d = copy_of(fused);
      ops::swiglu_forward(backend.stream, y, gate, up);
      // Values are products of up to three numbers below 10: a few eps of 100. In bf16 the sigmoid is approximated, to
      // 2^-12 of the terms: |d u| (s + |g| s (1 - s)) < 1.1 |d u| and |d g|.
      const auto bound = [&](double absolute, auto&& size) {
        std::vector<double> list;
        for (std::size_t i = 0; i < values(y64).size(); ++i)
          list.push_back(std::ldexp(absolute, -24) + (dtype == DType::bf16 ? std::ldexp(std::abs(size(i)), -12) : 0.0));
        return list;
      };
      const std::vector<double> gs = values(g64), us = values(u64), ds = values(dy64), ys = values(y64);
      require_close(y, ys, bound(200, [&](std::size_t i) { return ys[i]; }), backend.name + " y");
      // The gradients may overwrite gate and up.
      const Tensor dgate = d->col_range(0, 37), dup = d->col_range(37, 37);
      ops::swiglu_backward(backend.stream, dgate, dup, dy, dgate, dup);
      require_close(dgate, values(dg64), bound(400, [&](std::size_t i) { return 1.1 * ds[i] * us[i]; }),
                    backend.name + " dgate");
      require_close(dup, values(du64), bound(200, [&](std::size_t i) { return ds[i] * gs[i]; }), backend.name + " dup");
    }
  }
}

TEST_CASE("activations do not depend on the number of threads") {
  for (const Backend& backend : fast_backends())
    for (const DType dtype : kFastDTypes)
      for (const std::int64_t pad : {0, 7}) {  // one long row, or row by row
        const Matrix x = random(dtype, {97, 61}, 1, 2, pad), up = random(dtype, {97, 61}, 2, 2, pad),
                     y = empty(dtype, {97, 61}, pad), dx = empty(dtype, {97, 61}, pad),
                     gated = empty(dtype, {97, 61}, pad);
        require_thread_independent(
            [&] {
              ops::activation_forward(backend.stream, y, x, Activation::gelu_erf);
              ops::activation_backward(backend.stream, dx, up, x, Activation::gelu_tanh);
              ops::swiglu_forward(backend.stream, gated, x, up);
            },
            {y, dx, gated}, backend.name);
      }
}
