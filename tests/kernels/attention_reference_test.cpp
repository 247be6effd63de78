// The reference against a dense oracle and against finite differences.
#include "tests/kernels/attention_case.h"

#include <catch2/catch.hpp>

using namespace mmt;
using namespace mmt::test;

TEST_CASE("attention reference: equals the dense oracle in f64") {
  MaskMaker maker(11);
  for (int n = 0; n < 25; ++n) {
    const int kv = maker.pick(1, 2);
    const AttentionShape shape{kv * maker.pick(1, 2), kv, 8 * maker.pick(2, 5), 0.2, 0};
    const AttentionCase c = make_case(maker.mask(60, 40), shape, DType::f64, static_cast<unsigned>(n));
    INFO(c.mask.kind);
    CHECK(Oracle(c).error(c, run(c, reference_stream())) <= 1);
  }
}

TEST_CASE("attention reference: bf16 and f32 stay within their rounding") {
  MaskMaker maker(12);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const AttentionCase c = make_case(maker.mask(80, 40), {2, 1, 32, 0.2, 0}, dtype, 3);
    const Oracle oracle(c);
    const Outputs o = run(c, reference_stream());
    CHECK(oracle.error(c, o, false) <= 1);
    // The backward reads `out` as stored, so bf16 is off by its rounding in delta; the fast kernels see the same.
    if (dtype == DType::f32) CHECK(oracle.error(c, o) <= 1);
  }
}

namespace {

/// sum of w * out, the loss whose gradient the backward returns for d_out = w.
double loss_of(const AttentionCase& c) {
  Outputs o = empty_outputs(c);
  run_forward(c, reference_stream(), o);
  double loss = 0;
  for (std::int64_t i = 0; i < c.query_rows(); ++i)
    for (std::int64_t j = 0; j < o.out.view().cols(); ++j) loss += c.d_out.at(i, j) * o.out.at(i, j);
  return loss;
}

/// Largest |finite difference - gradient|.
double worst_difference(const AttentionCase& c, Padded AttentionCase::*input, const Padded& gradient) {
  const double h = 1e-5;
  AttentionCase moved = make_case(c.mask, c.shape, c.dtype, 77);
  double worst = 0;
  for (std::int64_t i = 0; i < gradient.view().rows(); ++i)
    for (std::int64_t j = 0; j < gradient.view().cols(); j += 3) {
      Padded& m = moved.*input;
      const double x = m.at(i, j);
      m.set(i, j, x + h);
      const double up = loss_of(moved);
      m.set(i, j, x - h);
      const double down = loss_of(moved);
      m.set(i, j, x);
      worst = std::max(worst, std::abs((up - down) / (2 * h) - gradient.at(i, j)));
    }
  return worst;
}

}  // namespace

TEST_CASE("attention reference: gradients equal finite differences") {
  MaskMaker maker(13);
  for (int n = 0; n < 4; ++n) {
    RandomMask mask;
    maker.add_sample(mask.queries, 1, 9, n);
    maker.add_sample(mask.queries, 2, 5, n + 2);
    mask.queries.push_padding(2);
    mask.keys = n == 3 ? maker.some_rows(mask.queries) : mask.queries;
    mask.window = n == 1 ? 3 : 0;
    const AttentionCase c = make_case(mask, {2, 1, 16, 0.3, 0}, DType::f64, 77);
    const Outputs o = run(c, reference_stream());
    // Central differences: truncation h^2 / 6 times a third derivative of order 10, rounding 2^-53 / h: below 1e-8.
    CHECK(worst_difference(c, &AttentionCase::q, o.dq) < 1e-8);
    CHECK(worst_difference(c, &AttentionCase::k, o.dk) < 1e-8);
    CHECK(worst_difference(c, &AttentionCase::v, o.dv) < 1e-8);
  }
}
