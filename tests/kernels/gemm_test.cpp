#include "kernels/cpu/onednn.h"
#include "kernels/linear.h"
#include "tests/kernels/support.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <cstring>

using namespace mmt;
using namespace mmt::test;

namespace {

struct Sizes {
  std::int64_t m, n, k;
};
constexpr Sizes kSizes[] = {{1, 1, 1}, {3, 5, 7}, {17, 33, 65}, {300, 70, 11}, {5, 1100, 3}};

// Row-major product in double and the sum of absolute products, from the stored values.
struct Product {
  std::vector<double> value, magnitude;
};
Product product(Transpose ta, Transpose tb, const Tensor& a, const Tensor& b) {
  const bool t = ta == Transpose::yes, u = tb == Transpose::yes;
  const std::int64_t m = a.dims[t ? 1 : 0], k = a.dims[t ? 0 : 1], n = b.dims[u ? 0 : 1];
  const std::vector<double> x = values(a), y = values(b);
  Product p;
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0, magnitude = 0;
      for (std::int64_t l = 0; l < k; ++l) {
        const double v = x[static_cast<std::size_t>(t ? l * m + i : i * k + l)] *
                         y[static_cast<std::size_t>(u ? j * k + l : l * n + j)];
        sum += v;
        magnitude += std::abs(v);
      }
      p.value.push_back(sum);
      p.magnitude.push_back(magnitude);
    }
  return p;
}

// Any order of k + 2 f32 additions: (k + 2) eps times the sum of absolute terms, which also bounds old value and bias
// when they are part of it.
std::vector<double> sum_bound(const std::vector<double>& magnitude, std::int64_t terms) {
  std::vector<double> bound;
  for (const double m : magnitude) bound.push_back((static_cast<double>(terms) + 3) * std::ldexp(m, -24) + 1e-30);
  return bound;
}

}  // namespace

TEST_CASE("products of all transpositions and row strides equal sums in double") {
  for (const Backend& backend : backends())
    for (const DType dtype : kFastDTypes)
      for (const Sizes s : kSizes)
        for (const Transpose ta : {Transpose::no, Transpose::yes})
          for (const Transpose tb : {Transpose::no, Transpose::yes})
            for (const std::int64_t pad : {0, 5}) {
              const bool t = ta == Transpose::yes, u = tb == Transpose::yes;
              const Matrix a = random(dtype, {t ? s.k : s.m, t ? s.m : s.k}, 1, 1, pad);
              const Matrix b = random(dtype, {u ? s.n : s.k, u ? s.k : s.n}, 2, 1, pad);
              const Matrix bias = random(dtype, {s.n}, 3), before = random(dtype, {s.m, s.n}, 4);
              const Product p = product(ta, tb, a, b);
              const std::string what = backend.name + " gemm " + std::string(name_of(dtype));

              const Matrix c = empty(dtype, {s.m, s.n}, pad);
              ops::gemm(backend.stream, ta, tb, c, a, b);
              require_close(c, p.value, sum_bound(p.magnitude, s.k), what);

              std::vector<double> expected = p.value, magnitude = p.magnitude;
              const std::vector<double> added = values(bias);
              for (std::size_t i = 0; i < expected.size(); ++i) {
                const double v = added[i % static_cast<std::size_t>(s.n)];
                expected[i] += v;
                magnitude[i] += std::abs(v);
              }
              ops::gemm(backend.stream, ta, tb, c, a, b, {.accumulate = Accumulate::overwrite, .bias = bias});
              require_close(c, expected, sum_bound(magnitude, s.k), what + " with bias");

              const std::vector<double> old = values(before);
              assign(c, old);
              for (std::size_t i = 0; i < expected.size(); ++i) {
                expected[i] = p.value[i] + old[i];
                magnitude[i] = p.magnitude[i] + std::abs(old[i]);
              }
              ops::gemm(backend.stream, ta, tb, c, a, b, {.accumulate = Accumulate::add, .bias = {}});
              require_close(c, expected, sum_bound(magnitude, s.k), what + " accumulated");
            }
}

