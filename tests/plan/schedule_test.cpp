#include "parallel/plan/schedule.h"
#include "core/error.h"
#include "parallel/plan/passes.h"
#include "parallel/plan/simulate.h"
#include "pipelines.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <random>
#include <string>

using namespace mmt;
using namespace mmt::plan;
using namespace mmt::testing;
using Catch::Matchers::Contains;

namespace {

/// F, I and W take 1 each.
ActionCost equal_costs(std::span<const Program> programs, const Pipeline& p) {
  return cost_of_stages(programs, std::vector<StageTimes>(p.graph.stages.size(), {.blocks = {{1, 1, 1, 0}}}));
}

}  // namespace

TEST_CASE("policies have the names of the config") {
  for (const char* name : {"gpipe", "1f1b", "interleaved", "zero-bubble", "list"}) {
    REQUIRE(std::string(name_of(parse_policy(name).value())) == name);
  }
  REQUIRE_FALSE(parse_policy("2f2b").has_value());
}

TEST_CASE("all schedules of small chains pass the verifier") {
  int cases = 0;
  for (int places = 1; places <= 4; ++places) {
    for (int chunks = 1; chunks <= 2; ++chunks) {
      if (places == 1 && chunks == 2) continue;  // stages that follow each other on one place are one chunk
      for (int blocks = 1; blocks <= 8; ++blocks) {
        const int stages = places * chunks;
        for (int pattern = 0; pattern < (1 << stages); ++pattern) {
          std::vector<bool> trains;
          for (int s = 0; s < stages; ++s) trains.push_back((pattern >> s & 1) != 0);
          const Pipeline p = make_chain(places, chunks, blocks, trains);
          const StepEnd end = end_of(p);
          for (const Policy policy :
               {Policy::gpipe, Policy::one_f_one_b, Policy::interleaved, Policy::zero_bubble, Policy::list}) {
            const bool takes_any = policy == Policy::gpipe || policy == Policy::list;
            if (!takes_any && (policy == Policy::interleaved) != (chunks > 1)) continue;
            for (const ZeroBubbleMemory memory : {ZeroBubbleMemory::h1, ZeroBubbleMemory::h2}) {
              if (policy != Policy::zero_bubble && memory == ZeroBubbleMemory::h2) continue;
              INFO(name_of(policy) << " of " << places << " places, " << chunks << " chunks, " << blocks << " blocks, "
                                   << pattern);
              // 1f1b and gpipe end without any buffer, too.
              const bool bare = chunks == 1 && (policy == Policy::one_f_one_b || policy == Policy::gpipe);
              const std::vector<Program> programs = programs_of(p, {.policy = policy, .memory = memory});
              REQUIRE_NOTHROW(verify(p.graph, programs, {.end = &end, .strict = bare, .serial = bare}));
              ++cases;
            }
          }
        }
      }
    }
  }
  REQUIRE(cases == 8 * (2 + 4 + 8 + 16) * 5 + 8 * (16 + 64 + 256) * 3);
}

