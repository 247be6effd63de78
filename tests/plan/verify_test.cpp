#include "parallel/plan/verify.h"
#include "pipelines.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <functional>

using namespace mmt;
using namespace mmt::plan;
using namespace mmt::testing;
using Catch::Matchers::Contains;

namespace {

using Programs = std::vector<Program>;

/// Place of an action in a rank's program.
std::size_t find(const Program& p, const std::string& action) {
  const auto found = std::ranges::find(p.actions, parse_action(action));
  if (found == p.actions.end()) throw std::runtime_error(action + " is not in " + to_string(p));
  return static_cast<std::size_t>(found - p.actions.begin());
}
void drop(Program& p, const std::string& action) {
  p.actions.erase(p.actions.begin() + static_cast<std::ptrdiff_t>(find(p, action)));
}
void swap(Program& p, const std::string& a, const std::string& b) {
  std::swap(p.actions[find(p, a)], p.actions[find(p, b)]);
}
/// Puts `action` in front of `other`.
void move_before(Program& p, const std::string& action, const std::string& other) {
  drop(p, action);
  p.actions.insert(p.actions.begin() + static_cast<std::ptrdiff_t>(find(p, other)), parse_action(action));
}
void replace(Program& p, const std::string& action, const std::string& by) {
  p.actions[find(p, action)] = parse_action(by);
}

/// A pipeline with its programs, which pass with all replays.
struct Case {
  Pipeline p;
  Programs programs;
  StepEnd end;
  bool unbuffered = false;

  VerifyOptions options() const { return {.end = &end, .strict = unbuffered, .serial = unbuffered}; }
  /// Verifies programs changed by `mutate`.
  void refused(const std::function<void(Programs&)>& mutate, const std::string& what) const {
    Programs changed = programs;
    mutate(changed);
    INFO(what);
    REQUIRE_THROWS_WITH(verify(p.graph, changed, options()), Contains(what));
  }
};

Case make_case(Pipeline p, const ScheduleOptions& options, bool tied = false) {
  Case c{std::move(p), {}, {}, options.policy == Policy::one_f_one_b};
  c.end = end_of(c.p, tied);
  c.programs = programs_of(c.p, options, tied);
  REQUIRE_NOTHROW(verify(c.p.graph, c.programs, c.options()));
  return c;
}

}  // namespace

TEST_CASE("the verifier catches transfers that are dropped, swapped, moved or mislabelled") {
  const Case c = make_case(make_chain(3, 1, 4, all_train(3)), {.policy = Policy::one_f_one_b});
  c.refused([](Programs& p) { drop(p[1], "1RECV2@e0"); }, "program of rank 1: 1RECV2@e0: is missing");
  c.refused([](Programs& p) { drop(p[1], "1RECV2@-e1"); }, "program of rank 1: 1RECV2@-e1: is missing");
  c.refused([](Programs& p) { drop(p[0], "0SEND2@e0"); }, "program of rank 0: 0SEND2@e0: is missing");
  c.refused([](Programs& p) { drop(p[2], "2SEND2@-e1"); }, "program of rank 2: 2SEND2@-e1: is missing");
  c.refused([](Programs& p) { move_before(p[0], "0SEND1@e0", "0F1"); }, "0SEND1@e0: comes before its rows are made");
  c.refused([](Programs& p) { move_before(p[2], "2SEND1@-e1", "2B1"); },
            "2SEND1@-e1: comes before its gradients are made");
  c.refused([](Programs& p) { move_before(p[1], "1F2", "1RECV2@e0"); },
            "1RECV2@e0: comes after the forward that reads it");
  c.refused([](Programs& p) { move_before(p[1], "1B2", "1RECV2@-e1"); },
            "1RECV2@-e1: comes after the backward that reads it");
  c.refused([](Programs& p) { move_before(p[0], "0RECV3@-e0", "0F0"); },
            "0RECV3@-e0: comes before the forward of its block");
  c.refused([](Programs& p) { swap(p[0], "0SEND0@e0", "0SEND1@e0"); }, "0SEND1@e0: comes before its rows are made");
  c.refused([](Programs& p) { move_before(p[1], "1RECV1@e0", "1RECV0@e0"); },
            "program of rank 1: 1RECV1@e0: rank 0 sent 0SEND0@e0 first on this channel");
  c.refused([](Programs& p) { replace(p[0], "0SEND2@e0", "0SEND3@e0"); }, "0SEND3@e0: happens twice");
  c.refused([](Programs& p) { replace(p[0], "0SEND3@e0", "0SEND4@e0"); }, "0SEND4@e0: is no action of the graph");
  c.refused([](Programs& p) { replace(p[0], "0SEND3@e0", "0SEND3@e1"); }, "on this edge it belongs to stage 1");
  c.refused([](Programs& p) { replace(p[0], "0SEND3@e0", "0SEND3@e7"); }, "there is no such edge");
  c.refused([](Programs& p) { replace(p[0], "0F3", "9F3"); }, "there is no such stage");
  c.refused([](Programs& p) { replace(p[0], "0F3", "1F3"); }, "the stage does not run on this rank");
}