namespace {

/// Blocked kernels of the library exist from AVX-512 on, for bf16 where the processor multiplies it.
bool has_blocked_kernels(DType dtype) {
  return cpu_isa().level == Isa::avx512 && (dtype == DType::f32 || cpu_isa().avx512bf16);
}

Product with_bias(Product p, const Tensor& bias) {
  const std::vector<double> b = values(bias);
  for (std::size_t i = 0; i < p.value.size(); ++i) {
    p.value[i] += b[i % b.size()];
    p.magnitude[i] += std::abs(b[i % b.size()]);
  }
  return p;
}

Product with_old(Product p, const std::vector<double>& old) {
  for (std::size_t i = 0; i < p.value.size(); ++i) {
    p.value[i] += old[i];
    p.magnitude[i] += std::abs(old[i]);
  }
  return p;
}

}  // namespace

TEST_CASE("products large enough for a primitive equal sums in double") {
  // Odd in every dimension; 101 million multiplications.
  const Sizes s{37, 1811, 1511};
  for (const DType dtype : kFastDTypes) {
    const Matrix bias = random(dtype, {s.n}, 3), before = random(dtype, {s.m, s.n}, 4);
    const Matrix a = random(dtype, {s.m, s.k}, 1), nt = random(dtype, {s.n, s.k}, 2), nn = empty(dtype, {s.k, s.n});
    std::vector<double> turned(static_cast<std::size_t>(s.n * s.k));
    const std::vector<double> stored = values(nt);
    for (std::int64_t i = 0; i < s.n; ++i)
      for (std::int64_t j = 0; j < s.k; ++j)
        turned[static_cast<std::size_t>(j * s.n + i)] = stored[static_cast<std::size_t>(i * s.k + j)];
    assign(nn, turned);
    const Product p = product(Transpose::no, Transpose::yes, a, nt), biased = with_bias(p, bias),
                  added = with_old(p, values(before));
    const std::vector<double> limit = sum_bound(p.magnitude, s.k), biased_limit = sum_bound(biased.magnitude, s.k),
                              added_limit = sum_bound(added.magnitude, s.k);
    for (const Transpose tb : {Transpose::no, Transpose::yes}) {
      const bool u = tb == Transpose::yes;
      const std::int64_t kept = cpu::onednn::kept_primitives();
      for (const Backend& backend : fast_backends())
        for (const std::int64_t pad : {0, 7}) {
          const std::string what = backend.name + " " + std::string(name_of(dtype)) + (u ? " NT" : " NN");
          const Matrix x = empty(dtype, {s.m, s.k}, pad), w = empty(dtype, {u ? s.n : s.k, u ? s.k : s.n}, pad);
          assign(x, values(a));
          assign(w, u ? stored : turned);
          const Matrix c = empty(dtype, {s.m, s.n}, pad);
          ops::gemm(backend.stream, Transpose::no, tb, c, x, w);
          require_close(c, p.value, limit, what);
          ops::gemm(backend.stream, Transpose::no, tb, c, x, w, {.accumulate = Accumulate::overwrite, .bias = bias});
          require_close(c, biased.value, biased_limit, what + " with bias");
          assign(c, values(before));
          ops::gemm(backend.stream, Transpose::no, tb, c, x, w, {.accumulate = Accumulate::add});
          require_close(c, added.value, added_limit, what + " accumulated");
          const Matrix wide = empty(DType::f32, {s.m, s.n}, pad);
          ops::gemm(backend.stream, Transpose::no, tb, wide, x, w, {.bias = bias});
          require_close(wide, biased.value, biased_limit, what + " into f32");
        }
      // Else the test looked at another way.
      if (has_blocked_kernels(dtype) && u) REQUIRE(cpu::onednn::kept_primitives() >= kept + 3);
    }
  }
}

