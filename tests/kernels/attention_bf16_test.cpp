// bf16 attention of every kind that this machine has (widened, vdpbf16ps, AMX) and over emulated tiles, which every
// machine has, against the dense oracle and the scalar reference.
#include "kernels/cpu/tables.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/attention_emulated.h"

#include <catch2/catch.hpp>

using namespace mmt;
using namespace mmt::test;

namespace {

/// The unit that `emulated_table` runs; a mutation puts its own here.
cpu::AttentionBf16 emulated_unit = attention_bf16_emulated();

AttentionTable emulated_table() {
  return {.forward = [](const Stream&, const AttentionForwardArgs& a,
                        Arena& scratch) { cpu::bf16_forward(emulated_unit, a, scratch); },
          .backward = [](const Stream&, const AttentionBackwardArgs& a,
                         Arena& scratch) { cpu::bf16_backward(emulated_unit, a, scratch); },
          .forward_scratch = [](const AttentionShape& s, DType, std::int64_t queries,
                                std::int64_t keys) { return cpu::bf16_forward_scratch(s, queries, keys); },
          .backward_scratch = [](const AttentionShape& s, DType, std::int64_t queries,
                                 std::int64_t keys) { return cpu::bf16_backward_scratch(s, queries, keys); }};
}

struct Variant {
  std::string name;
  double operand = 0;  ///< rounding of p and of the gradient of a score
  KernelTable table;
  Stream stream() const { return {.device = {}, .kernels = &table, .handle = nullptr}; }
};

constexpr double kHalfUnit = 1.0 / 256;  // of bf16, for values of [1, 2)

const std::vector<Variant>& variants() {
  static const std::vector<Variant> list = [] {
    std::vector<Variant> v;
    for (const char* name : {"portable", "avx2", "avx512", "avx512bf16", "amx"}) {
      const CpuIsa machine = cpu_isa();
      const CpuIsa isa = [&]() -> CpuIsa {
        const std::string_view wanted = name;
        if (wanted == "avx512bf16") return {Isa::avx512, true, false};
        if (wanted == "amx") return {Isa::avx512, true, true};
        for (const Isa level : kIsas)
          if (wanted == name_of(level)) return {.level = level};
        return {};
      }();
      if (isa.level > machine.level || isa.avx512bf16 > machine.avx512bf16 || isa.amx > machine.amx) continue;
      v.push_back({name, isa.avx512bf16 ? kHalfUnit : 0.0, cpu_kernels()});
      v.back().table.attention = cpu::fast_attention(isa);
    }
    v.push_back({"emulated tiles", kHalfUnit, cpu_kernels()});
    v.back().table.attention = emulated_table();
    return v;
  }();
  return list;
}
bool emulated(const Variant& v) { return &v == &variants().back(); }

/// Largest error of a backward in units of its bound, against the reference's gradients of the same saved values. Both
/// round a sum once to bf16: they differ by what the oracle's bound allows a sum and where that tips the rounding by
/// one unit, at most 2^-7 of the value.
double backward_error(const AttentionCase& c, const Oracle& oracle, const Outputs& expected, const Outputs& got,
                      double operand) {
  double worst = 0;
  const double terms = static_cast<double>(oracle.most_terms), dim = c.shape.head_dim;
  const double sum = std::pow(2, -24) * (2 * (dim + 8) * oracle.score_bound + 2 * dim + terms + 32) + operand;
  const auto compare = [&](const Padded& want, const Padded& have, const Oracle::Grid& absolute) {
    for (std::int64_t i = 0; i < have.view().rows(); ++i)
      for (std::int64_t j = 0; j < have.view().cols(); ++j) {
        const double bound = std::pow(2, -7) * std::abs(want.at(i, j)) + 1e-36 +
                             sum * absolute[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)];
        const double units = std::abs(have.at(i, j) - want.at(i, j)) / bound;
        worst = units <= worst ? worst : units;  // NaN is kept
      }
  };
  compare(expected.dq, got.dq, oracle.dq_abs);
  compare(expected.dk, got.dk, oracle.dk_abs);
  compare(expected.dv, got.dv, oracle.dv_abs);
  return worst;
}

