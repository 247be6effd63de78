#include "kernels/norm.h"
#include "tests/kernels/support.h"

#include <catch2/catch.hpp>

#include <cmath>

using namespace mmt;
using namespace mmt::test;

namespace {

constexpr double kEpsilon = 1e-5;

struct Case {
  std::int64_t rows, heads, features, pad;
};
constexpr Case kCases[] = {{1, 1, 1, 0},   {3, 1, 7, 2}, {70, 1, 64, 0},  {9, 1, 133, 3}, {200, 2, 16, 40},
                           {33, 3, 37, 1}, {0, 1, 8, 0}, {9, 1, 269, 5}, {19, 1, 64, 1}, {30, 2, 128, 3}};

std::vector<std::int64_t> shape_of(Case c) {
  return c.heads == 1 ? std::vector<std::int64_t>{c.rows, c.features}
                      : std::vector<std::int64_t>{c.rows, c.heads, c.features};
}

Matrix promoted(const Tensor& t) {
  Matrix m = empty(DType::f64, std::vector<std::int64_t>(t.shape().begin(), t.shape().end()));
  assign(m, values(t));
  return m;
}

// Everything a norm computes, for one dtype and backend.
struct Run {
  Matrix y, mean, rstd, dx, dw, db;
};
Run run(const Stream& stream, bool rms, DType dtype, Case c, const Tensor& x, const Tensor& w, const Tensor& b,
        const Tensor& dy, Accumulate accumulate) {
  const DType master = master_of(dtype);
  Run r{empty(dtype, shape_of(c), c.pad),        empty(master, {c.rows * c.heads}), empty(master, {c.rows * c.heads}),
        random(dtype, shape_of(c), 9, 1, c.pad), random(master, {c.features}, 10),  random(master, {c.features}, 11)};
  if (rms) {
    ops::rms_norm_forward(stream, r.y, r.rstd, x, w, kEpsilon);
    ops::rms_norm_backward_input(stream, r.dx, dy, x, r.rstd, w, accumulate);
    ops::rms_norm_backward_weight(stream, r.dw, dy, x, r.rstd, accumulate);
    assign(r.mean, std::vector<double>(static_cast<std::size_t>(c.rows * c.heads), 0.0));
  } else {
    ops::layer_norm_forward(stream, r.y, r.mean, r.rstd, x, w, b, kEpsilon);
    ops::layer_norm_backward_input(stream, r.dx, dy, x, r.mean, r.rstd, w, accumulate);
    ops::layer_norm_backward_weight(stream, r.dw, r.db, dy, x, r.mean, r.rstd, accumulate);
  }
  return r;
}

}  // namespace

TEST_CASE("norms of every backend equal the f64 reference over odd sizes and strides") {
  for (const bool rms : {true, false})
    for (const DType dtype : kFastDTypes)
      for (const Case c : kCases)
        for (const Accumulate accumulate : {Accumulate::overwrite, Accumulate::add}) {
          const Matrix x = random(dtype, shape_of(c), 1, 2, c.pad), w = random(dtype, {c.features}, 2),
                       b = random(dtype, {c.features}, 3), dy = random(dtype, shape_of(c), 4, 1, c.pad);
          const Matrix x64 = promoted(x), w64 = promoted(w), b64 = promoted(b), dy64 = promoted(dy);
          // The f64 run starts from the old values of the low-precision one.
          Run exact = run(reference_stream(), rms, DType::f64, c, x64, w64, b64, dy64, Accumulate::overwrite);
          for (const Backend& backend : backends()) {
            const std::string what = backend.name + (rms ? " rms " : " layer ") + std::string(name_of(dtype));
            Run r = run(backend.stream, rms, dtype, c, x, w, b, dy, accumulate);
            const auto n = static_cast<double>(c.features);
            // The statistics are sums of n terms (error n eps, in practice far less); y and dx are a few products of
            // them. Terms are of order max|x| max|w| max|dy| < 100.
            const double bound = (n + 20) * std::ldexp(20.0, -24);
            require_close(r.y, values(exact.y), {bound}, what + " y");
            require_close(r.rstd, values(exact.rstd), {bound}, what + " rstd");
            require_close(r.mean, values(exact.mean), {bound}, what + " mean");
            std::vector<double> dx = values(exact.dx), dw = values(exact.dw), db = values(exact.db);
            if (accumulate == Accumulate::add) {
              const std::vector<double> old = values(random(dtype, shape_of(c), 9, 1, c.pad));
              for (std::size_t i = 0; i < dx.size(); ++i) dx[i] += old[i];
              const std::vector<double> ow = values(random(DType::f32, {c.features}, 10)),
                                        ob = values(random(DType::f32, {c.features}, 11));
              for (std::size_t i = 0; i < dw.size(); ++i) {
                dw[i] += ow[i];
                db[i] += ob[i];
              }
            }
            // dx: rstd reaches 1 / sqrt(eps) = 316 where a row is constant (one feature).
            require_close(r.dx, dx, {c.features == 1 ? 1e-2 : 10 * bound}, what + " dx");
            const double sums = (64 + static_cast<double>(c.rows * c.heads)) * std::ldexp(20.0, -24);
            require_close(r.dw, dw, {sums * 4}, what + " dw");
            if (!rms) require_close(r.db, db, {sums}, what + " db");
          }
        }
}