TEST_CASE("products with a packed matrix equal sums in double") {
  for (const DType dtype : kFastDTypes)
    for (const Sizes s :
         {Sizes{1, 1, 1}, Sizes{17, 30784, 192}, Sizes{171, 3072, 192}, Sizes{300, 199, 131}, Sizes{300, 192, 128}})
      for (const Transpose tb : {Transpose::no, Transpose::yes}) {
        const bool u = tb == Transpose::yes, large = s.m * s.n * s.k >= 100'000'000;
        // Rows that do not touch are not the primitive's: the packed form is then left unread.
        const std::int64_t pad = s.m == 300 ? 5 : 0;
        const Matrix a = random(dtype, {s.m, s.k}, 1, 1, pad),
                     b = random(dtype, {u ? s.n : s.k, u ? s.k : s.n}, 2, 1, 3), bias = random(dtype, {s.n}, 3);
        const Product p = with_bias(product(Transpose::no, tb, a, b), bias);
        const std::vector<double> limit = sum_bound(p.magnitude, s.k);
        for (const Backend& backend : backends()) {
          if (backend.name == "reference" && large) continue;
          const bool own = backend.stream.kernels == cpu_stream().kernels;
          const std::int64_t bytes = ops::packed_bytes(backend.stream, dtype, tb, s.k, s.n);
          if (own && has_blocked_kernels(dtype) && s.n % 64 == 0 && s.k % 64 == 0)
            REQUIRE(bytes == (dtype == DType::f32 ? 0 : s.k * s.n * size_of(dtype)));
          if (bytes == 0) {
            const Matrix none = empty(DType::u8, {1});
            REQUIRE_THROWS_WITH(ops::pack(backend.stream, none, tb, b), Catch::Matchers::Contains("no layout"));
            continue;
          }
          const Matrix packed = empty(DType::u8, {bytes});
          ops::pack(backend.stream, packed, tb, b);
          const std::string what = backend.name + " packed " + std::string(name_of(dtype));
          const Matrix c = empty(dtype, {s.m, s.n}, pad);
          ops::gemm(backend.stream, Transpose::no, tb, c, a, b, {.bias = bias, .packed = packed});
          require_close(c, p.value, limit, what);
          if (!large) continue;
          // The packed form is what is read: with other contents the result is another.
          std::memset(packed->data, 0, static_cast<std::size_t>(bytes));
          ops::gemm(backend.stream, Transpose::no, tb, c, a, b, {.bias = bias, .packed = packed});
          if (own) REQUIRE_FALSE(is_close(c, p.value, limit));
          const Matrix other = empty(DType::u8, {bytes + 1});
          REQUIRE_THROWS_WITH(ops::gemm(backend.stream, Transpose::no, tb, c, a, b, {.packed = other}),
                              Catch::Matchers::Contains("gemm: packed b"));
        }
      }
}

TEST_CASE("a thread keeps a bounded number of primitives and forgotten ones are made again") {
  if (!has_blocked_kernels(DType::f32)) return;
  const std::int64_t k = 64, n = 128, most = cpu::onednn::kMaxPrimitives + 20;
  const Matrix a = random(DType::f32, {most, k}, 1), b = random(DType::f32, {n, k}, 2);
  const auto multiply = [&](const Tensor& c) {
    return cpu::onednn::matmul({.m = c.rows(),
                                .n = n,
                                .k = k,
                                .in = DType::f32,
                                .out = DType::f32,
                                .a = a->data,
                                .lda = k,
                                .b = b->data,
                                .ldb = k,
                                .b_transposed = true,
                                .packed = false,
                                .bias = nullptr,
                                .c = c.data,
                                .ldc = n,
                                .add = false});
  };
  const Matrix first = empty(DType::f32, {1, n}), again = empty(DType::f32, {1, n}), c = empty(DType::f32, {most, n});
  REQUIRE(multiply(first));
  for (std::int64_t rows = 1; rows <= most; ++rows) {
    REQUIRE(multiply(c->row_range(0, rows)));
    REQUIRE(cpu::onednn::kept_primitives() <= cpu::onednn::kMaxPrimitives);
  }
  REQUIRE(cpu::onednn::kept_primitives() == cpu::onednn::kMaxPrimitives);
  REQUIRE(multiply(again));
  require_bitwise(again, first, "made again");
}

