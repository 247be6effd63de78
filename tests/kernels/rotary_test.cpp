#include "kernels/rotary.h"
#include "tests/kernels/support.h"

#include <catch2/catch.hpp>

#include <cmath>

using namespace mmt;
using namespace mmt::test;

namespace {

Matrix positions_of(std::int64_t rows, std::int64_t axes, int factor) {
  Matrix p = empty(DType::i32, {rows, axes});
  std::vector<double> v;
  for (std::int64_t i = 0; i < rows * axes; ++i) v.push_back(static_cast<double>((i * factor) % 100003));
  assign(p, v);
  return p;
}

}  // namespace

TEST_CASE("rotary frequencies and sections follow their formulas") {
  std::vector<double> f(4);
  ops::rotary_inverse_frequencies(f, 10000.0);
  const double expected[] = {1.0, 0.1, 0.01, 0.001};  // 10000^(-2 j / 8)
  for (int j = 0; j < 4; ++j) REQUIRE(f[static_cast<std::size_t>(j)] == Approx(expected[j]).epsilon(1e-14));
  std::vector<std::uint8_t> axis(6);
  const int sections[] = {1, 2, 3};
  ops::rotary_section_axes(axis, sections);
  REQUIRE(axis == std::vector<std::uint8_t>{0, 1, 1, 2, 2, 2});
  std::vector<std::uint8_t> short_axis(5);
  REQUIRE_THROWS_AS(ops::rotary_section_axes(short_axis, sections), std::logic_error);
}

TEST_CASE("rotary tables hold cos and sin of position times frequency") {
  for (const std::int64_t axes : {1, 3})
    for (const std::int64_t pairs : {1, 5, 32, 64}) {
      const std::int64_t rows = 41;
      std::vector<double> f(static_cast<std::size_t>(pairs));
      ops::rotary_inverse_frequencies(f, 10000.0);
      std::vector<std::uint8_t> axis;
      if (axes > 1)
        for (std::int64_t j = 0; j < pairs; ++j) axis.push_back(static_cast<std::uint8_t>(j % axes));
      const Matrix p = positions_of(rows, axes, 7919);
      std::vector<double> cos, sin;
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t j = 0; j < pairs; ++j) {
          const std::size_t at = static_cast<std::size_t>(r * axes + (axes > 1 ? j % axes : 0));
          const double angle = values(p)[at] * f[static_cast<std::size_t>(j)];
          cos.push_back(1.5 * std::cos(angle));
          sin.push_back(1.5 * std::sin(angle));
        }
      for (const Backend& backend : backends()) {
        const Matrix c = empty(DType::f32, {rows, pairs}), s = empty(DType::f32, {rows, pairs});
        ops::rotary_table(backend.stream, c, s, p, f, axis, 1.5);
        // One rounding to f32; the argument reduction loses 1e-10 at positions of 1e5.
        require_close(c, cos, {1e-9}, backend.name + " cos");
        require_close(s, sin, {1e-9}, backend.name + " sin");
        require_thread_independent([&] { ops::rotary_table(backend.stream, c, s, p, f, axis, 1.5); }, {c, s},
                                   backend.name);
      }
    }
}

TEST_CASE("rotary turns pairs half a head apart, leaves the rest alone and turns back") {
  struct Shape {
    std::int64_t rows, heads, dim, pairs;
  };
  for (const Shape q : {Shape{1, 1, 2, 1}, Shape{13, 3, 10, 4}, Shape{60, 4, 64, 32}, Shape{7, 2, 80, 40}})
    for (const DType dtype : kFastDTypes) {
      const Matrix x = random(dtype, {q.rows, q.heads * q.dim}, 1, 1, 9);
      const Matrix angle = random(DType::f64, {q.rows, q.pairs}, 2, 3);
      std::vector<double> c = values(angle), s = c;
      for (double& v : c) v = std::cos(v);
      for (double& v : s) v = std::sin(v);
      const Matrix cos = of(DType::f32, {q.rows, q.pairs}, c), sin = of(DType::f32, {q.rows, q.pairs}, s);
      const std::vector<double> before = values(x);
      std::vector<double> after = before;
      for (std::int64_t r = 0; r < q.rows; ++r)
        for (std::int64_t h = 0; h < q.heads; ++h)
          for (std::int64_t j = 0; j < q.pairs; ++j) {
            const std::size_t lower = static_cast<std::size_t>((r * q.heads + h) * q.dim + j),
                              upper = lower + static_cast<std::size_t>(q.pairs);
            const std::size_t t = static_cast<std::size_t>(r * q.pairs + j);
            after[lower] = before[lower] * c[t] - before[upper] * s[t];
            after[upper] = before[upper] * c[t] + before[lower] * s[t];
          }
      for (const Backend& backend : backends()) {
        assign(x, before);
        ops::rotary_apply(backend.stream, ops::split_heads(x, q.heads), cos, sin, Direction::forward);
        // Two products and a sum of numbers below 5, with tables rounded to f32.
        require_close(x, after, {std::ldexp(20.0, -24)}, backend.name);
        REQUIRE_FALSE(is_close(x, before, {std::ldexp(20.0, -24)}));
        const std::vector<double> rounded = values(x);
        ops::rotary_apply(backend.stream, ops::split_heads(x, q.heads), cos, sin, Direction::backward);
        // The roundings of two values below 5 come back turned: 5 sqrt2 units.
        require_close(x, before, {unit(dtype) * 8}, backend.name + " back");
      }
    }
}

TEST_CASE("the backward rotation is the transpose of the forward") {
  const Stream stream = reference_stream();
  const Matrix x = random(DType::f64, {5, 12}, 1), r = random(DType::f64, {5, 12}, 2),
               cos = random(DType::f64, {5, 3}, 3), sin = random(DType::f64, {5, 3}, 4), y = empty(DType::f64, {5, 12}),
               dx = copy_of(r);
  ops::rotary_apply(stream, ops::split_heads(dx, 2), cos, sin, Direction::backward);
  require_gradient(
      [&] {
        assign(y, values(x));
        ops::rotary_apply(stream, ops::split_heads(y, 2), cos, sin, Direction::forward);
        return dot(r, y);
      },
      x, dx, "rotary");
}