TEST_CASE("sends that swap after their rows are made break the order of the channel") {
  const Case c = make_case(make_chain(2, 1, 4, all_train(2)), {.policy = Policy::gpipe});
  c.refused(
      [](Programs& p) {
        move_before(p[0], "0SEND1@e0", "0RECV0@-e0");
        move_before(p[0], "0SEND0@e0", "0RECV0@-e0");
      },
      "rank 0 sent");
}

TEST_CASE("a receive at the start of the step instead of where it is needed is caught wherever it stands") {
  for (const Policy policy : {Policy::one_f_one_b, Policy::gpipe, Policy::zero_bubble}) {
    const Case c = make_case(make_chain(4, 1, 6, all_train(4)), {.policy = policy});
    for (std::size_t r = 0; r < c.programs.size(); ++r) {
      // All receives of forward rows of a rank, as a schedule that posts them at the start would have them.
      if (r > 0 && policy != Policy::gpipe) {
        c.refused(
            [&](Programs& p) {
              std::ranges::stable_partition(p[r].actions,
                                            [](const Action& a) { return a.kind == Kind::recv && !a.transposed; });
            },
            "never end");
      }
      for (std::size_t i = 1; i < c.programs[r].actions.size(); ++i) {
        const Action a = c.programs[r].actions[i];
        if (a.kind != Kind::recv || (a.block == 0 && !a.transposed)) continue;
        INFO(to_string(c.programs[r]) << ": " << to_string(a));
        Programs moved = c.programs;
        moved[r].actions.erase(moved[r].actions.begin() + static_cast<std::ptrdiff_t>(i));
        moved[r].actions.insert(moved[r].actions.begin(), a);
        REQUIRE_THROWS_AS(verify(c.p.graph, moved, c.options()), std::logic_error);
      }
    }
  }
}

TEST_CASE("without buffers 1f1b ends by its order at the boundaries and hangs in plain order") {
  const Pipeline p = make_chain(3, 1, 6, all_train(3));
  const std::vector<ComputeOrder> orders = generate(p.shape, {.policy = Policy::one_f_one_b});
  const StepEnd end = end_of(p);
  const Programs paired = make_programs(p.graph, orders, {.boundary = Boundary::paired, .end = end});
  const Programs plain = make_programs(p.graph, orders, {.boundary = Boundary::sends_first, .end = end});
  REQUIRE_NOTHROW(verify(p.graph, paired, {.end = &end, .strict = true, .serial = true}));
  REQUIRE_NOTHROW(verify(p.graph, plain, {.end = &end}));
  REQUIRE_THROWS_WITH(verify(p.graph, plain, {.end = &end, .strict = true}),
                      Contains("never end without buffers (strict rendezvous)") && Contains("rank 1 waits in"));
  REQUIRE_THROWS_WITH(verify(p.graph, plain, {.end = &end, .serial = true}), Contains("(serial)"));
  // A receive that is posted ahead is a buffer.
  REQUIRE_NOTHROW(verify(p.graph, plain, {.end = &end, .strict = true, .serial = true, .posted = {1, 1}}));
  REQUIRE_THROWS_WITH(verify(p.graph, plain, {.end = &end, .strict = true, .posted = {1}}), Contains("never end"));
}

