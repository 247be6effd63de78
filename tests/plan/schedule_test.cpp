#include "parallel/plan/schedule.h"
#include "core/error.h"
#include "parallel/plan/passes.h"
#include "pipelines.h"

#include <catch2/catch.hpp>

#include <string>

using namespace mmt;
using namespace mmt::plan;
using namespace mmt::testing;

namespace {

std::string text(const std::vector<Program>& programs) {
  std::string all;
  for (const Program& p : programs) all += to_string(p) + "\n";
  return all;
}

std::vector<bool> all_train(int stages) { return std::vector<bool>(static_cast<std::size_t>(stages), true); }

}  // namespace

TEST_CASE("policies have the names of the config") {
  for (const char* name : {"gpipe", "1f1b", "interleaved", "zero-bubble", "list"}) {
    REQUIRE(std::string(name_of(parse_policy(name).value())) == name);
  }
  REQUIRE_FALSE(parse_policy("2f2b").has_value());
}

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

TEST_CASE("all schedules of small chains pass the verifier") {
  int cases = 0;
  for (int places = 1; places <= 4; ++places) {
    for (int chunks = 1; chunks <= 2; ++chunks) {
      if (places * chunks == 2 && chunks == 2) continue;  // one place never has two chunks
      for (int blocks = 1; blocks <= 8; ++blocks) {
        const int stages = places * chunks;
        for (int pattern = 0; pattern < (1 << stages); ++pattern) {
          std::vector<bool> trains;
          for (int s = 0; s < stages; ++s) trains.push_back((pattern >> s & 1) != 0);
          const Pipeline p = make_chain(places, chunks, blocks, trains);
          for (const Policy policy :
               {Policy::gpipe, Policy::one_f_one_b, Policy::interleaved, Policy::zero_bubble, Policy::list}) {
            const bool wants_chunks = policy == Policy::interleaved;
            const bool takes_any = policy == Policy::gpipe || policy == Policy::list;
            if (!takes_any && wants_chunks != (chunks > 1)) continue;
            for (const ZeroBubbleMemory memory : {ZeroBubbleMemory::h1, ZeroBubbleMemory::h2}) {
              if (policy != Policy::zero_bubble && memory == ZeroBubbleMemory::h2) continue;
              INFO(name_of(policy) << " of " << places << " places, " << chunks << " chunks, " << blocks << " blocks, "
                                   << pattern);
              const std::vector<Program> programs = programs_of(p, {.policy = policy, .memory = memory});
              REQUIRE_NOTHROW(verify(p.graph, programs));
              ++cases;
            }
          }
        }
      }
    }
  }
  REQUIRE(cases > 8000);
}
