#include "parallel/plan/simulate.h"
#include "parallel/plan/lifetimes.h"
#include "parallel/plan/verify.h"
#include "pipelines.h"

#include <catch2/catch.hpp>

#include <map>
#include <random>

using namespace mmt;
using namespace mmt::plan;
using namespace mmt::testing;

namespace {

/// F, I, W of every block of every stage.
ActionCost uniform(std::span<const Program> programs, std::size_t stages, Ns f, Ns i, Ns w) {
  return cost_of_stages(programs, std::vector<StageTimes>(stages, {.blocks = {{f, i, w, 0}}}));
}

Ns makespan(const Pipeline& p, Policy policy, Ns f, Ns i, Ns w) {
  const auto programs = programs_of(p, {.policy = policy});
  verify(p.graph, programs);
  return simulate(p.graph, programs, uniform(programs, p.graph.stages.size(), f, i, w)).makespan;
}

std::vector<Program> parse(const std::vector<std::string>& texts) {
  std::vector<Program> programs;
  for (const std::string& text : texts) programs.push_back(parse_program(text));
  return programs;
}

const TimelineRow& row(const Timeline& t, int rank, const std::string& action) {
  for (const RankTimeline& r : t.ranks) {
    if (r.rank != rank) continue;
    for (const TimelineRow& x : r.rows) {
      if (to_string(x.action) == action) return x;
    }
  }
  throw std::runtime_error("no " + action);
}

/// The path starts at 0, is gapless with what is under way, and ends at the makespan.
void check_critical(const Timeline& t) {
  Ns now = 0;
  for (const CriticalStep& step : t.critical) {
    const auto r = std::ranges::find(t.ranks, step.rank, &RankTimeline::rank);
    const TimelineRow& x = r->rows[static_cast<std::size_t>(step.row)];
    REQUIRE(step.in_flight >= 0);
    REQUIRE(x.start == now + step.in_flight);
    now = x.end;
  }
  REQUIRE(now == t.makespan);
}

}  // namespace

TEST_CASE("a chain of equal stages takes blocks + places - 1 times forward and backward") {
  for (const Policy policy : {Policy::gpipe, Policy::one_f_one_b}) {
    for (int places = 1; places <= 6; ++places) {
      for (int blocks = 1; blocks <= 12; ++blocks) {
        INFO(name_of(policy) << ": " << places << " places, " << blocks << " blocks");
        const Pipeline p = make_chain(places, 1, blocks, all_train(static_cast<std::size_t>(places)));
        REQUIRE(makespan(p, policy, 10, 13, 7) == (blocks + places - 1) * 30);
      }
    }
  }
  // The golden value of Cornstarch's facts: 4 stages, 8 blocks, forward 1 and backward 2.
  REQUIRE(makespan(make_chain(4, 1, 8, all_train(4)), Policy::one_f_one_b, 1, 1, 1) == 33);
}

TEST_CASE("bubble share of a chain of equal stages is (p - 1) / (m + p - 1)") {
  const Pipeline p = make_chain(4, 1, 8, all_train(4));
  const auto programs = programs_of(p, {});
  const Timeline t = simulate(p.graph, programs, uniform(programs, 4, 10, 10, 10));
  REQUIRE(t.bubble() == Approx(3.0 / 11.0).margin(1e-12));
  for (const RankTimeline& r : t.ranks) REQUIRE((r.busy == 240 && r.transfer == 0 && r.wait == 90));
  check_critical(t);
}

TEST_CASE("encoders of 1 and 2 stages that join an LLM of 3 stages take what a chain of 5 takes") {
  for (const auto& [blocks, expected] : std::map<int, Ns>{{6, 30}, {12, 48}, {24, 84}}) {
    REQUIRE(makespan(make_join({1, 2}, 3, {}, blocks), Policy::one_f_one_b, 1, 1, 1) == expected);
  }
}