/// Forward against the oracle, backward from the reference's saved values against the reference.
void check(const AttentionCase& c, const Variant& v, const Oracle& oracle, const Outputs& reference) {
  INFO(v.name << ": " << c.mask.kind << ", heads " << c.shape.heads << "/" << c.shape.kv_heads << ", head_dim "
              << c.shape.head_dim << ", scores up to " << oracle.score_bound);
  Outputs o = empty_outputs(c);
  run_forward(c, v.stream(), o);
  REQUIRE(oracle.error(c, o, false, v.operand) <= 1);
  run_backward(c, v.stream(), reference, o);
  REQUIRE(backward_error(c, oracle, reference, o, v.operand) <= 1);
  REQUIRE(o.out.margins_untouched());
  REQUIRE(o.dq.margins_untouched());
  REQUIRE(o.dk.margins_untouched());
  REQUIRE(o.dv.margins_untouched());
}
void check_all(const AttentionCase& c) {
  const Oracle oracle(c);
  const Outputs reference = run(c, reference_stream());
  for (const Variant& v : variants()) check(c, v, oracle, reference);
}

}  // namespace

TEST_CASE("attention bf16: random masks and shapes") {
  const Threads one(1);
  MaskMaker maker(23);
  for (int n = 0; n < 24; ++n) {
    const int kv = maker.pick(1, 2);
    const AttentionShape shape{kv * maker.pick(1, 2), kv, 8 * maker.pick(2, 10), n % 5 == 0 ? -0.125 : 0.125, 0};
    check_all(make_case(maker.mask(n % 8 == 0 ? 200 : 90, maker.pick(1, 150)), shape, DType::bf16,
                        static_cast<unsigned>(n), 1, maker.pick(0, 9)));
  }
  CHECK_FALSE(take_tile_use().refused);
}

TEST_CASE("attention bf16: every head dimension") {
  const Threads one(1);
  MaskMaker maker(22);
  RandomMask mask;
  maker.add_sample(mask.queries, 1, 51, 2);
  maker.add_sample(mask.queries, 2, 21, 0);
  mask.keys = mask.queries;
  for (int dim = 16; dim <= 128; dim += 8)
    check_all(make_case(mask, {1, 1, dim, 1 / std::sqrt(dim), 0}, DType::bf16, 5));
  const TileUse use = take_tile_use();
  CHECK(use.dots > 1000);
  CHECK_FALSE(use.refused);
}

TEST_CASE("attention bf16: lengths around every block size") {
  const Threads one(1);
  for (const int rows : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 95, 97, 127, 129})
    for (const bool full : {false, true}) {
      RandomMask mask = causal_mask(rows);
      if (full)
        for (auto* words : {&mask.queries.query, &mask.keys.key})
          for (std::uint64_t& w : *words) w = pack_word(1, 1, 0);
      check_all(make_case(mask, {1, 1, 24, 0.3, 0}, DType::bf16, static_cast<unsigned>(rows), 1, rows % 4));
    }
}

TEST_CASE("attention bf16: many key blocks, several dq buffers, and query heads that share keys") {
  const Threads one(1);
  MaskMaker maker(31);
  for (int n = 0; n < 4; ++n) {
    RandomMask mask;
    const int rows[] = {300, 700, 2100, 330};
    if (n == 2) {  // two buffers; few queries to keep the oracle short
      mask = causal_mask(rows[n]);
      MaskWords last;
      for (int i = 0; i < 70; ++i) last.push(1, 0, 1, 1, rows[n] - 70 + i);
      mask.queries = last;
    } else {
      maker.add_sample(mask.queries, 1, rows[n], n == 3 ? 3 : 2 * n);
      maker.add_sample(mask.queries, 2, 40, 0);
      mask.keys = mask.queries;
    }
    const AttentionCase c = make_case(mask, {n == 1 ? 1 : 2, 1, 16, 0.25, 0}, DType::bf16, 9);
    if (n == 2) REQUIRE(c.plan.num_slots == 2);
    check_all(c);
  }
}

TEST_CASE("attention bf16: large scores, a scale of zero, and rows that see nothing") {
  const Threads one(1);
  MaskMaker maker(25);
  for (const double spread : {1e-18, 1e-3, 6.0, 30.0})
    for (const double scale : {1.0, -1.0, 0.0}) {
      RandomMask mask = maker.mask(100, 60);
      mask.queries.push_padding(5);
      mask.keys.push_padding(3);
      mask.queries.push(900, 3, 1, 1, 4);  // a sample without keys
      const AttentionCase c = make_case(mask, {1, 1, 40, scale, 0}, DType::bf16, 8, spread);
      check_all(c);
      for (const Variant& v : variants()) {
        const Outputs o = run(c, v.stream());
        const std::int64_t last = c.query_rows() - 1;
        INFO(v.name);
        for (std::int64_t j = 0; j < 40; ++j) {
          REQUIRE(o.out.at(last, j) == 0);
          REQUIRE(o.dq.at(last, j) == 0);
        }
        REQUIRE(o.lse.at(0, last) == -std::numeric_limits<double>::infinity());
      }
    }
}

