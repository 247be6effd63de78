#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "tests/kernels/support.h"

#include <catch2/catch.hpp>

#include <cmath>

using namespace mmt;
using namespace mmt::test;

namespace {

struct Expected {
  std::vector<double> loss, dlogits;
};
Expected expected_of(const Tensor& logits, const std::vector<int>& labels, const std::vector<double>& weight) {
  const std::vector<double> x = values(logits);
  const auto n = static_cast<std::size_t>(logits.cols());
  Expected e;
  for (std::size_t r = 0; r < labels.size(); ++r) {
    double m = -INFINITY, sum = 0;
    for (std::size_t j = 0; j < n; ++j) m = std::max(m, x[r * n + j]);
    for (std::size_t j = 0; j < n; ++j) sum += std::exp(x[r * n + j] - m);
    const double lse = m + std::log(sum);
    const bool used = labels[r] >= 0;
    e.loss.push_back(used ? lse - x[r * n + static_cast<std::size_t>(labels[r])] : 0.0);
    for (std::size_t j = 0; j < n; ++j)
      e.dlogits.push_back(used ? weight[r] * (std::exp(x[r * n + j] - lse) - (static_cast<int>(j) == labels[r] ? 1 : 0))
                               : 0.0);
  }
  return e;
}

std::vector<int> some_labels(int rows, int vocabulary) {
  std::vector<int> labels;
  for (int r = 0; r < rows; ++r) labels.push_back(r % 5 == 3 ? -100 : (r * 31 + 7) % vocabulary);
  return labels;
}

std::vector<double> some_weights(int rows) {
  std::vector<double> w;
  for (int r = 0; r < rows; ++r) w.push_back((r % 7 + 1) / 64.0);
  return w;
}

}  // namespace

TEST_CASE("cross-entropy and its gradient equal the formula, in place and beside, over odd vocabularies") {
  for (const Backend& backend : backends())
    for (const DType dtype : kFastDTypes)
      for (const int vocabulary : {1, 2, 15, 64, 601, 5003}) {
        const int rows = 23;
        const std::vector<int> labels = some_labels(rows, vocabulary);
        const std::vector<double> weight = some_weights(rows);
        const Matrix x = random(dtype, {rows, vocabulary}, 1, 4, 5), ids = integers(labels),
                     w = of(DType::f32, {rows}, weight), loss = empty(DType::f32, {rows}),
                     d = empty(dtype, {rows, vocabulary});
        const Expected e = expected_of(x, labels, weight);
        const std::string what = backend.name + " " + std::string(name_of(dtype)) + " " + std::to_string(vocabulary);
        ops::cross_entropy(backend.stream, loss, {}, x, ids, {});
        // log-sum-exp of values below 20: absolute error a few eps of 20 (the exponent's argument); relative error of a
        // probability the same.
        const double loss_bound = std::ldexp(80.0, -24);
        require_close(loss, e.loss, {loss_bound}, what + " loss");
        ops::cross_entropy(backend.stream, loss, d, x, ids, w);
        require_close(loss, e.loss, {loss_bound}, what + " loss");
        std::vector<double> bound;
        for (std::size_t i = 0; i < e.dlogits.size(); ++i)
          bound.push_back((std::abs(e.dlogits[i]) + std::ldexp(weight[i / static_cast<std::size_t>(vocabulary)], -3)) *
                          std::ldexp(100.0, -24));
        require_close(d, e.dlogits, bound, what + " gradient");
        ops::cross_entropy(backend.stream, loss, x, x, ids, w);
        require_bitwise(x, d, what + " in place");
      }
}

TEST_CASE("cross-entropy of f32 logits with a bf16 gradient rounds once") {
  for (const Backend& backend : backends()) {
    const std::vector<int> labels = some_labels(9, 77);
    const std::vector<double> weight = some_weights(9);
    const Matrix x = random(DType::f32, {9, 77}, 1, 3), loss = empty(DType::f32, {9}),
                 full = empty(DType::f32, {9, 77}), half = empty(DType::bf16, {9, 77}),
                 rounded = empty(DType::bf16, {9, 77});
    ops::cross_entropy(backend.stream, loss, full, x, integers(labels), of(DType::f32, {9}, weight));
    ops::cross_entropy(backend.stream, loss, half, x, integers(labels), of(DType::f32, {9}, weight));
    ops::copy(backend.stream, rounded, full);
    // The reference holds doubles before its one rounding, so it may differ from two roundings in the last place.
    require_close(half, values(rounded), {1e-30}, backend.name);
  }
}

