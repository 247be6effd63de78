// The contract of stages, stores, routes, programs and the executor, before any model family: gradients of every layout
// equal those of one rank, in f64 on the reference kernels.
#include "contract_world.h"

#include <catch2/catch.hpp>

#include <cmath>

using namespace mmt;
using namespace mmt::testing;

namespace {

const std::string kOneRank =
    "0F0 1RECV0@e0 1F0 2RECV0@e1 2F0 2B0 1RECV0@-e1 1B0 0RECV0@-e0 "
    "1RECV1@e0 1F1 2RECV1@e1 2F1 2B1 1RECV1@-e1 1B1 0RECV1@-e0 0B0 1TIE:b0";

// R of a whole stage before its backward, in one with W apart and in one with W within.
const std::string kEarly =
    "0F0 1RECV0@e0 1F0 2RECV0@e1 2F0 2B0 1R0 1RECV0@-e1 1B0 0RECV0@-e0 "
    "1RECV1@e0 1F1 2RECV1@e1 2F1 2R1 2B1 1RECV1@-e1 1R1 1I1 0RECV1@-e0 1W1 0R0 0I0 0W0 1TIE:b0";

const std::vector<std::vector<run::Recompute>> kRecomputes = {
    {},
    {run::Recompute::selective},
    {run::Recompute::full},
    {run::Recompute::none, run::Recompute::selective, run::Recompute::full}};

// Two blocks in flight with different row counts, I first and W later.
const std::vector<std::string> kDelayed = {
    "0F0 0SEND0@e0 0SEND1@e0 0RECV0@-e0 0RECV1@-e0 0I0 0W0 0RED:b0",
    "1RECV0@e0 1F0 1SEND0@e1 1RECV1@e0 1F1 1SEND1@e1 1RECV0@-e1 1I0 1SEND0@-e0 1RECV1@-e1 1I1 1SEND1@-e0 1W0 1W1 "
    "1RED:b0 1TIE:b0",
    "2RECV0@e1 2F0 2I0 2SEND0@-e1 2RECV1@e1 2F1 2I1 2SEND1@-e1 2W0 2W1 2RED:b0 2TIE:b0"};

/// Programs of three stages without the reductions, which stores that shard do in W.
std::vector<std::string> without_reductions(std::vector<std::string> programs) {
  for (std::string& text : programs) {
    for (std::size_t at = text.find("RED:b0"); at != std::string::npos; at = text.find("RED:b0")) text.erase(at - 2, 8);
  }
  return programs;
}

Layout one_rank() {
  Layout layout;
  layout.programs = {kOneRank};
  return layout;
}

Layout pipeline(int encoder_tp, int llm_tp) {
  Layout layout;
  layout.together = false;
  layout.encoder_tp = encoder_tp;
  layout.llm_tp = llm_tp;
  layout.programs = kDelayed;
  return layout;
}

double norm(const std::vector<double>& v) {
  double sum = 0.0;
  for (const double x : v) sum += x * x;
  return std::sqrt(sum);
}

/// Largest relative difference of a tensor. Sums of at most a few hundred products in f64 differ by rounding in their
/// order: 1e-13 is some 500 epsilons.
double difference(const Outcome& a, const Outcome& b) {
  REQUIRE(a.grads.size() == b.grads.size());
  double worst = std::abs(a.loss - b.loss) / std::abs(b.loss);
  for (const auto& [name, grad] : b.grads) {
    INFO(name);
    const std::vector<double>& other = a.grads.at(name);
    REQUIRE(other.size() == grad.size());
    std::vector<double> delta(grad.size());
    for (std::size_t i = 0; i < grad.size(); ++i) delta[i] = other[i] - grad[i];
    REQUIRE(norm(grad) > 1e-6);  // every parameter of the case takes part
    worst = std::max(worst, norm(delta) / norm(grad));
  }
  return worst;
}
constexpr double kRounding = 1e-13;

void require_same_bits(const Outcome& a, const Outcome& b) {
  REQUIRE(a.loss == b.loss);
  for (const auto& [name, grad] : b.grads) {
    INFO(name);
    REQUIRE(a.grads.at(name) == grad);
  }
}

}  // namespace

