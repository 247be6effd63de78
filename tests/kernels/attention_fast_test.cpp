// The fast kernels of every instruction set that this machine has, against the dense oracle and the reference.
#include "tests/kernels/attention_case.h"

#include <catch2/catch.hpp>

#include <stdexcept>

using namespace mmt;
using namespace mmt::test;

namespace {

std::vector<Isa> levels() {
  std::vector<Isa> available;
  for (const Isa level : kIsas)
    if (isa_available(level)) available.push_back(level);
  return available;
}

bool margins_untouched(const Outputs& o) {
  return o.out.margins_untouched() && o.dq.margins_untouched() && o.dk.margins_untouched() && o.dv.margins_untouched();
}

}  // namespace

TEST_CASE("attention fast: random masks and shapes in f32") {
  const Threads one(1);
  MaskMaker maker(21);
  for (int n = 0; n < 60; ++n) {
    const int kv = maker.pick(1, 3);
    const AttentionShape shape{kv * maker.pick(1, 3), kv, 8 * maker.pick(2, 8), 0.25, 0};
    const AttentionCase c = make_case(maker.mask(n % 6 == 0 ? 260 : 90, maker.pick(1, 150)), shape, DType::f32,
                                      static_cast<unsigned>(n), 1, maker.pick(0, 9));
    const Oracle oracle(c);
    for (const Isa level : levels()) {
      const Outputs o = run(c, stream_of(level));
      INFO(name_of(level) << " " << n << ": " << c.mask.kind << ", heads " << shape.heads << "/" << shape.kv_heads
                          << ", head_dim " << shape.head_dim);
      REQUIRE(oracle.error(c, o) <= 1);
      REQUIRE(margins_untouched(o));
    }
  }
}

TEST_CASE("attention fast: every head dimension") {
  const Threads one(1);
  MaskMaker maker(22);
  RandomMask mask;
  maker.add_sample(mask.queries, 1, 71, 2);
  maker.add_sample(mask.queries, 2, 50, 0);
  mask.keys = mask.queries;
  for (int dim = 16; dim <= 128; dim += 8) {
    const AttentionCase c = make_case(mask, {2, 1, dim, 1 / std::sqrt(dim), 0}, DType::f32, 5);
    const Oracle oracle(c);
    for (const Isa level : levels()) {
      INFO(name_of(level) << " head_dim " << dim);
      REQUIRE(oracle.error(c, run(c, stream_of(level))) <= 1);
    }
  }
}

TEST_CASE("attention fast: large scores and rows that see nothing") {
  const Threads one(1);
  MaskMaker maker(25);
  for (const Isa level : levels())
    for (const double spread : {1e-20, 1e-3, 6.0, 30.0}) {
      RandomMask mask = maker.mask(150, 60);
      mask.queries.push_padding(5);
      mask.keys.push_padding(3);
      mask.queries.push(900, 3, 1, 1, 4);  // a sample without keys
      const AttentionCase c = make_case(mask, {2, 2, 40, 1.0, 0}, DType::f32, 8, spread);
      const Outputs o = run(c, stream_of(level));
      const Oracle oracle(c);
      INFO(name_of(level) << " spread " << spread << ", scores up to " << oracle.score_bound << ": " << c.mask.kind);
      REQUIRE(oracle.error(c, o) <= 1);
      const std::int64_t last = c.query_rows() - 1;
      for (std::int64_t j = 0; j < 80; ++j) {
        REQUIRE(o.out.at(last, j) == 0);
        REQUIRE(o.dq.at(last, j) == 0);
      }
      REQUIRE(o.lse.at(1, last) == -std::numeric_limits<double>::infinity());
    }
}

TEST_CASE("attention fast: NaN and overflow reach those who see them and nobody else") {
  for (const Isa level : levels()) {
    RandomMask mask;
    for (int s = 1; s <= 3; ++s)
      for (int i = 0; i < 30; ++i) mask.queries.push(s, 0, 1, 1, i);
    mask.keys = mask.queries;
    AttentionCase c = make_case(mask, {1, 1, 16, 1.0, 0}, DType::f32, 8);
    c.k.set(35, 3, std::numeric_limits<double>::quiet_NaN());  // sample 2, place 5
    for (int d = 0; d < 16; ++d) {                             // sample 3: all scores of place 0 overflow to -inf
      c.q.set(60, d, 3e30);
      c.k.set(60, d, -3e30);
    }
    const Outputs o = run(c, stream_of(level));
    for (std::int64_t i = 0; i < 90; ++i) {
      const bool touched = (i >= 35 && i < 60) || i == 60;
      INFO(name_of(level) << " row " << i);
      if (i <= 60) REQUIRE(std::isnan(o.out.at(i, 0)) == touched);
      if (i <= 60) REQUIRE(std::isnan(o.lse.at(0, i)) == touched);
    }
    for (std::int64_t i = 0; i < 30; ++i) REQUIRE_FALSE(std::isnan(o.dk.at(i, 3)));
  }
}