namespace {

/// Vision, audio and LLM of `stages` places each, everything frozen but the projectors behind both encoders, 24 blocks.
/// Vision: 24 layers of 10, audio 32 of 5, LLM 32 of 20, projectors 1, in units of 0.1; Bd = Bw = F.
Ns three_modules(int v, int a, int l, bool recompute) {
  Pipeline p = make_join({v, a}, l, {}, 24);
  std::vector<StageTimes> times;
  const auto encoder = [&](int layers, int stages, Ns f) {
    for (int s = 0; s < stages; ++s) {
      const bool last = s + 1 == stages;
      // The earlier stages get one layer more where it does not come out even.
      LayerTime t{.forward = f * (layers / stages + (s < layers % stages ? 1 : 0)) + (last ? 1 : 0)};
      if (last) t.backward_weight = 1;
      if (last && recompute) t.recompute = 1;  // of the projector alone: a frozen layer is not recomputed
      times.push_back({.blocks = {t}});
      StageInfo& info = p.graph.stages[times.size() - 1];
      info.needs_backward = info.has_weight_grads = last;
    }
  };
  encoder(24, v, 10);
  encoder(32, a, 5);
  for (int s = 0; s < l; ++s) {
    const Ns f = 20 * (32 / l + (s >= l - 32 % l ? 1 : 0));
    times.push_back({.blocks = {{f, f, 0, recompute ? f : 0}}});
    p.graph.stages[times.size() - 1].has_weight_grads = false;
  }
  for (Edge& e : p.graph.edges) e.needs_grad = p.graph.stages[static_cast<std::size_t>(e.producer)].needs_backward;
  const std::vector<int> places = [&] {
    std::vector<int> own;
    for (const StageInfo& s : p.graph.stages) own.push_back(s.id);
    return own;
  }();
  p.shape = shape_of(p.graph, places);
  const auto programs = programs_of(p, {});
  verify(p.graph, programs);
  return simulate(p.graph, programs, cost_of_stages(programs, times)).makespan;
}

}  // namespace

TEST_CASE("golden step times of three modules whose projectors alone train") {
  CHECK(three_modules(1, 1, 4, false) == 8882);
  CHECK(three_modules(2, 1, 3, false) == 11642);
  CHECK(three_modules(1, 1, 4, true) == 13203);
  CHECK(three_modules(2, 1, 3, true) == 17343);
  CHECK(three_modules(1, 1, 6, false) == 7082);
  CHECK(three_modules(2, 2, 4, false) == 8882);
  CHECK(three_modules(1, 1, 6, true) == 10443);
  CHECK(three_modules(2, 2, 4, true) == 13203);
}

TEST_CASE("inline transfers cost a copy at both ends") {
  Pipeline p = make_chain(2, 1, 1, all_train(2));
  const auto programs = parse({"rank 0: 0F0 0SEND0@e0 0RECV0@-e0 0B0", "rank 1: 1RECV0@e0 1F0 1B0 1SEND0@-e0"});
  verify(p.graph, programs);
  SimulateOptions options;
  options.transfers.intra = {.overlapped = false, .latency = 3, .bytes_per_us = 1000};  // 1 ns a byte
  options.transfers.row_bytes = {40};
  options.transfers.grad_bytes = {17};
  const Timeline t = simulate(p.graph, programs, uniform(programs, 2, 100, 60, 50), options);
  REQUIRE(row(t, 0, "0SEND0@e0").end == 143);
  REQUIRE((row(t, 1, "1RECV0@e0").start == 143 && row(t, 1, "1RECV0@e0").end == 186));
  REQUIRE(row(t, 1, "1SEND0@-e0").end == 186 + 210 + 20);
  REQUIRE((row(t, 0, "0RECV0@-e0").start == 416 && row(t, 0, "0RECV0@-e0").end == 436));
  REQUIRE(t.makespan == 546);
  REQUIRE(t.ranks[0].transfer == 43 + 20);
  REQUIRE(t.ranks[0].busy == 210);
  REQUIRE(t.ranks[0].wait == 546 - 63 - 210);
  check_critical(t);
}