TEST_CASE("bf16 products into f32 are not rounded to bf16 and accumulate in f32") {
  for (const Backend& backend : backends()) {
    const Matrix dy = random(DType::bf16, {90, 13}, 1), x = random(DType::bf16, {90, 21}, 2),
                 b = random(DType::bf16, {21}, 5);
    const Product p = product(Transpose::yes, Transpose::no, dy, x);
    const Matrix dw = empty(DType::f32, {13, 21}, 3);
    ops::linear_backward_weight(backend.stream, dw, dy, x);
    require_close(dw, p.value, sum_bound(p.magnitude, 90), backend.name);
    ops::linear_backward_weight(backend.stream, dw, dy, x, Accumulate::add);
    std::vector<double> twice = p.value;
    for (double& v : twice) v *= 2;
    require_close(dw, twice, sum_bound(p.magnitude, 2 * 90), backend.name);
    // The mutation: rounding the result to bf16 must not pass.
    const Matrix rounded = random(DType::bf16, {13, 21}, 3);
    assign(rounded, p.value);
    assign(dw, values(rounded));
    REQUIRE_FALSE(is_close(dw, p.value, sum_bound(p.magnitude, 90)));

    const Matrix y = empty(DType::f32, {13, 21});
    const Matrix a = random(DType::bf16, {13, 8}, 6), w = random(DType::bf16, {21, 8}, 7);
    ops::linear_forward(backend.stream, y, a, w, b);
    Product q = product(Transpose::no, Transpose::yes, a, w);
    for (std::size_t i = 0; i < q.value.size(); ++i) {
      q.value[i] += values(b)[i % 21];
      q.magnitude[i] += std::abs(values(b)[i % 21]);
    }
    require_close(y, q.value, sum_bound(q.magnitude, 8), backend.name);
  }
}

TEST_CASE("products without rows or without terms write zeros or leave the old values") {
  for (const Backend& backend : backends()) {
    const Matrix dw = random(DType::f32, {4, 6}, 1);
    const std::vector<double> old = values(dw);
    const Matrix dy = empty(DType::f32, {0, 4}), x = empty(DType::f32, {0, 6});
    ops::linear_backward_weight(backend.stream, dw, dy, x, Accumulate::add);
    REQUIRE(values(dw) == old);
    ops::linear_backward_weight(backend.stream, dw, dy, x);
    REQUIRE(values(dw) == std::vector<double>(24, 0.0));
    const Matrix db = random(DType::f32, {4}, 2);
    ops::linear_backward_bias(backend.stream, db, dy);
    REQUIRE(values(db) == std::vector<double>(4, 0.0));
    const Matrix y = empty(DType::f32, {0, 3}), w = random(DType::f32, {3, 6}, 3);
    ops::linear_forward(backend.stream, y, x, w);
  }
}

TEST_CASE("NaN and infinity reach the results they belong to and no others") {
  for (const Backend& backend : backends())
    for (const DType dtype : kFastDTypes) {
      const Matrix a = random(dtype, {20, 40}, 1), b = random(dtype, {30, 40}, 2), c = empty(dtype, {20, 30});
      std::vector<double> v = values(a);
      v[3 * 40 + 5] = NAN;
      v[7 * 40 + 5] = INFINITY;
      assign(a, v);
      ops::linear_forward(backend.stream, c, a, b);
      for (std::int64_t i = 0; i < 20; ++i)
        for (std::int64_t j = 0; j < 30; ++j) {
          const double y = values(c)[static_cast<std::size_t>(i * 30 + j)];
          REQUIRE(std::isnan(y) == (i == 3));
          REQUIRE(std::isinf(y) == (i == 7));
        }
    }
}