TEST_CASE("attention bf16: NaN and overflow reach those who see them") {
  for (const Variant& v : variants()) {
    RandomMask mask;
    for (int s = 1; s <= 4; ++s)
      for (int i = 0; i < 30; ++i) mask.queries.push(s, 0, 1, 1, i);
    mask.keys = mask.queries;
    AttentionCase c = make_case(mask, {1, 1, 16, 1.0, 0}, DType::bf16, 8);
    c.k.set(35, 3, std::numeric_limits<double>::quiet_NaN());  // sample 2, place 5
    for (int d = 0; d < 16; ++d) {
      c.q.set(60, d, 3e30);  // sample 3: all scores of place 0 overflow to -inf
      c.k.set(60, d, -3e30);
      c.q.set(90, d, 3e30);  // sample 4: to +inf
      c.k.set(90, d, 3e30);
    }
    const Outputs o = run(c, v.stream());
    for (std::int64_t i = 0; i < 91; ++i) {
      if (i > 60 && i < 90) continue;
      const bool touched = (i >= 35 && i < 60) || i == 60 || i == 90;
      INFO(v.name << " row " << i);
      REQUIRE(std::isnan(o.out.at(i, 0)) == touched);
      REQUIRE(std::isnan(o.lse.at(0, i)) == touched);
    }
    for (std::int64_t i = 0; i < 30; ++i) REQUIRE_FALSE(std::isnan(o.dk.at(i, 3)));
  }
}

TEST_CASE("attention bf16: bits do not depend on the number of threads") {
  MaskMaker maker(26);
  for (int n = 0; n < 4; ++n) {
    RandomMask mask = n == 0 ? causal_mask(2050) : maker.mask(300, 200);
    if (n == 1) mask = merged_mask();
    const AttentionCase c = make_case(mask, {n == 0 ? 1 : 4, n == 3 ? 1 : n == 0 ? 1 : 2, 16, 0.25, 0}, DType::bf16, 4);
    if (n == 1) REQUIRE(c.plan.merges.size() == 1);
    const Oracle oracle(c);
    for (const Variant& v : variants()) {
      if (n == 0 && emulated(v)) continue;  // it would take seconds
      std::vector<Outputs> runs;
      for (const int threads : {1, 2, 3}) {
        const Threads scope(threads);
        runs.push_back(run(c, v.stream()));
      }
      INFO(v.name << " " << n);
      REQUIRE(same_bits(runs[0], runs[1]));
      REQUIRE(same_bits(runs[0], runs[2]));
      REQUIRE(oracle.error(c, runs[0], false, v.operand) <= 1);
    }
  }
}

TEST_CASE("attention bf16: a packed sample has the bits that it has alone") {
  const Threads one(1);
  MaskMaker maker(27);
  for (const Variant& v : variants())
    for (int n = 0; n < 10; ++n) {
      // Single rows make keys so ragged that they are not packed beforehand, which must change nothing.
      const PackedCases c =
          make_packed(maker, n == 0 ? 300 : 130, n % 3 == 0 ? maker.pick(1, 40) : 0, n % 2 ? 40 : 0, DType::bf16);
      INFO(v.name << " " << n);
      REQUIRE(packing_keeps_bits(c, v.stream()));
    }
}

TEST_CASE("attention bf16: sums of dk and dv stay f32 where asked") {
  const Threads one(1);
  for (const int heads : {2, 4}) {
    const AttentionCase c = make_case(causal_mask(70), {heads, 2, 32, 0.2, 0}, DType::bf16, 1);
    const Outputs ref = run(c, reference_stream());
    for (const Variant& v : variants()) {
      Outputs wide = empty_outputs(c), narrow = empty_outputs(c);
      wide.dk = Padded(DType::f32, c.key_rows(), 64, 3);
      wide.dv = Padded(DType::f32, c.key_rows(), 64, 3);
      run_backward(c, v.stream(), ref, wide);
      run_backward(c, v.stream(), ref, narrow);
      INFO(v.name);
      for (std::int64_t i = 0; i < c.key_rows(); ++i)
        for (std::int64_t j = 0; j < 64; ++j) {
          REQUIRE(narrow.dk.at(i, j) == static_cast<double>(bf16(wide.dk.at(i, j))));
          REQUIRE(narrow.dv.at(i, j) == static_cast<double>(bf16(wide.dv.at(i, j))));
        }
    }
  }
}