TEST_CASE("cross-entropy and the largest logit do not depend on the number of threads") {
  for (const Backend& backend : fast_backends())
    for (const DType dtype : kFastDTypes) {
      const int rows = 101, vocabulary = 333;
      const Matrix x = random(dtype, {rows, vocabulary}, 1, 3), ids = integers(some_labels(rows, vocabulary)),
                   w = of(DType::f32, {rows}, some_weights(rows)), loss = empty(DType::f32, {rows}),
                   d = empty(dtype, {rows, vocabulary}), stats = empty(DType::f32, {rows, 3}),
                   index = empty(DType::i32, {rows});
      require_thread_independent(
          [&] {
            ops::cross_entropy(backend.stream, loss, d, x, ids, w);
            ops::cross_entropy_stats(backend.stream, stats, x, ids, 0);
            ops::argmax_rows(backend.stream, index, x);
          },
          {loss, d, stats, index}, backend.name);
    }
}

TEST_CASE("shards of a vocabulary combine to the whole loss, prediction and gradient") {
  for (const Backend& backend : backends())
    for (const DType dtype : kFastDTypes) {
      constexpr int rows = 12, vocabulary = 150, parts = 3;
      const std::vector<int> cuts = {0, 67, 68, vocabulary};
      const std::vector<int> labels = some_labels(rows, vocabulary);
      const std::vector<double> weight = some_weights(rows);
      const Matrix x = random(dtype, {rows, vocabulary}, 1, 3), ids = integers(labels),
                   w = of(DType::f32, {rows}, weight);
      if (dtype == DType::f32)  // a shard without a possible class adds nothing
        for (int r = 0; r < rows; ++r)
          if (labels[static_cast<std::size_t>(r)] != 67) x->row<float>(r)[67] = -INFINITY;
      const Expected e = expected_of(x, labels, weight);
      const Matrix stats = empty(DType::f32, {parts * rows, 3}), lse = empty(DType::f32, {rows}),
                   loss = empty(DType::f32, {rows}), largest = empty(DType::i32, {parts * rows}),
                   predicted = empty(DType::i32, {rows}), whole = empty(DType::i32, {rows});
      const auto shard = [&](int p) {
        return x->col_range(cuts[static_cast<std::size_t>(p)],
                            cuts[static_cast<std::size_t>(p) + 1] - cuts[static_cast<std::size_t>(p)]);
      };
      ops::argmax_rows(backend.stream, whole, x);
      for (int p = 0; p < parts; ++p) {
        ops::cross_entropy_stats(backend.stream, stats->row_range(p * rows, rows), shard(p), ids,
                                 cuts[static_cast<std::size_t>(p)]);
        ops::argmax_rows(backend.stream, largest->row_range(p * rows, rows), shard(p),
                         cuts[static_cast<std::size_t>(p)]);
      }
      ops::cross_entropy_combine(backend.stream, loss, lse, predicted, stats, largest, ids);
      require_close(loss, e.loss, {1e-5}, backend.name);
      require_bitwise(predicted, whole, backend.name);
      for (int p = 0; p < parts; ++p)
        ops::cross_entropy_gradient(backend.stream, shard(p), shard(p), ids, w, lse, cuts[static_cast<std::size_t>(p)]);
      require_close(x, e.dlogits, {1e-6}, backend.name);
    }
}

TEST_CASE("cross-entropy of extreme logits") {
  for (const Backend& backend : backends()) {
    const Matrix x = of(DType::f32, {5, 3}, {1e4, 0, -1e4, -INFINITY, 1, 2, 0, 0, 88, -1e38, 1e38, 0, NAN, 1, 2});
    const Matrix loss = empty(DType::f32, {5}), d = empty(DType::f32, {5, 3}), w = of(DType::f32, {5}, {1, 1, 1, 1, 1});
    ops::cross_entropy(backend.stream, loss, d, x, integers({0, 1, 2, 1, 1}), w);
    const std::vector<double> l = values(loss), g = values(d);
    REQUIRE(l[0] == 0.0);
    REQUIRE((g[0] == 0.0 && g[1] == 0.0 && g[2] == 0.0));
    REQUIRE(l[1] == Approx(1.3132616875).epsilon(1e-6));  // log(1 + e)
    REQUIRE(g[3] == 0.0);
    REQUIRE(g[4] == Approx(-0.7310585786).epsilon(1e-5));
    REQUIRE(std::abs(l[2]) < 1e-30);
    REQUIRE(l[3] == 0.0);
    REQUIRE(std::isnan(l[4]));
    REQUIRE_THROWS_WITH(ops::cross_entropy(backend.stream, loss, d, x, integers({0, 1, 3, 1, 1}), w),
                        Catch::Matchers::Contains("element 2 is 3"));
  }
}