TEST_CASE("the linear layer's gradients agree with differences") {
  const Stream stream = reference_stream();
  const Matrix x = random(DType::f64, {5, 4}, 1), w = random(DType::f64, {3, 4}, 2), b = random(DType::f64, {3}, 3);
  const Matrix r = random(DType::f64, {5, 3}, 4), y = empty(DType::f64, {5, 3});
  const auto loss = [&] {
    ops::linear_forward(stream, y, x, w, b);
    return dot(r, y);
  };
  const Matrix dx = empty(DType::f64, {5, 4}), dw = empty(DType::f64, {3, 4}), db = empty(DType::f64, {3});
  ops::linear_backward_input(stream, dx, r, w);
  ops::linear_backward_weight(stream, dw, r, x);
  ops::linear_backward_bias(stream, db, r);
  require_gradient(loss, x, dx, "dx");
  require_gradient(loss, w, dw, "dw");
  require_gradient(loss, b, db, "db");
}

TEST_CASE("a fused linear and activation has the bits of the two ops") {
  for (const Backend& backend : backends())
    for (const DType dtype : kFastDTypes) {
      const Matrix x = random(dtype, {70, 33}, 1), w = random(dtype, {50, 33}, 2), b = random(dtype, {50}, 3);
      const Matrix pre = empty(dtype, {70, 50}), y = empty(dtype, {70, 50}), pre2 = empty(dtype, {70, 50}),
                   y2 = empty(dtype, {70, 50}), y3 = empty(dtype, {70, 50});
      ops::linear_forward(backend.stream, pre, x, w, b);
      ops::activation_forward(backend.stream, y, pre, Activation::gelu_tanh);
      ops::linear_activation_forward(backend.stream, y2, pre2, x, w, b, Activation::gelu_tanh);
      ops::linear_activation_forward(backend.stream, y3, {}, x, w, b, Activation::gelu_tanh);
      require_bitwise(pre, pre2, backend.name);
      require_bitwise(y, y2, backend.name);
      require_bitwise(y, y3, backend.name);
    }
}

TEST_CASE("bias gradients are sums over the rows, the same for any number of threads") {
  for (const Backend& backend : fast_backends())
    for (const DType dtype : kFastDTypes)
      for (const std::int64_t cols : {1, 7, 64, 133, 300}) {
        const std::int64_t rows = 333;
        const Matrix dy = random(dtype, {rows, cols}, 1, 1, 3), db = random(DType::f32, {cols}, 2);
        const std::vector<double> old = values(db), g = values(dy);
        std::vector<double> expected = old, magnitude(static_cast<std::size_t>(cols));
        for (std::size_t i = 0; i < g.size(); ++i) {
          expected[i % magnitude.size()] += g[i];
          magnitude[i % magnitude.size()] += std::abs(g[i]);
        }
        for (std::size_t j = 0; j < magnitude.size(); ++j) magnitude[j] += std::abs(old[j]);
        ops::linear_backward_bias(backend.stream, db, dy, Accumulate::add);
        // Runs of 8, then the runs one by one.
        require_close(db, expected, sum_bound(magnitude, 8 + rows / 8 + 1), backend.name);
        require_thread_independent([&] { ops::linear_backward_bias(backend.stream, db, dy); }, {db}, backend.name);
      }
}

TEST_CASE("wrong shapes and dtypes of a product are named") {
  const Stream stream = cpu_stream();
  const Matrix a = random(DType::f32, {4, 5}, 1), b = random(DType::f32, {6, 4}, 2), c = empty(DType::f32, {4, 6});
  REQUIRE_THROWS_WITH(ops::linear_forward(stream, c, a, b),
                      Catch::Matchers::Contains("f32[4,6] = f32[4,5] * f32[6,4]^T"));
  const Matrix h = random(DType::bf16, {6, 5}, 2);
  REQUIRE_THROWS_AS(ops::linear_forward(stream, c, a, h), std::logic_error);
  const Matrix w = random(DType::f32, {6, 5}, 2), dw = empty(DType::bf16, {6, 5});
  REQUIRE_THROWS_AS(ops::linear_backward_weight(stream, dw, c, a), std::logic_error);
}