TEST_CASE("attention fast: bits do not depend on the number of threads") {
  MaskMaker maker(26);
  for (int n = 0; n < 6; ++n) {
    RandomMask mask = n == 0 ? causal_mask(2050) : maker.mask(400, 200);
    if (n == 1) mask = merged_mask();
    const AttentionCase c = make_case(mask, {n == 1 ? 2 : 1, 1, 16, 0.25, 0}, n == 2 ? DType::bf16 : DType::f32, 4);
    if (n == 1) REQUIRE(c.plan.merges.size() == 1);
    if (n == 0) REQUIRE(c.plan.num_slots == 2);
    const Oracle oracle(c);
    for (const Isa level : levels()) {
      std::vector<Outputs> runs;
      for (const int threads : {1, 2, 3}) {
        const Threads scope(threads);
        runs.push_back(run(c, stream_of(level)));
      }
      INFO(name_of(level) << " " << n);
      REQUIRE(same_bits(runs[0], runs[1]));
      REQUIRE(same_bits(runs[0], runs[2]));
      if (n <= 1) REQUIRE(oracle.error(c, runs[0]) <= 1);
    }
  }
}

TEST_CASE("attention fast: a packed sample has the bits that it has alone") {
  const Threads one(1);
  MaskMaker maker(27);
  for (const Isa level : levels())
    for (int n = 0; n < 30; ++n) {
      const PackedCases c = make_packed(maker, 130, n % 3 == 0 ? maker.pick(1, 40) : 0, 0, DType::f32);
      INFO(name_of(level) << " " << n);
      REQUIRE(packing_keeps_bits(c, stream_of(level)));
    }
}

TEST_CASE("attention fast: absent gradients change no other") {
  MaskMaker maker(28);
  const AttentionCase c = make_case(maker.mask(200, 80), {2, 2, 32, 0.2, 0}, DType::f32, 4);
  CHECK(absent_gradients_change_no_other(c, cpu_stream()));
}

TEST_CASE("attention fast: a wrong tile plan is noticed") {
  const Threads one(1);
  MaskMaker maker(29);
  int tried[3] = {}, noticed[3] = {};
  for (int n = 0; n < 45; ++n) {
    const AttentionCase c = make_case(maker.mask(200, 150), {1, 1, 16, 0.3, 0}, DType::f32, 4);
    const Oracle oracle(c);
    const bool has[3] = {c.plan.counts.full > 0, c.plan.counts.partial > 0, c.plan.counts.partial > 0};
    for (int mutation = 0; mutation < 3; ++mutation) {
      if (!has[mutation]) continue;
      AttentionCase wrong = make_case(c.mask, c.shape, DType::f32, 4);
      TilePlan& plan = wrong.plan;
      const auto empty = static_cast<std::int32_t>(plan.bits.size());
      plan.bits.resize(plan.bits.size() + 64, 0);
      for (TileRun& run : plan.query_runs) {
        if (run.kind != (mutation == 0 ? TileClass::full : TileClass::partial)) continue;
        if (mutation == 2) {  // partial taken for full
          run.kind = TileClass::full;
          continue;
        }
        run.kind = TileClass::partial;  // full, or partial, tiles dropped
        run.pattern = static_cast<std::int32_t>(plan.query_patterns.size());
        plan.query_patterns.insert(plan.query_patterns.end(), static_cast<std::size_t>(run.last - run.first), empty);
      }
      Outputs o = empty_outputs(wrong);
      run_forward(wrong, cpu_stream(), o);
      ++tried[mutation];
      noticed[mutation] += !(oracle.error(wrong, o, false) <= 1);
    }
  }
  for (int mutation = 0; mutation < 3; ++mutation) {
    CHECK(tried[mutation] > 5);
    CHECK(noticed[mutation] == tried[mutation]);
  }
}