TEST_CASE("cross-entropy of rows of infinities, and a label that cannot be") {
  constexpr int kRows = 4, kClasses = 67;
  for (const Backend& backend : backends())
    for (const DType dtype : kFastDTypes) {
      std::vector<double> v(kRows * kClasses, -INFINITY);  // row 0: nothing is possible
      for (int j = 0; j < kClasses; ++j) v[static_cast<std::size_t>(kClasses + j)] = j == 5 ? INFINITY : 1.0;
      for (int j = 0; j < kClasses; ++j) v[static_cast<std::size_t>(2 * kClasses + j)] = j == 66 ? -INFINITY : 2.0;
      v[3 * kClasses + 66] = 3.0;  // row 3: one class alone
      const Matrix x = of(dtype, {kRows, kClasses}, v), loss = empty(DType::f32, {kRows}),
                   d = empty(dtype, {kRows, kClasses}), half = empty(DType::bf16, {kRows, kClasses}),
                   w = of(DType::f32, {kRows}, {1, 1, 0.5, 2});
      for (const Tensor& gradient : {d.view, half.view}) {
        ops::cross_entropy(backend.stream, loss, gradient, x, integers({3, 5, 66, 66}), w);
        const std::vector<double> l = values(loss), g = values(gradient);
        INFO(backend.name << " " << name_of(dtype) << " " << name_of(gradient.dtype));
        REQUIRE(std::isnan(l[0]));
        REQUIRE(std::isnan(g[0]));
        REQUIRE(std::isnan(l[1]));
        REQUIRE(std::isnan(g[kClasses]));
        REQUIRE(l[2] == INFINITY);
        for (std::size_t j = 0; j < 66; ++j) REQUIRE(g[2 * kClasses + j] == Approx(0.5 / 66).epsilon(0.005));
        REQUIRE(g[2 * kClasses + 66] == -0.5);
        REQUIRE(l[3] == 0.0);
        for (std::size_t j = 0; j < kClasses; ++j) REQUIRE(g[3 * kClasses + j] == 0.0);
      }
    }
}

// torch.nn.functional.cross_entropy(reduction="none") in double and the gradient of the weighted sum.
TEST_CASE("cross-entropy has PyTorch's values") {
  for (const Backend& backend : backends()) {
    const Matrix x = of(DType::f32, {3, 5}, {1, 2, 3, -1, 0.5, 0, 0, 0, 0, 0, 10, -10, 3, 2, 1});
    const Matrix loss = empty(DType::f32, {3}), w = of(DType::f32, {3}, {0.5, 1, 2});
    ops::cross_entropy(backend.stream, loss, x, x, integers({2, 4, 1}), w);
    require_close(loss, {0.4722606814, 1.6094379124, 20.0013698178}, {1e-6}, backend.name);
    require_close(x,
                  {0.0421969278, 0.1147031420, -0.1882045334, 0.0057107332, 0.0255937304, 0.2, 0.2, 0.2, 0.2, -0.8,
                   1.9972622399, -1.9999999959, 0.0018212674, 0.0006700068, 0.0002464817},
                  {1e-6}, backend.name);
  }
}

TEST_CASE("the largest logit, ties to the lower class") {
  for (const Backend& backend : backends())
    for (const DType dtype : kFastDTypes) {
      const Matrix x = random(dtype, {8, 133}, 1, 1, 3), index = empty(DType::i32, {8});
      std::vector<double> v = values(x);
      const std::size_t places[] = {0, 132, 17, 64, 5, 127, 128, 0};
      for (std::size_t r = 0; r < 8; ++r) v[r * 133 + places[r]] = 9;
      v[2 * 133 + 90] = 9;   // a tie behind the first
      v[3 * 133 + 2] = NAN;  // passed over
      for (std::size_t j = 0; j < 133; ++j) v[7 * 133 + j] = j < 3 ? NAN : -INFINITY;
      assign(x, v);
      ops::argmax_rows(backend.stream, index, x);
      REQUIRE(values(index) == std::vector<double>{0, 132, 17, 64, 5, 127, 128, 3});
      assign(x, std::vector<double>(8 * 133, NAN));
      ops::argmax_rows(backend.stream, index, x);
      REQUIRE(values(index) == std::vector<double>(8, 0.0));
    }
}

