#include "parallel/plan/choose.h"
#include "parallel/plan/lifetimes.h"
#include "parallel/plan/verify.h"
#include "pipelines.h"

#include <catch2/catch.hpp>

using namespace mmt;
using namespace mmt::plan;
using namespace mmt::testing;
using Catch::Matchers::Contains;

namespace {

/// A chain of places with F = I = W = 10 ms and `bytes` a block between F and I.
ScheduleProblem problem_of(const Pipeline& p, std::int64_t bytes) {
  ScheduleProblem problem;
  problem.graph = &p.graph;
  for (const auto& s : p.shape.stages) problem.places.push_back(s.place);
  problem.times.assign(p.graph.stages.size(), {.blocks = {{10 * kMs, 10 * kMs, 10 * kMs, 0}}});
  BlockBytes block;
  block.kept = bytes;
  problem.simulate.block_bytes.assign(p.graph.stages.size(), block);
  problem.simulate.fixed_bytes.assign(p.graph.stages.size(), 8 * kMiB);
  return problem;
}

const ScheduleTrial& trial(const ScheduleChoice& choice, const std::string& name) {
  return *std::ranges::find(choice.trials, name, &ScheduleTrial::name);
}

}  // namespace

TEST_CASE("without a limit of memory the fastest schedule is chosen and every time is told") {
  const Pipeline p = make_chain(4, 1, 8, all_train(4));
  const ScheduleProblem problem = problem_of(p, kMiB);
  const ScheduleChoice choice = choose_schedule({&problem, 1}, all_schedules());
  REQUIRE(choice.trials.size() == all_schedules().size());
  REQUIRE(trial(choice, "1f1b").makespan == (8 + 3) * 30 * kMs);
  REQUIRE(trial(choice, "gpipe").makespan == (8 + 3) * 30 * kMs);
  REQUIRE(trial(choice, "1f1b").bubble == Approx(3.0 / 11));
  // ZB-H1 of the zero-bubble paper with F = I = W: (p - 1)(F + I - W) of idle time instead of (p - 1)(F + I + W).
  REQUIRE(trial(choice, "zero-bubble h1").makespan <= (8 * 30 + 3 * 20) * kMs);
  const ScheduleTrial& best = choice.trials[static_cast<std::size_t>(choice.best)];
  for (const ScheduleTrial& t : choice.trials) {
    if (t.refused.empty()) REQUIRE(best.makespan <= t.makespan);
  }
  REQUIRE_THAT(choice.reason, Catch::Matchers::StartsWith(best.name + " " + duration_text(best.makespan) + "; "));
  REQUIRE_THAT(choice.reason, Contains("1f1b 330 ms") && Contains("gpipe 330 ms"));
  REQUIRE_FALSE(trial(choice, "interleaved").refused.empty());
  REQUIRE_THAT(choice.reason, !Contains("interleaved"));
}

TEST_CASE("a limit of memory rules schedules out and says what they need") {
  const Pipeline p = make_chain(4, 1, 8, all_train(4));
  const ScheduleProblem problem = problem_of(p, kMiB);
  // 1f1b keeps 4 blocks at the first place: 12 MiB with the fixed 8; gpipe keeps 8.
  std::vector<std::int64_t> memory{12 * kMiB};
  ScheduleChoice choice = choose_schedule({&problem, 1}, all_schedules(), memory);
  REQUIRE(trial(choice, "1f1b").fits());
  REQUIRE_FALSE(trial(choice, "gpipe").fits());
  REQUIRE((trial(choice, "gpipe").memory == 16 * kMiB && trial(choice, "gpipe").limit == 12 * kMiB));
  REQUIRE_THAT(choice.reason, Contains("gpipe needs 16.0 MiB of 12.0 MiB on rank 0"));
  // By rank: only the last one is short, where 1f1b has one block.
  memory = {100 * kMiB, 100 * kMiB, 100 * kMiB, 9 * kMiB};
  choice = choose_schedule({&problem, 1}, all_schedules(), memory);
  REQUIRE(trial(choice, "1f1b").fits());
  REQUIRE((!trial(choice, "gpipe").fits() && trial(choice, "gpipe").fullest == 3));
  // Nothing fits.
  memory = {8 * kMiB};
  choice = choose_schedule({&problem, 1}, all_schedules(), memory);
  REQUIRE(choice.best == -1);
  REQUIRE_THAT(choice.reason, Contains("1f1b needs 12.0 MiB of 8.0 MiB on rank 0") && Contains("gpipe needs"));
}

TEST_CASE("interleaved is tried on its own cut and equally fast schedules go to the simpler one") {
  const Pipeline plain = make_chain(2, 1, 4, all_train(2)), chunks = make_chain(2, 2, 4, all_train(4));
  std::vector<ScheduleProblem> problems{problem_of(plain, kMiB), problem_of(chunks, kMiB / 2)};
  for (StageTimes& t : problems[1].times) t.blocks[0] = {5 * kMs, 5 * kMs, 5 * kMs, 0};
  std::vector<ScheduleOptions> schedules(2);
  schedules[0].policy = Policy::interleaved;
  ScheduleChoice choice = choose_schedule(problems, schedules);
  REQUIRE(choice.trials.size() == 4);
  const ScheduleTrial& best = choice.trials[static_cast<std::size_t>(choice.best)];
  REQUIRE((best.name == "interleaved" && best.problem == 1));
  REQUIRE(best.makespan < (4 + 1) * 30 * kMs);  // half the bubble of 1f1b
  // The trial's options make the same programs again.
  const auto programs = programs_of(problems[1], best.options);
  verify(chunks.graph, programs);
  REQUIRE(simulate(problems[1], programs).makespan == best.makespan);

  schedules[0].policy = Policy::gpipe;
  choice = choose_schedule({problems.data(), 1}, schedules);
  REQUIRE(choice.trials[static_cast<std::size_t>(choice.best)].name == "gpipe");
}

TEST_CASE("list scheduling gains where blocks are unequal") {
  const Pipeline p = make_chain(3, 1, 6, all_train(3));
  ScheduleProblem problem = problem_of(p, kMiB);
  for (StageTimes& t : problem.times) {
    t.blocks.clear();
    for (int b = 0; b < 6; ++b) t.blocks.push_back({(b % 3 + 1) * 10 * kMs, (b % 3 + 1) * 10 * kMs, 10 * kMs, 0});
  }
  const ScheduleChoice choice = choose_schedule({&problem, 1}, all_schedules());
  const ScheduleTrial& best = choice.trials[static_cast<std::size_t>(choice.best)];
  REQUIRE(best.makespan <= trial(choice, "1f1b").makespan);
  Ns work = 0;  // of one place: nothing is faster
  for (const LayerTime& t : problem.times[0].blocks) work += t.total();
  REQUIRE(best.makespan > work);
}

TEST_CASE("durations and bytes read well") {
  REQUIRE(duration_text(999) == "999 ns");
  REQUIRE(duration_text(1'500) == "1.5 us");
  REQUIRE(duration_text(2'345'000) == "2.35 ms");
  REQUIRE(duration_text(812 * kMs) == "812 ms");
  REQUIRE(duration_text(1'240 * kMs) == "1.24 s");
  REQUIRE(duration_text(75'000 * kMs) == "75.0 s");
  REQUIRE(bytes_text(12) == "12 B");
  REQUIRE(bytes_text(1536) == "1.5 KiB");
  REQUIRE(bytes_text(3 * kMiB) == "3.0 MiB");
  REQUIRE(bytes_text(3174 * kMiB) == "3.1 GiB");
}