TEST_CASE("an action's messages go together under strict rendezvous and one by one in serial order") {
  // Two ranks exchange with two others; one of these receives from the first two in the other order.
  StageGraph g;
  g.stages = {{.id = 0, .module = "a", .ranks = {0}, .num_blocks = 1},
              {.id = 1, .module = "b", .ranks = {1}, .num_blocks = 1},
              {.id = 2, .module = "c", .ranks = {2}, .num_blocks = 1}};
  g.edges = {{0, 0, 1, "x", false}, {1, 0, 2, "x", false}, {2, 1, 2, "y", false}};
  g.producers_of = {{{0}}, {{0}}, {{0}}};
  g.routes = {{{0, 0, {{0, 0, 0, 1, 0, 1, 0}}}}, {{1, 0, {{0, 0, 0, 2, 0, 1, 0}}}}, {{2, 0, {{1, 0, 0, 2, 0, 1, 0}}}}};
  const Wiring wiring(g);
  const auto parse = [](const char* a, const char* b, const char* c) {
    return Programs{parse_program(a), parse_program(b), parse_program(c)};
  };
  const std::vector<int> none;
  // Rank 2 takes from rank 1 first, whose rows need what rank 0 sends second.
  const Programs crossed =
      parse("rank 0: 0F0 0SEND0@e1 0SEND0@e0", "rank 1: 1RECV0@e0 1F0 1SEND0@e2", "rank 2: 2RECV0@e2 2RECV0@e1 2F0");
  REQUIRE_NOTHROW(replay(wiring, crossed, Transport::credit, std::vector<int>{1, 1, 1}));
  REQUIRE_THROWS_WITH(replay(wiring, crossed, Transport::strict, none), Contains("rank 0 waits in 0SEND0@e1") &&
                                                                            Contains("rank 1 waits in 1RECV0@e0") &&
                                                                            Contains("rank 2 waits in 2RECV0@e2"));
  const Programs straight =
      parse("rank 0: 0F0 0SEND0@e0 0SEND0@e1", "rank 1: 1RECV0@e0 1F0 1SEND0@e2", "rank 2: 2RECV0@e1 2RECV0@e2 2F0");
  REQUIRE_NOTHROW(replay(wiring, straight, Transport::strict, none));
  REQUIRE_NOTHROW(replay(wiring, straight, Transport::serial, none));

  // One SEND with two receivers, and a receiver of the first that waits for the second: together it ends.
  StageGraph h;
  h.stages = {{.id = 0, .module = "a", .ranks = {0}, .num_blocks = 1},
              {.id = 1, .module = "b", .ranks = {1, 2}, .num_blocks = 1},
              {.id = 2, .module = "c", .ranks = {1, 2}, .num_blocks = 1}};
  h.edges = {{0, 0, 1, "x", false}, {1, 1, 2, "x", false}};
  h.producers_of = {{{0}}, {{0}}};
  h.routes = {{{0, 0, {{0, 0, 0, 1, 0, 1, 0}, {0, 0, 0, 2, 0, 1, 1}}}}, {{1, 0, {{2, 0, 0, 1, 0, 1, 0}}}}};
  const Wiring fork(h);
  const Programs waits = parse("rank 0: 0F0 0SEND0@e0", "rank 1: 2RECV0@e1 1RECV0@e0 1F0 2F0",
                               "rank 2: 1RECV0@e0 1F0 1SEND0@e1 2RECV0@e1 2F0");
  REQUIRE_NOTHROW(replay(fork, waits, Transport::strict, none));
  REQUIRE_THROWS_WITH(replay(fork, waits, Transport::serial, none), Contains("rank 0 waits in 0SEND0@e0"));
}

TEST_CASE("the verifier catches computations that are missing, doubled or in the wrong order") {
  const Case c = make_case(make_chain(3, 1, 5, all_train(3)), {.policy = Policy::zero_bubble});
  c.refused([](Programs& p) { drop(p[1], "1W2"); }, "program of rank 1: 1W2: is missing");
  c.refused([](Programs& p) { drop(p[1], "1I2"); }, "program of rank 1: 1I2: is missing");
  c.refused([](Programs& p) { drop(p[1], "1F2"); }, "program of rank 1: 1F2: is missing");
  c.refused([](Programs& p) { swap(p[2], "2I3", "2W3"); }, "2W3: comes before its backward of the input");
  c.refused([](Programs& p) { swap(p[2], "2I3", "2F3"); }, "2I3: comes before its forward");
  c.refused([](Programs& p) { replace(p[1], "1W2", "1W3"); }, "1W3: happens twice");
  c.refused([](Programs& p) { replace(p[1], "1W4", "1W5"); }, "1W5: is no action of the graph");
  c.refused([](Programs& p) { replace(p[1], "1F2", "1F2+1"); }, "1F2: is missing");
  c.refused([](Programs& p) { p[1].actions.push_back(parse_action("1R2")); }, "1R2: comes after its backward");
  c.refused([](Programs& p) { p[1].actions.push_back(parse_action("1B2")); },
            "1I2: is part of the block's backward, which runs whole");
  c.refused([](Programs& p) { p[1].actions.push_back(parse_action("1LOAD2")); }, "1LOAD2: is no action of the graph");
}

