// AdamW, reductions and sampling.
#include "kernels/adamw.h"
#include "kernels/reduce.h"
#include "kernels/sample.h"
#include "tests/kernels/support.h"

#include <catch2/catch.hpp>

#include <cmath>

using namespace mmt;
using namespace mmt::test;

namespace {

struct Parameters {
  Matrix master, m, v, grad, compute;
  AdamwSpan span() const { return {master, m, v, grad, compute.view}; }
  AdamwSpan part(std::int64_t first, std::int64_t count) const {
    const auto cut = [&](const Tensor& t) { return t.defined() ? t.row_range(first, count) : t; };
    return {cut(master), cut(m), cut(v), cut(grad), cut(compute)};
  }
};

Parameters parameters(DType master, DType compute, std::int64_t n) {
  Parameters p{random(master, {n}, 1), random(master, {n}, 2, 0.1), random(master, {n}, 3, 0.1), random(master, {n}, 4),
               empty(compute, {n})};
  std::vector<double> v = values(p.v);
  for (double& x : v) x = x * x;
  assign(p.v, v);
  return p;
}

AdamwStep some_step() {
  return {.lr = 0.01,
          .beta1 = 0.9,
          .beta2 = 0.95,
          .epsilon = 1e-8,
          .weight_decay = 0.1,
          .updates = 3,
          .grad_scale = 0.5,
          .zero_grad = false};
}

}  // namespace

// torch.optim.AdamW(lr=0.1, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1) in double, three steps.
TEST_CASE("adamw has PyTorch's values") {
  const std::vector<double> gradients[] = {{0.1, -0.2, 3, 0}, {0.3, 0.1, -1, 1e-3}, {0, 0, 0.5, 2}};
  const std::vector<double> golden[] = {{0.8900000100, -1.8800000050, 0.3950000003, 0.0},
                                        {0.7902307999, -1.8343630619, 0.3506193303, -0.0734949739},
                                        {0.7111781019, -1.7950061643, 0.3056775615, -0.1351103704}};
  for (const Backend& backend : backends())
    for (const DType dtype : {DType::f32, DType::f64}) {
      const Matrix w = of(dtype, {4}, {1, -2, 0.5, 0}), m = of(dtype, {4}, {0, 0, 0, 0}),
                   v = of(dtype, {4}, {0, 0, 0, 0}), g = empty(dtype, {4});
      for (int t = 0; t < 3; ++t) {
        assign(g, gradients[t]);
        const AdamwSpan span{w, m, v, g, {}};
        ops::adamw_step(
            backend.stream, {&span, 1},
            {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .updates = t + 1});
        require_close(w, golden[t], {5e-7}, backend.name + " step " + std::to_string(t + 1));
      }
    }
}

TEST_CASE("adamw of every backend equals f64 and writes the rounded copy") {
  for (const Backend& backend : backends())
    for (const DType compute : kFastDTypes)
      for (const std::int64_t n : {1, 15, 64, 333}) {
        const Parameters p = parameters(DType::f32, compute, n), exact = parameters(DType::f64, DType::f64, n);
        assign(exact.master, values(p.master));
        assign(exact.m, values(p.m));
        assign(exact.v, values(p.v));
        assign(exact.grad, values(p.grad));
        AdamwStep step = some_step();
        step.zero_grad = true;
        const AdamwSpan span = p.span(), exact_span = exact.span();
        ops::adamw_step(backend.stream, {&span, 1}, step);
        ops::adamw_step(reference_stream(), {&exact_span, 1}, step);
        // A handful of roundings of terms of order 1.
        require_close(p.master, values(exact.master), {std::ldexp(8.0, -24)}, backend.name);
        require_close(p.m, values(exact.m), {std::ldexp(4.0, -24)}, backend.name);
        require_close(p.v, values(exact.v), {std::ldexp(4.0, -24)}, backend.name);
        REQUIRE(values(p.grad) == std::vector<double>(static_cast<std::size_t>(n), 0.0));
        const Matrix rounded = of(compute, {n}, values(p.master));
        require_bitwise(p.compute, rounded, backend.name + " copy");
      }
}

TEST_CASE("adamw does not depend on how parameters are cut into spans or threads") {
  for (const Backend& backend : backends()) {
    const std::int64_t n = 50001;
    const Parameters whole = parameters(DType::f32, DType::bf16, n), cut = parameters(DType::f32, DType::bf16, n);
    const AdamwSpan one = whole.span();
    ops::adamw_step(backend.stream, {&one, 1}, some_step());
    const AdamwSpan parts[] = {cut.part(0, 17), cut.part(17, 0), cut.part(17, 30000), cut.part(30017, n - 30017)};
    ops::adamw_step(backend.stream, parts, some_step());
    require_bitwise(whole.master, cut.master, backend.name);
    require_bitwise(whole.compute, cut.compute, backend.name);
    require_thread_independent(
        [&] {
          const Parameters fresh = parameters(DType::f32, DType::bf16, n);
          assign(cut.master, values(fresh.master));
          assign(cut.m, values(fresh.m));
          assign(cut.v, values(fresh.v));
          ops::adamw_step(backend.stream, parts, some_step());
        },
        {cut.master, cut.m, cut.v, cut.compute}, backend.name);
  }
}