TEST_CASE("overlapped transfers leave the ranks alone and queue on their line") {
  Pipeline p = make_chain(2, 1, 3, {false, false});
  const auto programs = parse({"rank 0: 0F0 0SEND0@e0 0F1 0SEND1@e0 0F2 0SEND2@e0",
                               "rank 1: 1RECV0@e0 1F0 1RECV1@e0 "
                               "1F1 1RECV2@e0 1F2"});
  verify(p.graph, programs);
  p.graph.credits = 3;
  SimulateOptions options;
  options.transfers.intra = {.overlapped = true, .latency = 5, .bytes_per_us = 1000};
  options.transfers.row_bytes = {40};
  const Timeline t = simulate(p.graph, programs, uniform(programs, 2, 10, 0, 0), options);
  REQUIRE(t.ranks[0].rows.back().end == 30);  // the sender is never held up
  // The line is busy 10..50, 50..90, 90..130; each message arrives 5 later.
  REQUIRE(row(t, 1, "1RECV0@e0").end == 55);
  REQUIRE(row(t, 1, "1RECV1@e0").end == 95);
  REQUIRE(row(t, 1, "1RECV2@e0").end == 135);
  REQUIRE(t.makespan == 145);
  check_critical(t);
  REQUIRE(t.critical.size() == 4);  // 0F0, its SEND, RECV of the third message, 1F2
  REQUIRE(t.critical[2].in_flight == 125);
}

TEST_CASE("a sender without credits waits for the receiver") {
  Pipeline p = make_chain(2, 1, 4, {false, false});
  const auto programs = parse({"rank 0: 0F0 0SEND0@e0 0F1 0SEND1@e0 0F2 0SEND2@e0 0F3 0SEND3@e0",
                               "rank 1: 1RECV0@e0 1F0 1RECV1@e0 1F1 1RECV2@e0 1F2 1RECV3@e0 1F3"});
  const std::vector<StageTimes> times{{.blocks = {{1, 0, 0, 0}}}, {.blocks = {{100, 0, 0, 0}}}};
  p.graph.credits = 1;
  Timeline t = simulate(p.graph, programs, cost_of_stages(programs, times));
  // Message 0 is taken at 1; 1 waits for that, is taken at 101; 2 is sent then, and 3 when 2 is taken at 201.
  REQUIRE(row(t, 0, "0SEND1@e0").start == 2);
  REQUIRE(row(t, 0, "0SEND2@e0").start == 101);
  REQUIRE(row(t, 0, "0SEND3@e0").start == 201);
  REQUIRE(t.makespan == 401);
  check_critical(t);
  p.graph.credits = 2;
  t = simulate(p.graph, programs, cost_of_stages(programs, times));
  REQUIRE(row(t, 0, "0SEND2@e0").start == 3);
  REQUIRE(row(t, 0, "0SEND3@e0").start == 101);
}