TEST_CASE("contract: gradients of one rank are the derivatives of its loss") {
  const Outcome base = run_layout(one_rank());
  const double h = 1e-5;  // the central difference errs by h^2 and by 1e-16 / h: about 1e-10
  for (const auto& [name, grad] : base.grads) {
    Layout layout = one_rank();
    layout.perturb = name;
    layout.perturb_by = h;
    const double up = run_layout(layout).loss;
    layout.perturb_by = -h;
    const double down = run_layout(layout).loss;
    INFO(name);
    REQUIRE(std::abs((up - down) / (2 * h) - grad[0]) < 1e-8 * std::max(1.0, std::abs(grad[0])));
  }
}

TEST_CASE("contract: a pipeline over ranks with delayed weight gradients has the bits of one rank") {
  // Equal blocks and equal orders of sums, so every bit is equal, the tied tensor's too.
  require_same_bits(run_layout(pipeline(1, 1)), run_layout(one_rank()));
}

TEST_CASE("contract: recompute has the bits of no recompute") {
  for (Layout layout : {one_rank(), pipeline(1, 1), pipeline(2, 2)}) {
    const Outcome base = run_layout(layout);
    for (const auto& recompute : kRecomputes) {
      layout.recompute = recompute;
      require_same_bits(run_layout(layout), base);
    }
  }
}

TEST_CASE("contract: arenas are as large as what the largest blocks need") {
  const auto check = [](Layout layout, const std::string& what) {
    layout.tight = true;
    std::map<std::string, std::int64_t> planned;
    for (const auto& recompute : kRecomputes) {
      layout.recompute = recompute;
      const Outcome outcome = run_layout(layout);
      for (std::size_t r = 0; r < outcome.arenas.size(); ++r) {
        for (const auto& arena : outcome.arenas[r]) {
          INFO(what << ", rank " << r << ", " << arena.name << ": " << arena.peak << " of " << arena.capacity);
          CHECK(arena.peak <= arena.capacity);
          // Of the work arena, scratch is an upper bound that the units of this test state generously: 1 KiB a phase,
          // 16 KiB the head.
          CHECK(arena.peak >= arena.capacity - (arena.name == "work" ? 17 * 1024 : 0));
          planned[arena.name + "/" + std::to_string(r)] += arena.capacity;
        }
      }
    }
    return planned;
  };
  check(one_rank(), "one rank");
  check(pipeline(1, 1), "pipeline");
  Layout early = one_rank();
  early.programs = {kEarly};
  check(early, "early recompute");
}

TEST_CASE("contract: recompute stores less") {
  const auto stored = [](const std::vector<run::Recompute>& recompute) {
    Layout layout = pipeline(1, 1);
    layout.tight = true;
    layout.recompute = recompute;
    std::int64_t bytes = 0;
    for (const auto& rank : run_layout(layout).arenas) {
      for (const auto& a : rank) bytes += a.name.starts_with("kept") || a.name.starts_with("held") ? a.peak : 0;
    }
    return bytes;
  };
  using run::Recompute;
  const std::int64_t none = stored({}), selective = stored({Recompute::selective}), full = stored({Recompute::full});
  // The MLPs' activations: of 13 rows in the encoder's one block, of 16 rows at most in two blocks of each LLM part.
  const auto act = [](std::int64_t rows) {
    return static_cast<std::int64_t>(Arena::footprint(static_cast<std::size_t>(rows) * 12 * 8));
  };
  CHECK(none - selective == act(12) + 2 * 2 * act(16));
  CHECK(full < selective);
}

TEST_CASE("contract: an early recompute of a whole stage has the bits of none") {
  Layout layout = one_rank();
  const Outcome base = run_layout(layout);
  layout.programs = {kEarly};
  for (const auto& recompute : kRecomputes) {
    layout.recompute = recompute;
    require_same_bits(run_layout(layout), base);
  }
}

TEST_CASE("contract: tensor parallel stages and every pairing of their routes equal one rank") {
  const Outcome base = run_layout(one_rank());
  for (const auto& [encoder_tp, llm_tp] : {std::pair{2, 2}, {2, 1}, {1, 2}, {3, 2}, {2, 3}}) {
    INFO(encoder_tp << " x " << llm_tp);
    REQUIRE(difference(run_layout(pipeline(encoder_tp, llm_tp)), base) < kRounding);
  }
}