TEST_CASE("frozen stages have no backward and no messages of gradients") {
  const Case c = make_case(make_chain(3, 1, 3, {false, false, true}), {.policy = Policy::one_f_one_b});
  for (const Program& p : c.programs) {
    for (const Action& a : p.actions) {
      REQUIRE_FALSE(a.transposed);
      if (a.stage < 2)
        REQUIRE((a.kind == Kind::forward || a.kind == Kind::send || a.kind == Kind::recv || a.kind == Kind::optimize));
    }
  }
  c.refused([](Programs& p) { p[1].actions.insert(p[1].actions.end() - 1, parse_action("1B0")); },
            "1B0: is no action of the graph");
  c.refused([](Programs& p) { p[1].actions.insert(p[1].actions.end() - 1, parse_action("1SEND0@-e0")); },
            "1SEND0@-e0: is no action of the graph");
  // A frozen stage behind a training one returns gradients and has no W.
  const Case behind = make_case(make_chain(2, 1, 3, {true, false}), {.policy = Policy::zero_bubble});
  behind.refused([](Programs& p) { p[1].actions.push_back(parse_action("1W0")); }, "1W0: is no action of the graph");
}

TEST_CASE("reductions, ties and the update stand behind what they read, each once") {
  const Case c = make_case(make_chain(3, 1, 3, all_train(3)), {.policy = Policy::one_f_one_b}, true);
  c.refused([](Programs& p) { drop(p[0], "0RED:b0"); }, "program of rank 0: 0RED:b0: is missing");
  c.refused([](Programs& p) { drop(p[2], "2TIE:b0"); }, "program of rank 2: 2TIE:b0: is missing");
  c.refused([](Programs& p) { drop(p[1], "1OPT"); }, "program of rank 1: 1OPT: is missing");
  c.refused([](Programs& p) { move_before(p[0], "0RED:b0", "0B2"); }, "0RED:b0: comes before 0B2, which adds to it");
  c.refused([](Programs& p) { swap(p[0], "0RED:b0", "0TIE:b0"); }, "0TIE:b0: comes before 0RED:b0");
  c.refused([](Programs& p) { swap(p[0], "0OPT", "0TIE:b0"); }, "0OPT: comes before 0TIE:b0");
  c.refused([](Programs& p) { p[0].actions.push_back(parse_action("0RED:b0")); }, "0RED:b0: happens twice");
  c.refused([](Programs& p) { replace(p[0], "0RED:b0", "0RED:b1"); }, "0RED:b1: stage 0 has 1 buckets");
  c.refused([](Programs& p) { replace(p[0], "0TIE:b0", "0TIE:b1"); }, "0TIE:b1: there is no such tie");
  c.refused([](Programs& p) { p[1].actions.insert(p[1].actions.end() - 1, parse_action("1TIE:b0")); },
            "1TIE:b0: the stage has no use of it");
}

TEST_CASE("collectives in another order on ranks that share them are caught") {
  // A tensor parallel pair a place, two buckets.
  Case pair = make_case(make_chain(2, 1, 3, all_train(2), 2), {.policy = Policy::one_f_one_b});
  pair.end.buckets = {2, 2};
  PassOptions pass;
  pass.end = pair.end;
  pair.programs = make_programs(pair.p.graph, generate(pair.p.shape, {}), pass);
  REQUIRE_NOTHROW(verify(pair.p.graph, pair.programs, pair.options()));
  pair.refused([](Programs& p) { swap(p[3], "1RED:b0", "1RED:b1"); },
               "program of rank 3: 1RED:b1: rank 2 of the same stage runs 1RED:b0 there");
  pair.refused([](Programs& p) { move_before(p[0], "0F2", "0B0"); }, "of the same stage runs");
  // Collectives of two stages on the same two ranks.
  Case shared = make_case(make_pipeline({0, 0}, {{0, 1}}, all_train(2), 2, 2), {.policy = Policy::one_f_one_b});
  shared.refused([](Programs& p) { swap(p[1], "0RED:b0", "1RED:b0"); }, "of the same stage runs");
  // Ties of stages on different ranks.
  Case tied = make_case(make_chain(3, 1, 2, all_train(3)), {.policy = Policy::one_f_one_b});
  tied.end.ties = {{0, 2}, {0, 2}};
  pass.end = tied.end;
  tied.programs = make_programs(tied.p.graph, generate(tied.p.shape, {}), pass);
  REQUIRE_NOTHROW(verify(tied.p.graph, tied.programs, tied.options()));
  tied.refused([](Programs& p) { swap(p[2], "2TIE:b0", "2TIE:b1"); }, "never end");
}