TEST_CASE("a weight decay near the round-off of 1 has the right size in the mean") {
  // lr * decay = 1.5e-7 is 2.5 units in the last place below 1: the f32 factor 1 - lr * decay would be 2 or 3 of them
  // and every weight would decay 20 % too little or too much. Subtracting rounds each weight its own way.
  const std::int64_t n = 1000;
  for (const Backend& backend : backends()) {
    std::vector<double> start;
    for (std::int64_t i = 0; i < n; ++i) start.push_back(1.0 + static_cast<double>(i) / static_cast<double>(n));
    const std::vector<double> zeros(static_cast<std::size_t>(n), 0.0);
    const Matrix w = of(DType::f32, {n}, start), m = of(DType::f32, {n}, zeros), v = of(DType::f32, {n}, zeros),
                 g = of(DType::f32, {n}, zeros);
    const std::vector<double> before = values(w);
    const AdamwSpan span{w, m, v, g, {}};
    ops::adamw_step(backend.stream, {&span, 1}, {.lr = 1e-4, .weight_decay = 1.5e-3});
    const std::vector<double> after = values(w);
    double moved = 0, wanted = 0;
    for (std::size_t i = 0; i < before.size(); ++i) {
      moved += before[i] - after[i];
      wanted += 1.5e-7 * before[i];
    }
    REQUIRE(moved == Approx(wanted).epsilon(0.08));
  }
}

TEST_CASE("reductions in double, whatever the number of threads") {
  for (const Backend& backend : backends())
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
      for (const std::int64_t n : {0, 1, 17, 1024, 300001}) {
        const Matrix x = random(dtype, {n}, 1, 3), out = of(DType::f64, {1}, {5});
        double sum = 0, squares = 0, largest = 0;
        for (const double v : values(x)) {
          sum += v;
          squares += v * v;
          largest = std::max(largest, std::abs(v));
        }
        const double eps = std::ldexp(static_cast<double>(n), -53);
        ops::sum_of_squares(backend.stream, out, x);
        REQUIRE(values(out)[0] == Approx(squares).epsilon(eps).margin(0));
        ops::sum_of_squares(backend.stream, out, x, Accumulate::add);
        REQUIRE(values(out)[0] == Approx(2 * squares).epsilon(2 * eps).margin(0));
        ops::sum(backend.stream, out, x);
        REQUIRE(std::abs(values(out)[0] - sum) <= eps * 3 * static_cast<double>(n) + 1e-300);
        ops::max_abs(backend.stream, out, x);
        REQUIRE(values(out)[0] == largest);
        REQUIRE(ops::all_finite(backend.stream, x));
        require_thread_independent([&] { ops::sum_of_squares(backend.stream, out, x); }, {out}, backend.name);
      }
}

TEST_CASE("a single NaN or infinity is found wherever it lies") {
  for (const Backend& backend : backends())
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
      for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY), -static_cast<double>(INFINITY)})
        for (const std::size_t at : {0u, 1033u, 2999u}) {
          const Matrix x = random(dtype, {3000}, 1), out = empty(DType::f64, {1});
          std::vector<double> v = values(x);
          v[at] = bad;
          assign(x, v);
          REQUIRE_FALSE(ops::all_finite(backend.stream, x));
          ops::sum_of_squares(backend.stream, out, x);
          REQUIRE_FALSE(std::isfinite(values(out)[0]));
          ops::max_abs(backend.stream, out, x);
          REQUIRE(std::isnan(values(out)[0]) == std::isnan(bad));
        }
  // The largest floats do not overflow the double.
  const Matrix big = of(DType::f32, {2}, {3e38, -3e38}), out = empty(DType::f64, {1});
  ops::sum_of_squares(cpu_stream(), out, big);
  REQUIRE(values(out)[0] == Approx(2 * 9e76));
}

TEST_CASE("sampling: greedy, shares of probability, top-k, top-p") {
  const Matrix logits =
      of(DType::f32, {6}, {std::log(0.1), std::log(0.4), std::log(0.2), std::log(0.2), -INFINITY, std::log(0.1)});
  REQUIRE(ops::sample_token(logits, {}, 0.99) == 1);
  // Order of falling probability, ties to the lower id: 1 (0.4), 2 (0.2), 3 (0.2), 0 (0.1), 5 (0.1).
  const SampleOptions plain{.temperature = 1, .top_p = 1, .top_k = 0};
  const std::pair<double, int> draws[] = {{0.0, 1},  {0.39, 1}, {0.41, 2}, {0.59, 2}, {0.61, 3},
                                          {0.79, 3}, {0.81, 0}, {0.89, 0}, {0.91, 5}, {0.999999, 5}};
  for (const auto& [u, id] : draws) REQUIRE(ops::sample_token(logits, plain, u) == id);
  // Kept mass 0.6: 1 and 2.
  const SampleOptions nucleus{.temperature = 1, .top_p = 0.55, .top_k = 0};
  REQUIRE(ops::sample_token(logits, nucleus, 0.66) == 1);
  REQUIRE(ops::sample_token(logits, nucleus, 0.67) == 2);
  REQUIRE(ops::sample_token(logits, nucleus, 0.999) == 2);
  REQUIRE(ops::sample_token(logits, {.temperature = 1, .top_p = 1e-9, .top_k = 0}, 0.999) == 1);
  REQUIRE(ops::sample_token(logits, {.temperature = 1, .top_p = 1, .top_k = 3}, 0.76) == 3);
  // Temperature 1/2 squares the ratios: 0.16, 0.04, 0.04, 0.01, 0.01 of 0.26.
  REQUIRE(ops::sample_token(logits, {.temperature = 0.5, .top_p = 1, .top_k = 0}, 0.61) == 1);
  REQUIRE(ops::sample_token(logits, {.temperature = 0.5, .top_p = 1, .top_k = 0}, 0.62) == 2);
  REQUIRE_THROWS_AS(ops::sample_token(of(DType::f32, {2}, {-INFINITY, -INFINITY}), plain, 0.5), std::logic_error);
  REQUIRE_THROWS_AS(ops::sample_token(of(DType::f32, {2}, {1, NAN}), plain, 0.5), std::logic_error);
  REQUIRE_THROWS_AS(ops::sample_token(logits, plain, 1.0), std::logic_error);
}