TEST_CASE("contract: a link of which every tensor-parallel rank holds a share of the rows equals one rank") {
  const Outcome base = run_layout(one_rank());
  for (const int encoder_tp : {1, 2}) {
    Layout layout = pipeline(encoder_tp, 2);
    const Outcome whole = run_layout(layout);
    layout.shared_link = true;
    const Outcome shared = run_layout(layout);
    REQUIRE(difference(shared, base) < kRounding);
    // Rank of part B: what the port takes is half, beside what alignment takes.
    const auto ports = [&](const Outcome& o) {
      for (const auto& use : o.arenas.back())
        if (use.name == "ports of stage 2") return use.peak;
      return std::int64_t{0};
    };
    REQUIRE(ports(shared) < ports(whole));
    layout.drop_segment_of_edge = 1;
    REQUIRE_THROWS(run_layout(layout));  // rows that this rank's share does not have
  }
}

TEST_CASE("contract: data lanes with moved media equal one rank") {
  const Outcome base = run_layout(one_rank());
  Layout layout = pipeline(1, 1);
  layout.lanes = 2;
  REQUIRE(difference(run_layout(layout), base) < kRounding);
  layout.llm_tp = 2;
  REQUIRE(difference(run_layout(layout), base) < kRounding);
}

TEST_CASE("contract: a store that shards and reduces per unit and block equals one rank") {
  const Outcome base = run_layout(one_rank());
  Layout layout = pipeline(1, 1);
  layout.sharded = true;
  layout.lanes = 2;
  layout.programs = without_reductions(kDelayed);
  REQUIRE(difference(run_layout(layout), base) < kRounding);
  layout.recompute = {run::Recompute::full};
  REQUIRE(difference(run_layout(layout), base) < kRounding);
}

TEST_CASE("contract: gradients of ZeRO-1 have the bits of ZeRO-0 in whichever part") {
  for (const int llm_tp : {1, 2}) {
    Layout layout = pipeline(1, llm_tp);
    layout.lanes = 2;
    const Outcome base = run_layout(layout);
    layout.zero = 1;
    for (const int s : {1, 2}) {  // the tied table is in a bucket of its own
      std::string& text = layout.programs[static_cast<std::size_t>(s)];
      text.replace(text.find(fmt::format("{}RED:b0", s)), 7, fmt::format("{}RED:b0 {}RED:b1", s, s));
    }
    require_same_bits(run_layout(layout), base);
  }
  Layout together = one_rank();
  const Outcome base = run_layout(together);
  together.zero = 1;
  require_same_bits(run_layout(together), base);
}

TEST_CASE("contract: a frozen encoder computed one step ahead equals one rank") {
  Layout layout = one_rank();
  layout.trainable = [](const std::string& name) { return !name.starts_with("eyes"); };
  layout.programs = {
      "0F0 1RECV0@e0 1F0 2RECV0@e1 2F0 2B0 1RECV0@-e1 1B0 1RECV1@e0 1F1 2RECV1@e1 2F1 2B1 1RECV1@-e1 1B1 1TIE:b0"};
  const Outcome base = run_layout(layout);
  REQUIRE(base.grads.count("eyes/stem.weight") == 0);

  Layout ahead = pipeline(2, 2);
  ahead.trainable = layout.trainable;
  ahead.steps = 3;
  ahead.encoder_ahead = 1;
  const std::string part_a =
      "1RECV0@e0 1F0 1SEND0@e1 1RECV1@e0 1F1 1SEND1@e1 1RECV0@-e1 1I0 1RECV1@-e1 1I1 1W0 1W1 1RED:b0 1TIE:b0";
  ahead.prologue = {"0F0+1", "", ""};
  ahead.programs = {"0SEND0@e0 0F0+1 0SEND1@e0", part_a, kDelayed[2]};
  ahead.last = {"0SEND0@e0 0SEND1@e0", part_a, kDelayed[2]};
  REQUIRE(difference(run_layout(ahead), base) < kRounding);
}