TEST_CASE("every single action of a program is necessary and allowed once") {
  const std::vector<Case> cases = [] {
    std::vector<Case> list;
    list.push_back(make_case(make_chain(3, 1, 4, all_train(3)), {.policy = Policy::one_f_one_b}, true));
    list.push_back(make_case(make_chain(2, 2, 3, all_train(4)), {.policy = Policy::interleaved}, true));
    list.push_back(make_case(make_chain(3, 1, 4, {false, true, false}), {.policy = Policy::zero_bubble}));
    list.push_back(make_case(make_chain(2, 1, 3, all_train(2), 2), {.policy = Policy::gpipe}));
    list.push_back(make_case(make_join({1, 2}, 2, {}, 3), {.policy = Policy::list}));
    list.push_back(
        make_case(make_pipeline({0, 0, 0}, {{0, 2}, {1, 2}}, {false, true, true}, 2), {.policy = Policy::one_f_one_b}));
    return list;
  }();
  for (const Case& c : cases) {
    for (std::size_t r = 0; r < c.programs.size(); ++r) {
      for (std::size_t i = 0; i < c.programs[r].actions.size(); ++i) {
        INFO(to_string(c.programs[r]) << ": " << to_string(c.programs[r].actions[i]));
        Programs changed = c.programs;
        auto& actions = changed[r].actions;
        const auto at = actions.begin() + static_cast<std::ptrdiff_t>(i);
        const Action twice = *at;
        actions.erase(at);
        REQUIRE_THROWS_AS(verify(c.p.graph, changed, c.options()), std::logic_error);
        actions.insert(actions.begin() + static_cast<std::ptrdiff_t>(i), 2, twice);
        REQUIRE_THROWS_AS(verify(c.p.graph, changed, c.options()), std::logic_error);
      }
    }
  }
}

TEST_CASE("blocks in flight keep the caps that memory was taken for") {
  const Case c = make_case(make_chain(4, 1, 8, all_train(4)), {.policy = Policy::one_f_one_b});
  VerifyOptions options = c.options();
  for (int s = 0; s < 4; ++s)
    options.caps.push_back(live_blocks(c.p.graph, c.programs[static_cast<std::size_t>(s)], s));
  REQUIRE_NOTHROW(verify(c.p.graph, c.programs, options));
  options.caps[1].kept -= 1;
  REQUIRE_THROWS_WITH(verify(c.p.graph, c.programs, options),
                      Contains("program of rank 1: stage 1 has 3 blocks kept (F to I) at once, its cap is 2"));
  options.caps[1].kept += 1;
  options.caps[2].ports -= 1;
  REQUIRE_THROWS_WITH(verify(c.p.graph, c.programs, options), Contains("in its ports at once"));
}

TEST_CASE("a look-ahead block is made once, by the step before") {
  Pipeline p = make_chain(2, 1, 2, {false, true});
  const std::vector<Action> before = {parse_action("0F0")};
  Programs programs = {parse_program("rank 0: 0SEND0@e0 0F1 0SEND1@e0 0F0+1"),
                       parse_program("rank 1: 1RECV0@e0 1F0 1B0 1RECV1@e0 1F1 1B1")};
  REQUIRE_NOTHROW(verify(p.graph, programs, before));
  REQUIRE_THROWS_WITH(verify(p.graph, programs), Contains("0F0: is missing"));
  programs[0].actions.push_back(parse_action("0F0+1"));
  REQUIRE_THROWS_WITH(verify(p.graph, programs, before), Contains("0F0+1: happens twice"));
  programs[0].actions.back() = parse_action("0F0");
  REQUIRE_THROWS_WITH(verify(p.graph, programs, before), Contains("0F0: was made by the previous step already"));
}