TEST_CASE("the fused head equals the unfused one for every chunk size") {
  for (const Backend& backend : backends())
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      const DType master = master_of(dtype);
      const int rows = 45, vocabulary = 70, in = 24;
      const std::vector<int> labels = some_labels(rows, vocabulary);
      const std::vector<double> weight = some_weights(rows);
      const Matrix x = random(dtype, {rows, in}, 1, 1, 3), w = random(dtype, {vocabulary, in}, 2);
      const std::vector<double> vx = values(x), vw = values(w);
      // Exact: from the stored x and w in double.
      std::vector<double> logits;
      for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t v = 0; v < vocabulary; ++v) {
          double sum = 0;
          for (std::size_t k = 0; k < in; ++k) sum += vx[r * in + k] * vw[v * in + k];
          logits.push_back(sum);
        }
      const Expected e = expected_of(of(DType::f64, {rows, vocabulary}, logits), labels, weight);
      std::vector<double> dx(rows * in), dw(vocabulary * in), bound_x(dx.size(), 1e-7), bound_w(dw.size(), 1e-7);
      // dlogits carry their rounding in bf16, and everywhere the errors of the logits (24 products, lse) in f32.
      const double relative = dtype == DType::bf16 ? std::ldexp(1.01, -8) : 1e-5;
      for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t v = 0; v < vocabulary; ++v)
          for (std::size_t k = 0; k < in; ++k) {
            dx[r * in + k] += e.dlogits[r * vocabulary + v] * vw[v * in + k];
            dw[v * in + k] += e.dlogits[r * vocabulary + v] * vx[r * in + k];
            bound_x[r * in + k] += relative * std::abs(e.dlogits[r * vocabulary + v] * vw[v * in + k]);
            bound_w[v * in + k] += relative * std::abs(e.dlogits[r * vocabulary + v] * vx[r * in + k]);
          }
      for (const std::int64_t chunk : {7, 45, 512}) {
        const std::string what =
            backend.name + " " + std::string(name_of(dtype)) + " chunks of " + std::to_string(chunk);
        Arena scratch("scratch", ops::linear_cross_entropy_scratch(dtype, rows, vocabulary, chunk));
        const Matrix loss = empty(master, {rows}), predicted = empty(DType::i32, {rows}), gx = empty(dtype, {rows, in}),
                     gw = random(master, {vocabulary, in}, 5);
        const Matrix ids = integers(labels), seeds = of(master, {rows}, weight);
        const LinearCrossEntropy head{x, w, ids, seeds, chunk};
        const std::vector<double> old = values(gw);
        ops::linear_cross_entropy(backend.stream, scratch, loss, predicted, gx, gw, head);
        require_close(loss, e.loss, {1e-5}, what + " loss");
        require_close(gx, dx, bound_x, what + " dx");
        require_close(gw, dw, bound_w, what + " dw");
        const std::vector<double> chosen = values(predicted);
        for (std::size_t r = 0; r < rows; ++r) {
          const auto best = static_cast<std::size_t>(chosen[r]);
          for (std::size_t v = 0; v < vocabulary; ++v)
            if (logits[r * vocabulary + best] < logits[r * vocabulary + v] - 1e-5) FAIL(what << " row " << r);
        }
        assign(gw, old);
        ops::linear_cross_entropy(backend.stream, scratch, loss, {}, {}, gw, head, Accumulate::add);
        std::vector<double> added = dw;
        std::vector<double> bound_added = bound_w;
        for (std::size_t i = 0; i < added.size(); ++i) {
          added[i] += old[i];
          bound_added[i] += std::ldexp(8 * (std::abs(old[i]) + 1), -24);  // one rounding a chunk, at most 7 chunks
        }
        require_close(gw, added, bound_added, what + " dw added");
        REQUIRE_FALSE(is_close(gw, dw, bound_w));
        ops::linear_cross_entropy(backend.stream, scratch, loss, {}, {}, {}, head);
        require_close(loss, e.loss, {1e-5}, what + " loss alone");
        REQUIRE(scratch.mark() == 0);
      }
      // No rows: the weight gradient is zero.
      Arena none("scratch", 64);
      const Matrix loss = empty(master, {0}), gx = empty(dtype, {0, in}), gw = random(master, {vocabulary, in}, 5),
                   xs = empty(dtype, {0, in}), ids = empty(DType::i32, {0}), seeds = empty(master, {0});
      ops::linear_cross_entropy(backend.stream, none, loss, {}, gx, gw, {xs, w, ids, seeds, 512});
      REQUIRE(values(gw) == std::vector<double>(vocabulary * in, 0.0));
    }
}

TEST_CASE("the fused head's gradients agree with differences") {
  const Stream stream = reference_stream();
  const int rows = 5, vocabulary = 6, in = 3;
  const Matrix x = random(DType::f64, {rows, in}, 1), w = random(DType::f64, {vocabulary, in}, 2),
               ids = integers({1, -100, 5, 0, 3}), seeds = of(DType::f64, {rows}, {0.5, 1, 0.25, 2, 1}),
               loss = empty(DType::f64, {rows}), dx = empty(DType::f64, {rows, in}),
               dw = empty(DType::f64, {vocabulary, in});
  Arena scratch("scratch", ops::linear_cross_entropy_scratch(DType::f64, rows, vocabulary, 2));
  const LinearCrossEntropy head{x, w, ids, seeds, 2};
  ops::linear_cross_entropy(stream, scratch, loss, {}, dx, dw, head);
  const auto total = [&] {
    ops::linear_cross_entropy(stream, scratch, loss, {}, {}, {}, head);
    return dot(seeds, loss);
  };
  require_gradient(total, x, dx, "dx");
  require_gradient(total, w, dw, "dw");
}
