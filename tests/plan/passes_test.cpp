// Programs as text: what passes make of schedules.
#include "parallel/plan/passes.h"
#include "pipelines.h"

#include <catch2/catch.hpp>

#include <string>

using namespace mmt;
using namespace mmt::plan;
using namespace mmt::testing;
using Catch::Matchers::Contains;

namespace {

std::string text(const std::vector<Program>& programs) {
  std::string all;
  for (const Program& p : programs) all += to_string(p) + "\n";
  return all;
}

}  // namespace

TEST_CASE("golden programs: 1f1b of two places orders each boundary by direction") {
  const Pipeline p = make_chain(2, 1, 3, all_train(2));
  REQUIRE(
      text(programs_of(p, {.policy = Policy::one_f_one_b})) ==
      "rank 0: 0F0 0SEND0@e0 0F1 0SEND1@e0 0RECV0@-e0 0B0 0F2 0SEND2@e0 0RECV1@-e0 0B1 0RECV2@-e0 0B2 0RED:b0 0OPT\n"
      "rank 1: 1RECV0@e0 1F0 1B0 1RECV1@e0 1SEND0@-e0 1F1 1B1 1RECV2@e0 1SEND1@-e0 1F2 1B2 1SEND2@-e0 1RED:b0 1OPT\n");
}

TEST_CASE("golden programs: gpipe") {
  const Pipeline p = make_chain(2, 1, 2, all_train(2));
  REQUIRE(text(programs_of(p, {.policy = Policy::gpipe})) ==
          "rank 0: 0F0 0SEND0@e0 0F1 0SEND1@e0 0RECV0@-e0 0B0 0RECV1@-e0 0B1 0RED:b0 0OPT\n"
          "rank 1: 1RECV0@e0 1F0 1RECV1@e0 1F1 1B0 1SEND0@-e0 1B1 1SEND1@-e0 1RED:b0 1OPT\n");
}

TEST_CASE("one place with all stages runs block by block and replaces a program of its own") {
  // Two encoders, the first one frozen, and the LLM.
  const Pipeline p = make_pipeline({0, 0, 0}, {{0, 2}, {1, 2}}, {false, true, true}, 2);
  ScheduleOptions options;
  REQUIRE(
      text(programs_of(p, options)) ==
      "rank 0: 0F0 1F0 2RECV0@e0 2RECV0@e1 2F0 2B0 1RECV0@-e1 1B0 0F1 1F1 2RECV1@e0 2RECV1@e1 2F1 2B1 1RECV1@-e1 1B1 "
      "2RED:b0 1RED:b0 2OPT\n");
}

TEST_CASE("golden programs: interleaved, two chunks on each of two places") {
  const Pipeline p = make_chain(2, 2, 2, all_train(4));
  REQUIRE(text(programs_of(p, {.policy = Policy::interleaved})) ==
          "rank 0: 0F0 0SEND0@e0 0F1 0SEND1@e0 2RECV0@e1 2F0 2SEND0@e2 2RECV1@e1 2F1 2SEND1@e2 2RECV0@-e2 2B0 "
          "2SEND0@-e1 2RECV1@-e2 2B1 2SEND1@-e1 0RECV0@-e0 0B0 0RECV1@-e0 0B1 2RED:b0 0RED:b0 2OPT\n"
          "rank 1: 1RECV0@e0 1F0 1SEND0@e1 1RECV1@e0 1F1 1SEND1@e1 3RECV0@e2 3F0 3B0 3SEND0@-e2 3RECV1@e2 3F1 3B1 "
          "3SEND1@-e2 1RECV0@-e1 1B0 1SEND0@-e0 1RECV1@-e1 1B1 1SEND1@-e0 3RED:b0 1RED:b0 3OPT\n");
}

TEST_CASE("golden programs: zero-bubble") {
  const Pipeline p = make_chain(2, 1, 3, all_train(2));
  REQUIRE(text(programs_of(p, {.policy = Policy::zero_bubble})) ==
          "rank 0: 0F0 0SEND0@e0 0F1 0SEND1@e0 0RECV0@-e0 0I0 0W0 0F2 0SEND2@e0 0RECV1@-e0 0I1 0W1 0RECV2@-e0 0I2 0W2 "
          "0RED:b0 0OPT\n"
          "rank 1: 1RECV0@e0 1F0 1I0 1SEND0@-e0 1RECV1@e0 1F1 1I1 1SEND1@-e0 1W0 1RECV2@e0 1F2 1I2 1SEND2@-e0 1W1 1W2 "
          "1RED:b0 1OPT\n");
}

TEST_CASE("an early recompute stands in front of the receive that it does not need") {
  Pipeline p = make_chain(2, 1, 1, all_train(2));
  p.shape = shape_of(p.graph, std::vector<int>{0, 1}, {true, false});
  REQUIRE(text(programs_of(p, {})) ==
          "rank 0: 0F0 0SEND0@e0 0R0 0RECV0@-e0 0B0 0RED:b0 0OPT\nrank 1: 1RECV0@e0 1F0 1B0 1SEND0@-e0 1RED:b0 1OPT\n");
}

TEST_CASE("passes: loads, reductions behind the last backward, and blocks that do not match one to one") {
  // One encoder block is read by both blocks of the LLM; the lane's second tensor rank carries rows of block 1 only.
  StageGraph g;
  g.stages = {{0, "eyes", {0, 1}, 1, true, true, true}, {1, "llm", {2}, 2, true, true, true}};
  g.edges = {{0, 0, 1, "eyes", true}};
  g.producers_of = {{{0}, {0}}};
  g.routes = {{{0, 0, {{0, 0, 0, 2, 0, 3, 0}}}, {0, 1, {{0, 0, 3, 2, 0, 2, 0}, {1, 0, 5, 2, 2, 1, 2}}}}};
  const std::vector<ComputeOrder> orders = {parse_program("rank 0: 0F0 0B0").actions,
                                            parse_program("rank 0: 1F0 1F1 1B0 1B1").actions};
  PassOptions options;
  options.end = {.buckets = {1, 2}, .ties = {{0, 1}}, .update = true};
  options.reduce_early = true;
  const std::vector<Program> programs = make_programs(g, orders, options);
  REQUIRE(text(programs) ==
          "rank 0: 0LOAD0 0F0 0SEND0@e0 0SEND1@e0 0RECV0@-e0 0RECV1@-e0 0B0 0RED:b0 0TIE:b0 0OPT\n"
          "rank 1: 0LOAD0 0F0 0SEND1@e0 0RECV0@-e0 0RECV1@-e0 0B0 0RED:b0 0TIE:b0 0OPT\n"
          "rank 2: 1RECV0@e0 1LOAD0 1F0 1RECV1@e0 1LOAD1 1F1 1B0 1SEND0@-e0 1B1 1SEND1@-e0 1RED:b0 1RED:b1 1TIE:b0 "
          "1OPT\n");
  REQUIRE_NOTHROW(verify(g, programs, {.end = &options.end, .strict = true, .serial = true}));
  const std::vector<ComputeOrder> twice = {orders[0], parse_program("rank 0: 1F0 1F1 1B0 1B1 0F0").actions};
  REQUIRE_THROWS_WITH(make_programs(g, twice, options), Contains("stage 0 stands in the orders of places 0 and 1"));
  g.stages[1].ranks = {1};
  REQUIRE_THROWS_WITH(make_programs(g, orders, options), Contains("rank 1 stands in places 0 and 1"));
}