TEST_CASE("rows that stay on their rank are copied once and messages between nodes have their own price") {
  // Stage 0 on rank 0; stage 1 on ranks 0 and 1, which lie on two nodes.
  Pipeline p = make_pipeline({0, 1}, {{0, 1}}, {false, false}, 1);
  p.graph.stages[1].ranks = {0, 1};
  p.graph.routes[0][0].segments = {{0, 0, 0, 0, 0, 10, 0}, {0, 0, 10, 1, 0, 30, 10}};
  const auto programs = parse({"rank 0: 0F0 0SEND0@e0 1RECV0@e0 1F0", "rank 1: 1RECV0@e0 1F0"});
  verify(p.graph, programs);
  SimulateOptions options;
  options.transfers = {.local = {false, 0, 10'000},  // 0.1 ns a byte
                       .intra = {},
                       .inter = {false, 7, 1000},
                       .node_of = {0, 1},
                       .row_bytes = {2},
                       .grad_bytes = {}};
  const Timeline t = simulate(p.graph, programs, uniform(programs, 2, 100, 0, 0), options);
  REQUIRE(row(t, 0, "0SEND0@e0").end == 167);
  REQUIRE(row(t, 0, "1RECV0@e0").end == 169);
  REQUIRE((row(t, 1, "1RECV0@e0").start == 167 && row(t, 1, "1RECV0@e0").end == 234));
}

TEST_CASE("groups start together and end with the slowest member") {
  Pipeline p = make_chain(1, 1, 1, {true}, 2);
  const auto programs = parse({"rank 0: 0F0 0B0 0RED:b0", "rank 1: 0F0 0B0 0RED:b0"});
  const ActionCost cost = [](int rank, const Action& a) -> Ns { return a.kind == Kind::reduce ? 5 : 10 + 3 * rank; };
  SimulateOptions options;
  options.groups = {{.stage = 0, .ranks = {0, 1}, .compute = false, .reduce = true}};
  Timeline t = simulate(p.graph, programs, cost, options);
  REQUIRE((row(t, 0, "0B0").end == 20 && row(t, 0, "0RED:b0").start == 26 && row(t, 0, "0RED:b0").end == 31));
  check_critical(t);
  options.groups[0].compute = true;
  t = simulate(p.graph, programs, cost, options);
  REQUIRE((row(t, 0, "0F0").end == 13 && row(t, 0, "0B0").end == 26));
  // A program in which the other member never comes is named, not waited for.
  REQUIRE_THROWS_WITH(simulate(p.graph, parse({"rank 0: 0F0", "rank 1: "}), cost, options),
                      Catch::Matchers::Contains("never end") && Catch::Matchers::Contains("rank 0 waits in 0F0"));
}

TEST_CASE("recompute is inside the backward unless the program has an action for it") {
  const Pipeline p = make_chain(1, 1, 2, {true});
  const auto programs = parse({"rank 0: 0F0 0B0 0F1 0R1 0I1 0W1"});
  const Timeline t =
      simulate(p.graph, programs, cost_of_stages(programs, {{.blocks = {{100, 40, 7, 90}, {1000, 400, 70, 900}}}}));
  REQUIRE(row(t, 0, "0B0").end - row(t, 0, "0B0").start == 137);
  REQUIRE(row(t, 0, "0R1").end - row(t, 0, "0R1").start == 900);
  REQUIRE(row(t, 0, "0I1").end - row(t, 0, "0I1").start == 400);
  REQUIRE(t.makespan == 237 + 2370);
}

TEST_CASE("recorded times are replayed") {
  const Pipeline p = make_chain(2, 1, 2, all_train(2));
  const auto programs = programs_of(p, {});
  SimulateOptions options;
  options.transfers.intra = {false, 4, 0};
  options.transfers.row_bytes = {1};
  const Timeline t = simulate(p.graph, programs, uniform(programs, 2, 10, 11, 12), options);
  std::vector<std::vector<Ns>> times;
  for (const RankTimeline& r : t.ranks) {
    times.emplace_back();
    for (const TimelineRow& x : r.rows) times.back().push_back(x.end - x.start);
  }
  REQUIRE(replay(p.graph, programs, times, options).makespan == t.makespan);
  for (std::size_t r = 0; r < programs.size(); ++r) {
    for (std::size_t i = 0; i < times[r].size(); ++i) {
      const Kind kind = programs[r].actions[i].kind;
      if (kind == Kind::send || kind == Kind::recv) times[r][i] = kModelled;
    }
  }
  REQUIRE(replay(p.graph, programs, times, options).makespan == t.makespan);
  // One slow action shows in the makespan and in the comparison.
  times[1][1] += 1000;
  const Timeline slow = replay(p.graph, programs, times, options);
  REQUIRE(slow.makespan == t.makespan + 1000);
  const auto errors = compare(t, slow);
  const auto f1 = std::ranges::find_if(errors, [](const auto& e) { return e.kind == Kind::forward && e.stage == 1; });
  REQUIRE((f1->count == 2 && f1->predicted == 20 && f1->measured == 1020 && f1->worst == 1000));
  times[0].pop_back();
  REQUIRE_THROWS_AS(replay(p.graph, programs, times, options), std::logic_error);
}

TEST_CASE("programs that wait for each other or mix up blocks are refused with who waits for what") {
  Pipeline p = make_chain(2, 1, 2, {false, false});
  const ActionCost cost = [](int, const Action&) -> Ns { return 1; };
  REQUIRE_THROWS_WITH(simulate(p.graph, parse({"rank 0: 0F0 0F1", "rank 1: 1RECV0@e0 1F0"}), cost),
                      Catch::Matchers::Contains("rank 1 waits in 1RECV0@e0"));
  REQUIRE_THROWS_WITH(simulate(p.graph, parse({"rank 0: 0F0 0F1 0SEND1@e0", "rank 1: 1RECV0@e0"}), cost),
                      Catch::Matchers::Contains("sent block 1 first"));
  REQUIRE_THROWS_WITH(simulate(p.graph, parse({"rank 0: 0SEND5@e0"}), cost), Catch::Matchers::Contains("no edge"));
}

TEST_CASE("the longest chain of actions ends with the step in random pipelines") {
  std::mt19937 random(7);
  const auto number = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  for (int round = 0; round < 60; ++round) {
    const Pipeline p = round % 2 == 0 ? make_join({number(1, 3), number(1, 2)}, number(1, 4), {}, number(1, 9))
                                      : make_chain(number(1, 4), number(1, 2), number(1, 9), all_train(8));
    const auto programs = programs_of(p, {.policy = Policy::list});
    SimulateOptions options;
    options.transfers.intra = {.overlapped = round % 3 == 0, .latency = number(0, 9), .bytes_per_us = 1000};
    options.transfers.row_bytes.assign(p.graph.edges.size(), number(0, 30));
    std::vector<StageTimes> times(p.graph.stages.size());
    for (StageTimes& t : times) {
      t.reduce = number(0, 5);
      for (int b = 0; b < 9; ++b) t.blocks.push_back({number(0, 50), number(0, 50), number(0, 50), 0});
    }
    const Timeline t = simulate(p.graph, programs, cost_of_stages(programs, times), options);
    check_critical(t);
    for (const RankTimeline& r : t.ranks) {
      REQUIRE(r.busy + r.transfer + r.wait == t.makespan);
      for (std::size_t i = 1; i < r.rows.size(); ++i) REQUIRE(r.rows[i].start >= r.rows[i - 1].end);
    }
  }
}

namespace {

/// Most blocks of a stage whose first and last actions enclose one moment, counted from the program's text alone: every
/// block of a stage is one of the edges' next to it, too.
int most_at_once(const Program& program, int blocks, const std::function<bool(const Action&)>& first,
                 const std::function<bool(const Action&)>& last) {
  std::vector<std::pair<std::ptrdiff_t, std::ptrdiff_t>> lives;
  for (int b = 0; b < blocks; ++b) {
    std::ptrdiff_t from = -1, to = -1;
    for (std::ptrdiff_t i = 0; i < std::ssize(program.actions); ++i) {
      const Action& a = program.actions[static_cast<std::size_t>(i)];
      if (a.block != b) continue;
      if (from < 0 && first(a)) from = i;
      if (last(a)) to = i;
    }
    if (from >= 0 && to >= from) lives.emplace_back(from, to);
  }
  int most = 0;
  for (std::ptrdiff_t i = 0; i < std::ssize(program.actions); ++i) {
    most = std::max(most, static_cast<int>(std::ranges::count_if(
                              lives, [&](const auto& life) { return life.first <= i && i <= life.second; })));
  }
  return most;
}

}  // namespace

TEST_CASE("lives of blocks are those that a plain reading of the program gives") {
  std::mt19937 random(3);
  for (int round = 0; round < 80; ++round) {
    std::vector<bool> trains;
    for (int s = 0; s < 8; ++s) trains.push_back(random() % 2 == 0);
    const int chunks = 1 + round % 2, places = 1 + static_cast<int>(random() % 4);
    const int blocks = 1 + static_cast<int>(random() % 8);
    const Pipeline p = make_chain(places, chunks, blocks, trains);
    const Policy policies[] = {Policy::gpipe, Policy::list, Policy::zero_bubble, Policy::one_f_one_b};
    const Policy policy = policies[random() % (chunks == 1 ? 4U : 2U)];
    for (const Program& program : programs_of(p, {.policy = policy})) {
      for (const StageInfo& stage : p.graph.stages) {
        if (stage.ranks[0] != program.rank) continue;
        std::array<int, kNumLiveParts> now{};
        for (const LiveEvent& e : live_events(p.graph, program)) {
          if (e.stage != stage.id) continue;
          auto& n = now[static_cast<std::size_t>(e.part)];
          n += e.delta;
          REQUIRE(n >= 0);
        }
        REQUIRE(now == std::array<int, kNumLiveParts>{});
        const auto own = [&](const Action& a, std::initializer_list<Kind> kinds) {
          return a.stage == stage.id && std::ranges::find(kinds, a.kind) != kinds.end();
        };
        const auto is = [&](std::initializer_list<Kind> kinds) {
          return [kinds = std::vector<Kind>(kinds), &stage](const Action& a) {
            return a.stage == stage.id && std::ranges::find(kinds, a.kind) != kinds.end();
          };
        };
        const auto moves = [&](const Action& a, bool out) {
          if (a.kind != Kind::send && a.kind != Kind::recv) return false;
          const Edge& e = p.graph.edges[static_cast<std::size_t>(a.edge)];
          if (a.kind == Kind::recv && places > 1) return false;  // a local copy only where all is one place
          return (out ? e.producer : e.consumer) == stage.id && a.transposed != out;
        };
        const LiveBlocks live = live_blocks(p.graph, program, stage.id);
        REQUIRE(live.kept ==
                most_at_once(program, blocks, is({Kind::forward}), is({Kind::backward, Kind::backward_input})));
        const auto end = is({stage.has_weight_grads ? Kind::backward_weight : Kind::backward_input, Kind::backward});
        REQUIRE(live.held == most_at_once(program, blocks, is({Kind::forward}), end));
        REQUIRE(live.stash == most_at_once(program, blocks, is({Kind::backward_input}), is({Kind::backward_weight})));
        REQUIRE(live.ports ==
                most_at_once(
                    program, blocks,
                    [&](const Action& a) { return own(a, {Kind::forward}) || (own(a, {Kind::recv}) && !a.transposed); },
                    [&](const Action& a) {
                      return moves(a, true) || moves(a, false) ||
                             own(a, {Kind::forward, Kind::backward, Kind::backward_input, Kind::backward_weight});
                    }));
      }
    }
  }
}

TEST_CASE("memory of a rank follows its blocks") {
  const Pipeline p = make_chain(2, 1, 3, all_train(2));
  const auto programs = programs_of(p, {});
  SimulateOptions options;
  options.block_bytes.assign(2, {.kept = 100, .held = 10, .stash = 0, .restored = 0, .ports = 1, .work = 1000});
  options.fixed_bytes = {5'000, 7'000};
  const Timeline t = simulate(p.graph, programs, uniform(programs, 2, 10, 10, 10), options);
  // The first place has two blocks in flight, the last one has one. There the next block is received before the
  // gradient of the last one leaves: two port buffers, but not while a block is kept.
  REQUIRE(t.ranks[0].peak == 6'000 + 2 * 111);
  REQUIRE(t.ranks[1].peak == 8'000 + 111);
  REQUIRE(t.ranks[0].arenas == 1000 + 2 * 111);
  REQUIRE(t.ranks[1].arenas == 1000 + 100 + 10 + 2);
  for (const RankTimeline& r : t.ranks) {
    std::int64_t most = 0;
    for (std::size_t i = 0; i < r.memory.size(); ++i) {
      most = std::max(most, r.memory[i].bytes);
      if (i > 0) REQUIRE(r.memory[i].at >= r.memory[i - 1].at);
    }
    REQUIRE(most == r.peak);
    REQUIRE(r.memory.back().bytes == 6'000 + 2'000 * r.rank);
  }
  const auto all = programs_of(p, {.policy = Policy::gpipe});
  REQUIRE(simulate(p.graph, all, uniform(all, 2, 10, 10, 10), options).ranks[0].peak == 6'000 + 3 * 111);
}

TEST_CASE("a program of 64 places and 256 blocks is simulated whole") {
  const Pipeline p = make_chain(64, 1, 256, all_train(64));
  const auto programs = programs_of(p, {});
  SimulateOptions options;
  options.transfers.intra = {.overlapped = true, .latency = 3, .bytes_per_us = 1000};
  options.transfers.row_bytes.assign(63, 4);
  options.block_bytes.assign(64, {.kept = 100, .held = 10, .stash = 0, .restored = 0, .ports = 1, .work = 1000});
  const Timeline t = simulate(p.graph, programs, uniform(programs, 64, 100, 100, 100), options);
  REQUIRE(t.ranks.size() == 64);
  REQUIRE(t.makespan >= (256 + 63) * 300);
  check_critical(t);
}