TEST_CASE("the norms' gradients agree with differences") {
  const Stream stream = reference_stream();
  for (const bool rms : {true, false}) {
    const Case c{4, 2, 5, 3};
    const Matrix x = random(DType::f64, shape_of(c), 1, 1, c.pad), w = random(DType::f64, {5}, 2),
                 b = random(DType::f64, {5}, 3), r = random(DType::f64, shape_of(c), 4),
                 y = empty(DType::f64, shape_of(c));
    const auto loss = [&] {
      if (rms)
        ops::rms_norm_forward(stream, y, {}, x, w, kEpsilon);
      else
        ops::layer_norm_forward(stream, y, {}, {}, x, w, b, kEpsilon);
      return dot(r, y);
    };
    const Run g = run(stream, rms, DType::f64, c, x, w, b, r, Accumulate::overwrite);
    require_gradient(loss, x, g.dx, "dx");
    require_gradient(loss, w, g.dw, "dw");
    if (!rms) require_gradient(loss, b, g.db, "db");
  }
}

TEST_CASE("norms may run in place and their gradients do not depend on the number of threads") {
  for (const Backend& backend : fast_backends())
    for (const DType dtype : kFastDTypes) {
      const Case c{301, 1, 96, 0};
      const Matrix x = random(dtype, shape_of(c), 1), w = random(dtype, {96}, 2), b = random(dtype, {96}, 3),
                   dy = random(dtype, shape_of(c), 4);
      Run r = run(backend.stream, false, dtype, c, x, w, b, dy, Accumulate::overwrite);
      const Matrix in_place = copy_of(x), gradient_in_place = copy_of(dy);
      ops::layer_norm_forward(backend.stream, in_place, {}, {}, in_place, w, b, kEpsilon);
      require_bitwise(in_place, r.y, backend.name);
      ops::layer_norm_backward_input(backend.stream, gradient_in_place, gradient_in_place, x, r.mean, r.rstd, w);
      require_bitwise(gradient_in_place, r.dx, backend.name);
      require_thread_independent(
          [&] {
            ops::layer_norm_forward(backend.stream, r.y, r.mean, r.rstd, x, w, b, kEpsilon);
            ops::layer_norm_backward_input(backend.stream, r.dx, dy, x, r.mean, r.rstd, w);
            ops::layer_norm_backward_weight(backend.stream, r.dw, r.db, dy, x, r.mean, r.rstd);
          },
          {r.y, r.mean, r.rstd, r.dx, r.dw, r.db}, backend.name);
    }
}

TEST_CASE("norms of extreme rows: constant, huge, tiny, NaN") {
  for (const Backend& backend : backends()) {
    const Matrix x = of(DType::f32, {4, 3}, {5, 5, 5, 1e15, -1e15, 1e15, 1e-30, 2e-30, 0, 1, NAN, 2});
    const Matrix w = of(DType::f32, {3}, {1, 1, 1}), y = empty(DType::f32, {4, 3});
    ops::layer_norm_forward(backend.stream, y, {}, {}, x, w, {}, kEpsilon);
    std::vector<double> v = values(y);
    REQUIRE(v[0] == 0.0);
    REQUIRE(v[3] == Approx(0.70710678).epsilon(1e-5));
    REQUIRE(v[4] == Approx(-1.41421356).epsilon(1e-5));
    REQUIRE(std::abs(v[6]) < 1e-26);
    for (int i = 9; i < 12; ++i) REQUIRE(std::isnan(v[static_cast<std::size_t>(i)]));
    ops::rms_norm_forward(backend.stream, y, {}, x, w, kEpsilon);
    v = values(y);
    REQUIRE(v[0] == Approx(1.0));
    REQUIRE(v[4] == Approx(-1.0));
    REQUIRE(std::isnan(v[9]));
  }
}

// torch.nn.functional.rms_norm and layer_norm in double, with upstream gradient r.
TEST_CASE("norms have PyTorch's values and gradients") {
  for (const Backend& backend : backends()) {
    const Matrix x = of(DType::f32, {2, 4}, {1, 2, 3, 4, -1, 0.5, 0, 2}), w = of(DType::f32, {4}, {1, 0.5, 2, -1}),
                 b = of(DType::f32, {4}, {0, 0.1, 0.2, 0.3}), r = of(DType::f32, {2, 4}, {1, -1, 0.5, 2, 0, 1, 1, -1});
    const Case c{2, 1, 4, 0};
    const Run rms = run(backend.stream, true, DType::f32, c, x, w, b, r, Accumulate::overwrite);
    const Run layer = run(backend.stream, false, DType::f32, c, x, w, b, r, Accumulate::overwrite);
    const std::vector<double> bound = {2e-6};
    require_close(
        rms.y,
        {0.3651481282, 0.3651481282, 2.1908887694, -1.4605925130, -0.8728682357, 0.2182170589, 0.0, -1.7457364715},
        bound, "rms y");
    require_close(rms.dx,
                  {0.4260060685, -0.0608581837, 0.5477219489, -0.4868644956, 0.3740835366, 0.2493923496, 1.7457364715,
                   0.1247011626},
                  bound, "rms dx");
    require_close(rms.dw, {0.3651481282, -0.2938621386, 0.5477221924, 1.1754485544}, bound, "rms dw");
    require_close(layer.y,
                  {-1.3416354200, -0.1236059033, 1.0944236133, -1.0416354200, -1.2701651729, 0.1577347806,
                   -0.4928173670, -1.2011042952},
                  bound, "layer y");
    require_close(layer.dx,
                  {0.0000080497, -0.6708150267, 1.3416327367, -0.6708257597, -0.5542560613, -0.3695023987, 1.1085071960,
                   -0.1847487360},
                  bound, "layer dx");
    require_close(layer.dw, {-1.3416354200, 0.5626813678, -0.1228027802, 1.1821665447}, bound, "layer dw");
    require_close(layer.db, {1, 0, 1.5, 1}, bound, "layer db");
  }
}
