#include "parallel/plan/auto_plan.h"
#include "core/error.h"
#include "parallel/plan/verify.h"
#include "pipelines.h"

#include <catch2/catch.hpp>

using namespace mmt;
using namespace mmt::plan;
using namespace mmt::testing;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

namespace {

std::vector<PlannedLayer> layers(int count, LayerTime time, bool backward, std::int64_t held) {
  PlannedLayer l;
  l.time = time;
  l.backward = backward;
  l.trains = time.backward_weight > 0;
  l.held = held;
  l.out_bytes = kMiB / 64;
  l.grad_bytes = backward ? kMiB / 64 : 0;
  return std::vector<PlannedLayer>(static_cast<std::size_t>(count), l);
}

/// Frozen eyes, a projector that trains, an LLM that trains.
std::vector<ModuleLayers> modules() {
  std::vector<ModuleLayers> m(2);
  m[0] = {.name = "eyes", .layers = layers(24, {.forward = kMs}, false, 0)};
  m[0].projector = layers(1, {kMs / 10, 0, kMs / 10, 0}, true, kMiB / 8);
  m[0].side = ProjectorSide::either;
  m[1] = {.name = "llm", .layers = layers(16, {2 * kMs, 2 * kMs, 2 * kMs, 0}, true, kMiB)};
  return m;
}

/// The plan's programs are proven and take as long as it says, and no other trial was better.
void check(const AutoPlan& plan) {
  StepEnd end;
  for (const StageInfo& s : plan.pipeline.graph.stages) end.buckets.push_back(s.has_weight_grads ? 1 : 0);
  VerifyOptions options;
  options.end = &end;
  verify(plan.pipeline.graph, plan.programs, options);
  Ns best = 0;
  for (const ScheduleTrial& t : plan.trials) {
    if (!t.fits()) continue;
    REQUIRE(plan.timeline.makespan <= t.makespan);
    best = best == 0 ? t.makespan : std::min(best, t.makespan);
  }
  REQUIRE(plan.timeline.makespan == best);
  REQUIRE_THAT(plan.reason, Contains(name_of(plan.schedule) + " " + duration_text(best)));
}

}  // namespace

TEST_CASE("stages and schedule of a chain are planned with the reason") {
  AutoOptions options;
  options.num_blocks = 8;
  const Chain chain = joined_chain(modules());
  const AutoPlan plan = plan_chain(chain, 4, options);
  check(plan);
  REQUIRE(plan.cuts.size() == 1);
  int sum = 0;
  for (const PlaceCost& p : plan.cuts[0].places) sum += p.count;
  REQUIRE(sum == 41);
  REQUIRE_THAT(plan.reason, StartsWith("4 places of ") && Contains("cut by forward time:") && Contains("1f1b"));
  // Whatever won is at most one schedule of the plain cut, and no faster than the work allows.
  const Cut plain = cut_chain(chain, 4);
  REQUIRE(plan.timeline.makespan >= (24 * kMs + kMs / 5 + 16 * 6 * kMs) * 8 / 4);
  REQUIRE(plan.timeline.makespan <= (8 + 3) * plain.bottleneck);
}

TEST_CASE("a limit of memory changes the plan and every rank keeps it") {
  AutoOptions options;
  options.num_blocks = 8;
  const Chain chain = joined_chain(modules());
  const AutoPlan open = plan_chain(chain, 4, options);
  std::int64_t needs = 0;
  for (const RankTimeline& r : open.timeline.ranks) needs = std::max(needs, r.arenas);
  options.memory = {needs - 1};
  const AutoPlan tight = plan_chain(chain, 4, options);
  check(tight);
  REQUIRE(tight.timeline.makespan >= open.timeline.makespan);
  for (const RankTimeline& r : tight.timeline.ranks) REQUIRE(r.arenas < needs);
  REQUIRE_THAT(tight.reason, Contains(" needs ") && Contains(" on rank "));
  options.memory = {kMiB};
  REQUIRE_THROWS_WITH(plan_chain(chain, 4, options), Contains("no cut of 41 layers into 4 stages fits 1.0 MiB"));
}

TEST_CASE("modules on ranks of their own are planned with the reason") {
  AutoOptions options;
  options.num_blocks = 6;
  options.transfers.intra = {.overlapped = false, .latency = 1000, .bytes_per_us = 10'000};
  const auto m = modules();
  const AutoPlan plan = plan_modules(m, 5, options);
  check(plan);
  REQUIRE(plan.cuts.size() == 2);
  REQUIRE(plan.cuts[0].places.size() + plan.cuts[1].places.size() <= 5);
  REQUIRE_THAT(plan.reason, StartsWith("eyes 1, llm 4 places"));
  // The links reached the simulation, and the bytes came from the cut.
  REQUIRE(plan.pipeline.simulate.transfers.intra.latency == 1000);
  REQUIRE(plan.pipeline.simulate.transfers.row_bytes.at(0) == kMiB / 64);
  REQUIRE(plan.timeline.ranks.front().transfer > 0);
  REQUIRE_THROWS_WITH(plan_modules(m, 1, options), Contains("at least 2 (eyes 1 x 1, llm 1 x 1)"));
}

TEST_CASE("a single policy is kept and refused where it does not fit") {
  AutoOptions options;
  options.num_blocks = 4;
  options.chunks = 1;
  options.schedules = {{.policy = Policy::interleaved}};
  const Chain chain = joined_chain(modules());
  REQUIRE_THROWS_WITH(plan_chain(chain, 2, options), Contains("no schedule fits") && Contains("interleaved"));
  options.chunks = 2;
  const AutoPlan plan = plan_chain(chain, 2, options);
  check(plan);
  REQUIRE((plan.chunks == 2 && plan.schedule.policy == Policy::interleaved));
  REQUIRE(plan.cuts[0].places.size() == 4);
}