TEST_CASE("contract: a partly frozen encoder saves and returns what its trainable part needs") {
  Layout layout = one_rank();
  layout.trainable = [](const std::string& name) {
    return name == "eyes.projector/linear.weight" || name == "llm/layers.1.mlp.w2";
  };
  const Outcome base = run_layout(layout);
  REQUIRE(base.grads.size() == 2);
  const Outcome all = run_layout(one_rank());
  for (const auto& [name, grad] : base.grads) REQUIRE(grad == all.grads.at(name));
  REQUIRE(base.capacity_bytes < all.capacity_bytes);  // nothing is saved for what needs no backward
  Layout spread = pipeline(2, 2);
  spread.trainable = layout.trainable;
  spread.programs[1] =
      "1RECV0@e0 1F0 1SEND0@e1 1RECV1@e0 1F1 1SEND1@e1 1RECV0@-e1 1I0 1SEND0@-e0 1RECV1@-e1 1I1 1SEND1@-e0";
  REQUIRE(difference(run_layout(spread), base) < kRounding);
}

TEST_CASE("contract: what a broken runtime computes is noticed") {
  const Outcome base = run_layout(one_rank());
  Layout moved = pipeline(1, 1);
  moved.drop_segment_of_edge = 0;  // media rows of block 1 come from the wrong place
  REQUIRE(difference(run_layout(moved), base) > 1e-3);
  Layout unreduced = pipeline(1, 1);
  unreduced.lanes = 2;
  unreduced.programs = without_reductions(kDelayed);
  REQUIRE(difference(run_layout(unreduced), base) > 1e-3);
  Layout untied = one_rank();
  untied.programs = {kOneRank.substr(0, kOneRank.size() - std::string("1TIE:b0").size())};
  REQUIRE(difference(run_layout(untied), base) > 1e-3);
}

TEST_CASE("contract: a rank that waits in vain says in which action and for whom") {
  Layout layout = pipeline(1, 1);
  layout.silent_rank = 0;
  layout.timeout_seconds = 0.4;
  std::string text;
  try {
    run_layout(layout);
  } catch (const PeerError& e) {
    text = e.what();
  }
  INFO(text);
  // Rank 1 waits for the encoder, rank 2 for rank 1: whoever gives up first.
  const bool first = text.find("from rank 0 (in 1RECV0@e0)") != std::string::npos;
  const bool second = text.find("from rank 1 (in 2RECV0@e1)") != std::string::npos;
  CHECK((first || second));
}

TEST_CASE("contract: programs that break a rule are refused with rank and action") {
  using Catch::Matchers::Contains;
  const auto refused = [](std::vector<std::string> programs, const std::string& what) {
    Layout layout = pipeline(1, 1);
    layout.programs = std::move(programs);
    REQUIRE_THROWS_WITH(run_layout(layout), Contains(what));
  };
  std::vector<std::string> p = kDelayed;
  p[1].replace(p[1].find("1W1"), 3, "");
  refused(p, "1W1: is missing");
  p = kDelayed;
  p[2].replace(p[2].find("2F0 2I0"), 7, "2I0 2F0");
  refused(p, "2I0: comes before its forward");
  p = kDelayed;
  p[0].replace(p[0].find("0SEND0@e0 0SEND1@e0"), 19, "0SEND1@e0 0SEND0@e0");
  refused(p, "first on this channel");
  p = kDelayed;
  p[1] += " 1F0";
  refused(p, "1F0: happens twice");
  p = kDelayed;
  p[0].replace(p[0].find("0SEND1@e0"), 9, "");
  refused(p, "0SEND1@e0: is missing");
  p = kDelayed;  // both wait for the other
  p[1] =
      "1RECV0@e0 1F0 1SEND0@e1 1RECV0@-e1 1RECV1@e0 1F1 1SEND1@e1 1RECV1@-e1 1I0 1SEND0@-e0 1I1 1SEND1@-e0 1W0 1W1 "
      "1RED:b0 1TIE:b0";
  p[2] = "2RECV0@e1 2F0 2RECV1@e1 2F1 2I0 2SEND0@-e1 2I1 2SEND1@-e1 2W0 2W1 2RED:b0 2TIE:b0";
  refused(p, "never end");
}