TEST_CASE("encoder chains of unequal depth that join or leave the LLM neither stall nor hang") {
  for (int img = 1; img <= 4; ++img) {
    for (int aud = 0; aud <= 4; ++aud) {
      for (int llm = 1; llm <= 4; ++llm) {
        for (const std::vector<int>& forks : std::vector<std::vector<int>>{{}, {1, 2}, {3, 1}}) {
          for (const int blocks : {1, 2, 3, 5, 8, 16}) {
            Pipeline p = make_join({img, aud}, llm, forks, blocks);
            const StepEnd end = end_of(p);
            const bool joins = forks.empty();
            const int depth = std::max(img, aud) + llm + (joins ? 0 : *std::ranges::max_element(forks));
            for (const Policy policy : {Policy::gpipe, Policy::one_f_one_b, Policy::zero_bubble, Policy::list}) {
              INFO(name_of(policy) << ": " << img << " and " << aud << " into " << llm << ", " << forks.size()
                                   << " forks, " << blocks << " blocks");
              p.graph.credits = 2;
              const std::vector<Program> programs = programs_of(p, {.policy = policy});
              // Joins need no buffer under 1f1b; where branches of unequal depth leave a stage, a message must wait.
              const bool bare = joins && (policy == Policy::one_f_one_b || policy == Policy::gpipe);
              REQUIRE_NOTHROW(verify(p.graph, programs, {.end = &end, .strict = bare, .serial = bare}));
              if (policy == Policy::one_f_one_b || policy == Policy::gpipe) {
                p.graph.credits = 1;
                REQUIRE_NOTHROW(verify(p.graph, programs, {.end = &end}));
              }
              // Nothing stalls: the step takes what a chain as deep as the longest way takes.
              const Ns time = simulate(p.graph, programs, equal_costs(programs, p)).makespan;
              if (policy == Policy::zero_bubble) {
                REQUIRE(time <= 3 * (blocks + depth - 1));
              } else {
                REQUIRE(time == 3 * (blocks + depth - 1));
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("warm-up counts places to the sink: published counts of two encoders and an LLM") {
  // Encoders of 1 and 2 places before an LLM of 3: forwards before the first backward.
  const Pipeline p = make_join({1, 2}, 3, {}, 8);
  REQUIRE(distances_to_sink(p.shape) == std::vector<int>{3, 4, 3, 2, 1, 0});
  const std::vector<Program> programs = programs_of(p, {});
  const std::vector<int> expected = {4, 5, 4, 3, 2, 1};
  for (std::size_t r = 0; r < programs.size(); ++r) {
    int forwards = 0;
    for (const Action& a : programs[r].actions) {
      if (a.kind == Kind::backward) break;
      forwards += a.kind == Kind::forward ? 1 : 0;
    }
    REQUIRE(forwards == expected[r]);
    REQUIRE(live_blocks(p.graph, programs[r], static_cast<int>(r)).kept == expected[r]);
  }
}

TEST_CASE("zero-bubble keeps the blocks of its memory mode and idles as long as is known") {
  for (int places = 1; places <= 6; ++places) {
    for (int blocks = 2 * places - 1; blocks <= 2 * places + 8; blocks += 3) {
      const Pipeline p = make_chain(places, 1, blocks, all_train(places));
      for (const ZeroBubbleMemory memory : {ZeroBubbleMemory::h1, ZeroBubbleMemory::h2}) {
        const bool h2 = memory == ZeroBubbleMemory::h2;
        INFO(places << " places, " << blocks << " blocks, h" << (h2 ? 2 : 1));
        const std::vector<Program> programs = programs_of(p, {.policy = Policy::zero_bubble, .memory = memory});
        for (int s = 0; s < places; ++s) {
          const LiveBlocks live = live_blocks(p.graph, programs[static_cast<std::size_t>(s)], s);
          const int distance = places - 1 - s;
          REQUIRE(live.kept <= (h2 ? 2 * distance + 1 : distance + 1));
          REQUIRE(live.held <= (h2 ? 2 * places - 1 : places));
        }
        // 1f1b idles (p - 1)(F + I + W). F = I = W = 1: H1 idles p - 1; under H2 no place idles between its first and
        // last action (Qi et al. 2023, table 2).
        const Timeline t = simulate(p.graph, programs, equal_costs(programs, p));
        REQUIRE(t.makespan == 3 * blocks + places - 1);
        for (const RankTimeline& r : t.ranks) {
          if (!h2) continue;
          Ns first = t.makespan, last = 0;
          for (const TimelineRow& row : r.rows) {
            if (row.end == row.start) continue;
            first = std::min(first, row.start);
            last = std::max(last, row.end);
          }
          REQUIRE(last - first == 3 * blocks);
        }
      }
    }
  }
}

TEST_CASE("interleaved chunks shorten the bubble by their number, also with blocks that places do not divide") {
  for (int places = 2; places <= 6; ++places) {
    for (int chunks = 2; chunks <= 3; ++chunks) {
      for (int blocks = 1; blocks <= 3 * places + 1; ++blocks) {
        Pipeline p = make_chain(places, chunks, blocks, all_train(places * chunks));
        p.graph.credits = credits_needed(p.shape, Policy::interleaved);
        const std::vector<Program> programs = programs_of(p, {.policy = Policy::interleaved});
        INFO(places << " places, " << chunks << " chunks, " << blocks << " blocks, " << p.graph.credits << " credits");
        REQUIRE_NOTHROW(verify(p.graph, programs));
        p.graph.credits = blocks;  // so that no send waits
        const Ns time = simulate(p.graph, programs, equal_costs(programs, p)).makespan;
        // With fewer blocks than places every chunk waits for the first block to come round.
        const int filled = std::max(blocks, places);
        REQUIRE(time == 3 * (blocks + (chunks - 1) * filled + places - 1));
      }
    }
  }
  // What the credits are for.
  const Pipeline few = make_chain(4, 2, 11, all_train(8));
  REQUIRE(credits_needed(few.shape, Policy::interleaved) == 3);
  REQUIRE_THROWS_WITH(programs_of(few, {.policy = Policy::interleaved}),
                      Contains("11 blocks need 3 messages of an edge under way and there are 2 credits"));
  ScheduleOptions more{.policy = Policy::interleaved};
  more.credits = 3;
  const std::vector<Program> programs =
      make_programs(few.graph, generate(few.shape, more), {.boundary = Boundary::sends_first, .end = end_of(few)});
  REQUIRE_THROWS_WITH(verify(few.graph, programs), Contains("never end"));
}

TEST_CASE("places with chunks and places before and behind them make one schedule") {
  // Two encoder places, three LLM places with two chunks, one generator place.
  const std::vector<int> places = {0, 1, 2, 3, 4, 2, 3, 4, 5};
  std::vector<std::pair<int, int>> links;
  for (int s = 1; s < 9; ++s) links.emplace_back(s - 1, s);
  for (const std::vector<bool>& trains : {all_train(9),
                                          {true, true, false, false, false, false, false, false, false},
                                          {false, false, true, true, true, true, true, true, true},
                                          {false, true, false, false, false, false, false, false, true}}) {
    for (int blocks = 1; blocks <= 16; ++blocks) {
      Pipeline p = make_pipeline(places, links, trains, blocks);
      p.graph.credits = credits_needed(p.shape, Policy::interleaved);
      INFO(blocks << " blocks");
      REQUIRE_NOTHROW(verify(p.graph, programs_of(p, {.policy = Policy::interleaved})));
      REQUIRE_NOTHROW(verify(p.graph, programs_of(p, {.policy = Policy::gpipe})));
      REQUIRE_NOTHROW(verify(p.graph, programs_of(p, {.policy = Policy::list})));
    }
  }
}

TEST_CASE("two encoders and the LLM dealt out to places in rounds are interleaved whatever their depths") {
  for (int eyes = 0; eyes <= 5; ++eyes) {
    for (int ears = 0; eyes + ears <= 5; ++ears) {
      for (const bool encoders_train : {true, false}) {
        for (const int blocks : {1, 3, 4, 5, 8, 11}) {
          std::vector<int> places, chunks;
          std::vector<std::pair<int, int>> links;
          std::vector<bool> trains;
          for (int s = 0; s < 6; ++s) {
            places.push_back(s % 3);
            chunks.push_back(s / 3);
            trains.push_back(s >= eyes + ears || encoders_train);
            if (s != 0 && s != eyes && s != eyes + ears) links.emplace_back(s - 1, s);
            if (s == eyes + ears && eyes > 0) links.emplace_back(eyes - 1, s);
            if (s == eyes + ears && ears > 0) links.emplace_back(eyes + ears - 1, s);
          }
          Pipeline p = make_pipeline(places, links, trains, blocks);
          p.shape = shape_of(p.graph, places, {}, chunks);
          for (const Policy policy : {Policy::interleaved, Policy::gpipe}) {
            INFO(name_of(policy) << ": " << eyes << " and " << ears << " of 6 stages, " << blocks << " blocks");
            p.graph.credits = credits_needed(p.shape, policy);
            REQUIRE_NOTHROW(verify(p.graph, programs_of(p, {.policy = policy})));
          }
        }
      }
    }
  }
}

TEST_CASE("1f1b and zero-bubble of random graphs cut into consecutive places end with two credits") {
  std::mt19937 random(11);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 2000; ++round) {
    const int stages = 1 + below(8), num_places = 1 + below(std::min(stages, 5));
    std::vector<int> places;
    std::vector<std::pair<int, int>> links;
    std::vector<bool> trains;
    for (int s = 0; s < stages; ++s) {
      places.push_back(s * num_places / stages);
      trains.push_back(below(3) > 0);
      for (int u = 0; u < s; ++u) {
        if (below(stages) < 2) links.emplace_back(u, s);
      }
    }
    const Pipeline p = make_pipeline(places, links, trains, 1 + below(9));
    INFO("round " << round);
    for (const Policy policy : {Policy::one_f_one_b, Policy::zero_bubble}) {
      REQUIRE_NOTHROW(verify(p.graph, programs_of(p, {.policy = policy})));
    }
  }
}

TEST_CASE("places that hold the end of one module and the start of the next run 1f1b without buffers") {
  // eyes 0 1 | 2 and the first LLM stage share place 1; ears join there from a place of their own.
  const Pipeline p = make_pipeline({0, 1, 3, 1, 2}, {{0, 1}, {1, 3}, {2, 3}, {3, 4}}, all_train(5), 6);
  const StepEnd end = end_of(p);
  const std::vector<Program> programs = programs_of(p, {});
  REQUIRE_NOTHROW(verify(p.graph, programs, {.end = &end, .strict = true, .serial = true}));
  REQUIRE(distances_to_sink(p.shape) == std::vector<int>{2, 1, 0, 2});
}

TEST_CASE("list schedules of random graphs, places, costs and credits end") {
  std::mt19937 random(7);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 2000; ++round) {
    const int stages = 1 + below(8), num_places = 1 + below(std::min(stages, 4));
    std::vector<int> places;
    std::vector<std::pair<int, int>> links;
    std::vector<bool> trains;
    for (int s = 0; s < stages; ++s) {
      places.push_back(s < num_places ? s : below(num_places));
      trains.push_back(below(3) > 0);
      for (int u = 0; u < s; ++u) {
        if (below(stages) < 2) links.emplace_back(u, s);
      }
    }
    Pipeline p = make_pipeline(places, links, trains, 1 + below(6));
    p.graph.credits = 1 + below(3);
    std::vector<std::int64_t> costs(static_cast<std::size_t>(stages * 6 * 16));
    for (auto& c : costs) c = below(4) == 0 ? 0 : below(30);
    ScheduleOptions options{.policy = Policy::list};
    options.split_backward = below(2) == 0;
    options.credits = p.graph.credits;
    options.cost = [&](Kind kind, int stage, int block) {
      return costs[static_cast<std::size_t>((static_cast<int>(kind) * stages + stage) * 6 + block)];
    };
    if (below(2) == 0) {
      for (int i = 0; i < num_places; ++i) options.in_flight.push_back(1 + below(4));
    }
    const StepEnd end = end_of(p);
    INFO("round " << round);
    const std::vector<Program> programs = programs_of(p, options);
    REQUIRE_NOTHROW(verify(p.graph, programs, {.end = &end}));
    for (const Program& program : programs) {
      for (const StageInfo& s : p.graph.stages) {
        if (options.in_flight.empty() || s.ranks[0] != program.rank) continue;
        REQUIRE(live_blocks(p.graph, program, s.id).held <= options.in_flight[static_cast<std::size_t>(program.rank)]);
      }
    }
  }
}

TEST_CASE("list schedules follow unequal costs: no slower than 1f1b and faster where it waits") {
  // The middle stage costs three times as much for every other block.
  const Pipeline p = make_chain(3, 1, 12, all_train(3));
  const auto time_of = [](int stage, int block) { return stage == 1 && block % 2 == 1 ? 9 : 3; };
  ScheduleOptions options{.policy = Policy::list};
  options.cost = [&](Kind kind, int stage, int block) {
    return kind == Kind::backward ? 2 * time_of(stage, block) : time_of(stage, block);
  };
  const auto makespan = [&](const ScheduleOptions& o) {
    const std::vector<Program> programs = programs_of(p, o);
    return simulate(p.graph, programs,
                    [&](int, const Action& a) -> Ns {
                      if (a.kind != Kind::forward && a.kind != Kind::backward) return 0;
                      return options.cost(a.kind, a.stage, a.block);
                    })
        .makespan;
  };
  const Ns plain = makespan({});
  REQUIRE(makespan(options) <= plain);
  options.in_flight = {6, 5, 4};  // room to run ahead of the costly blocks
  REQUIRE(makespan(options) < plain);
}

TEST_CASE("64 places and 256 blocks: all policies are generated and verified") {
  const std::size_t expected = 64 * 256 * 2 + 63 * 256 * 4 + 64 * 2;
  for (const Policy policy : {Policy::gpipe, Policy::one_f_one_b, Policy::zero_bubble, Policy::list}) {
    const Pipeline p = make_chain(64, 1, 256, all_train(64));
    const StepEnd end = end_of(p);
    const std::vector<Program> programs = programs_of(p, {.policy = policy});
    std::size_t actions = 0;
    for (const Program& program : programs) actions += program.actions.size();
    REQUIRE(actions == expected + (policy == Policy::zero_bubble ? 64 * 256 : 0));
    REQUIRE_NOTHROW(verify(p.graph, programs, {.end = &end}));
  }
  Pipeline p = make_chain(32, 2, 256, all_train(64));
  p.graph.credits = credits_needed(p.shape, Policy::interleaved);
  REQUIRE_NOTHROW(verify(p.graph, programs_of(p, {.policy = Policy::interleaved})));
}

TEST_CASE("shapes that a policy cannot serve are refused with what to choose") {
  const Pipeline chunks = make_chain(2, 2, 2, all_train(4));
  REQUIRE_THROWS_WITH(generate(chunks.shape, {.policy = Policy::one_f_one_b}),
                      Contains("place 0 has 2 chunks") && Contains("choose policy interleaved or list"));
  REQUIRE_THROWS_WITH(generate(chunks.shape, {.policy = Policy::zero_bubble}), Contains("or policy list"));
  const Pipeline plain = make_chain(2, 1, 2, all_train(2));
  REQUIRE_THROWS_WITH(generate(plain.shape, {.policy = Policy::interleaved}), Contains("set chunks to 2 or more"));
  // Place 0 has three chunks, place 1 two.
  const Pipeline uneven = make_pipeline({0, 1, 0, 1, 0}, {{0, 1}, {1, 2}, {2, 3}, {3, 4}}, all_train(5), 2);
  REQUIRE_THROWS_WITH(generate(uneven.shape, {.policy = Policy::interleaved}), Contains("deal the stages out evenly"));
  // Two chains that run through the places in opposite directions.
  const Pipeline crossed = make_pipeline({0, 1, 1, 0}, {{0, 1}, {2, 3}}, all_train(4), 2);
  REQUIRE_THROWS_AS(generate(crossed.shape, {}), ConfigError);
  REQUIRE_THROWS_WITH(generate(crossed.shape, {}), Contains("feed each other") && Contains("choose policy list"));
  REQUIRE_NOTHROW(verify(crossed.graph, programs_of(crossed, {.policy = Policy::list})));
  PipelineShape backwards = plain.shape;
  backwards.links = {{1, 0, true}};
  REQUIRE_THROWS_WITH(generate(backwards, {}), Contains("topological order"));
}