TEST_CASE("attention fast: scratch stays within what was announced") {
  MaskMaker maker(30);
  for (int n = 0; n < 20; ++n) {
    const AttentionCase c = make_case(maker.mask(300, 150), {4, 2, 64, 0.2, 0}, DType::bf16, 4);
    const Stream stream = cpu_stream();
    const std::size_t caps[] = {ops::attention_forward_scratch(stream, c.shape, c.dtype, 400, 400),
                                ops::attention_backward_scratch(stream, c.shape, c.dtype, 400, 400)};
    Arena forward("forward", caps[0]), backward("backward", caps[1]);
    Outputs o = empty_outputs(c);
    ops::attention_forward(stream, {o.out, o.lse, c.q, c.k, c.v, c.view(), c.shape}, forward);
    ops::attention_backward(stream, {o.dq, o.dk, o.dv, c.d_out, o.out, o.lse, c.q, c.k, c.v, c.view(), c.shape},
                            backward);
    CHECK(forward.peak() <= caps[0]);
    CHECK(forward.mark() == 0);
    CHECK(backward.mark() == 0);
  }
}

TEST_CASE("attention: wrong arguments are refused") {
  const AttentionCase c = make_case(causal_mask(20), {2, 1, 16, 0.2, 0}, DType::f32, 4);
  Outputs o = empty_outputs(c);
  Arena arena("scratch", ops::attention_forward_scratch(cpu_stream(), c.shape, c.dtype, 20, 20));
  const auto run_with = [&](auto&& change) {
    AttentionForwardArgs args{o.out, o.lse, c.q, c.k, c.v, c.view(), c.shape};
    change(args);
    ops::attention_forward(cpu_stream(), args, arena);
  };
  CHECK_NOTHROW(run_with([](auto&) {}));
  CHECK_THROWS_AS(run_with([](auto& a) { a.shape.window = 3; }), std::logic_error);
  CHECK_THROWS_AS(run_with([](auto& a) { a.shape.kv_heads = 3; }), std::logic_error);
  CHECK_THROWS_AS(run_with([](auto& a) { a.shape.head_dim = 12; }), std::logic_error);
  CHECK_THROWS_AS(run_with([](auto& a) { a.q = a.q.row_range(0, 19); }), std::logic_error);
  CHECK_THROWS_AS(run_with([](auto& a) { a.lse = {}; }), std::logic_error);
  CHECK_THROWS_AS(run_with([](auto& a) { a.v = {}; }), std::logic_error);
  CHECK_THROWS_AS(run_with([](auto& a) { a.mask.tiles = nullptr; }), std::logic_error);
  const TilePlan grid = make_tile_plan(query_side(c.mask.queries), key_side(c.mask.keys), 0, {16, 16, false});
  CHECK_THROWS_AS(run_with([&](auto& a) { a.mask.tiles = &grid; }), std::logic_error);
  Arena small("small", 64);
  const auto backward = [&](const Padded& dk) {
    ops::attention_backward(cpu_stream(), {o.dq, dk, o.dv, c.d_out, o.out, o.lse, c.q, c.k, c.v, c.view(), c.shape},
                            small);
  };
  CHECK_THROWS_AS(backward(o.dk), std::logic_error);  // the arena is too small
  CHECK_THROWS_AS(backward(Padded(DType::f64, 20, 16, 0)), std::logic_error);
}

TEST_CASE("attention: zero rows on either side") {
  for (const Isa level : levels()) {
    RandomMask mask = causal_mask(10);
    mask.keys = {};
    const AttentionCase no_keys = make_case(mask, {1, 1, 16, 0.2, 0}, DType::f32, 4);
    const Outputs o = run(no_keys, stream_of(level));
    for (std::int64_t i = 0; i < 10; ++i) {
      CHECK(o.out.at(i, 5) == 0);
      CHECK(o.dq.at(i, 5) == 0);
      CHECK(std::isinf(o.lse.at(0, i)));
    }
    std::swap(mask.queries, mask.keys);
    const AttentionCase no_queries = make_case(mask, {1, 1, 16, 0.2, 0}, DType::f32, 4);
    CHECK(run(no_queries, stream_of(level)).dk.at(9, 15) == 0);
  }
}