TEST_CASE("attention bf16: absent gradients change no other") {
  const Threads one(1);
  MaskMaker maker(28);
  const AttentionCase c = make_case(maker.mask(120, 80), {2, 1, 32, 0.2, 0}, DType::bf16, 4);
  for (const Variant& v : variants()) {
    INFO(v.name);
    CHECK(absent_gradients_change_no_other(c, v.stream()));
  }
}

TEST_CASE("attention bf16: scratch stays within what was announced, zero rows included") {
  MaskMaker maker(30);
  for (int n = 0; n < 12; ++n) {
    RandomMask mask = maker.mask(300, 150);
    if (n == 1) mask.keys = {};
    if (n == 2) mask.queries = {};
    const AttentionCase c = make_case(mask, {4, n % 2 ? 2 : 4, 64, 0.2, 0}, DType::bf16, 4);
    for (const Variant& v : variants()) {
      if (emulated(v) && n > 3) continue;
      const std::size_t caps[] = {ops::attention_forward_scratch(v.stream(), c.shape, c.dtype, 400, 400),
                                  ops::attention_backward_scratch(v.stream(), c.shape, c.dtype, 400, 400)};
      Arena forward("forward", caps[0]), backward("backward", caps[1]);
      Outputs o = empty_outputs(c);
      ops::attention_forward(v.stream(), {o.out, o.lse, c.q, c.k, c.v, c.view(), c.shape}, forward);
      ops::attention_backward(v.stream(), {o.dq, o.dk, o.dv, c.d_out, o.out, o.lse, c.q, c.k, c.v, c.view(), c.shape},
                              backward);
      CHECK(forward.peak() <= caps[0]);
      CHECK(forward.mark() == 0);
      CHECK(backward.mark() == 0);
      for (std::int64_t i = 0; n == 1 && i < c.query_rows(); ++i) CHECK(o.dq.at(i, 17) == 0);
      for (std::int64_t i = 0; n == 2 && i < c.key_rows(); ++i) CHECK(o.dk.at(i, 17) == 0);
    }
  }
}

TEST_CASE("attention bf16: faulty tiles and faulty packing are noticed") {
  const Threads one(1);
  const AttentionCase c = make_case(causal_mask(260), {1, 1, 24, 0.4, 0}, DType::bf16, 4);
  const Oracle oracle(c);
  const Outputs reference = run(c, reference_stream());
  const Variant& v = variants().back();
  Outputs o = empty_outputs(c);
  const auto errors = [&] {
    run_forward(c, v.stream(), o);
    const double forward = oracle.error(c, o, false, v.operand);
    run_backward(c, v.stream(), reference, o);
    return std::pair(forward, backward_error(c, oracle, reference, o, v.operand));
  };
  CHECK(errors().first <= 1);
  CHECK(errors().second <= 1);
  for (const TileFault fault : {TileFault::no_zeroing, TileFault::swapped_pairs, TileFault::short_sum}) {
    set_tile_fault(fault);
    const auto [forward, backward] = errors();
    set_tile_fault(TileFault::none);
    CHECK_FALSE(forward <= 1);
    CHECK_FALSE(backward <= 1);
  }
  // Values in pairs of wrong order: the transposed key words of a tile are the rows' words.
  emulated_unit.pack_transposed = [](const cpu::RowsIn& from, int rows, int head_dim, std::uint32_t* to) {
    attention_bf16_emulated().pack_transposed(from, rows, head_dim, to);
    for (std::int64_t i = 0; i < cpu::padded(head_dim) * cpu::kWordsOfKeys; ++i) to[i] = to[i] << 16 | to[i] >> 16;
  };
  const double forward = errors().first;
  emulated_unit = attention_bf16_emulated();
  CHECK_FALSE(forward <= 1);
  CHECK(errors().first <= 1);
}
