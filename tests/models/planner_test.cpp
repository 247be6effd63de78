// UnitPlanner refuses plans that do not fit together, and counts what it plans.
#include "tests/models/tiny.h"

#include "models/linear.h"

#include <catch2/catch.hpp>

using namespace mmt;
using namespace mmt::test;
using run::Life;
using run::RowCount;
using run::UnitPlanner;

namespace {

run::UnitPlanner::Setting in_module(Trainable trainable) {
  run::UnitPlanner::Setting s = setting(DType::bf16, std::move(trainable));
  s.module = "llm";
  return s;
}

}  // namespace

TEST_CASE("a plan keeps nothing for a backward that does not run") {
  UnitPlanner frozen(in_module(none_train), "u");
  frozen.param({.name = "w", .shape = {2, 3}});
  frozen.tensor("y", 3, Life::kept);
  CHECK_THROWS_WITH(frozen.take(), Catch::Contains("u: tensor y is kept for a backward that does not run"));

  UnitPlanner passing(in_module(none_train), "u");
  passing.input({.cols = 3, .needs_grad = true});
  const run::SlotId slot = passing.tensor("y", 3, Life::scratch);
  passing.lengthen(slot, Life::held);  // only a trainable product holds
  CHECK_THROWS_AS(passing.take(), std::logic_error);

  UnitPlanner port(in_module(none_train), "u");
  port.input({.cols = 3, .keep = Life::kept});
  CHECK_THROWS_WITH(port.take(), Catch::Contains("input x is kept"));
}

TEST_CASE("a plan refuses parameters and ports that do not fit") {
  UnitPlanner p(in_module(all_train), "u");
  CHECK_THROWS_AS(p.param({.name = "w", .shape = {2, 3}, .box = {{1, 0}, {2, 3}}}), std::logic_error);
  CHECK_THROWS_AS(p.tensor("y", 0, Life::kept), std::logic_error);
  CHECK_THROWS_AS(p.tensor("y", 3, Life::kept, RowCount::port), std::logic_error);
  CHECK_THROWS_AS(p.event(run::Phase::forward, {}), std::logic_error);  // tp has one rank
  p.output({.cols = 3});
  CHECK_THROWS_AS(p.output({.cols = 3}), std::logic_error);
  p.param({.name = "w", .shape = {2}});
  p.param({.name = "w", .shape = {2}});
  CHECK_THROWS_WITH(p.take(), Catch::Contains("llm/w declared twice"));
  run::UnitPlanner::Setting s = in_module(all_train);
  s.coord[plan::Axis::tp] = 1;
  CHECK_THROWS_AS(UnitPlanner(s, "u"), std::logic_error);
}

TEST_CASE("a plan sums bytes by life with alignment and takes the largest scratch") {
  UnitPlanner p(in_module(all_train), "u");
  p.param({.name = "w", .shape = {2}});
  p.param({.name = "frozen", .shape = {2}, .trainable = false});
  p.tensor("a", 3, Life::held);  // bf16
  p.tensor("b", DType::f32, 1, Life::held, RowCount::supervised);
  p.tensor("c", 5, Life::stash, RowCount::one);
  p.scratch(run::Phase::forward, {.constant = 7, .per_row = 2});
  p.scratch(run::Phase::forward, {.constant = 1, .per_row = 3});
  p.kernel_scratch([](const Stream&, run::Phase phase, const plan::BlockSize&, std::int64_t keys) {
    return phase == run::Phase::forward ? keys : 0;
  });
  p.output({.cols = 3});
  const run::UnitPlan plan = p.take();
  const auto foot = [](std::size_t bytes) { return static_cast<std::int64_t>(Arena::footprint(bytes)); };
  const plan::BlockSize size{.rows = 100, .supervised = 9};
  CHECK(plan.bytes(Life::held, size) == foot(600) + foot(36));
  CHECK(plan.bytes(Life::stash, size) == foot(10));
  CHECK(plan.bytes(Life::kept, size) == 0);
  CHECK(plan.scratch_bytes({}, run::Phase::forward, size) == 7 + 300 + 100);
  CHECK(plan.scratch_bytes({}, run::Phase::forward, size, 250) == 7 + 300 + 250);
  CHECK(plan.scratch_bytes({}, run::Phase::backward_input, size) == 0);
  CHECK(plan.params[0].trainable);
  CHECK_FALSE(plan.params[1].trainable);
  CHECK(canonical_name(plan.params[0]) == "llm/w");
  CHECK(plan.output.needs_grad);
  const plan::Linear bound = run::arena_bytes(DType::bf16, RowCount::rows, 3);
  for (const std::int64_t rows : {0, 1, 11, 64, 1000})
    CHECK(bound({.rows = rows}) >= foot(static_cast<std::size_t>(rows * 6)));
}

TEST_CASE("a linear pair cut over tensor parallel ranks plans its boxes copies and sums") {
  run::UnitPlanner::Setting s = in_module(all_train);
  s.degrees[plan::Axis::tp] = 4;
  s.coord[plan::Axis::tp] = 3;
  UnitPlanner p(s, "u");
  models::LinearLayer up(p, {.name = "up", .in = 8, .out = 12, .bias = true, .split = models::Split::columns}, true);
  models::LinearLayer key(p, {.name = "key", .in = 8, .out = 6, .split = models::Split::columns, .copies = 2}, true);
  models::LinearLayer down(p, {.name = "down", .in = 12, .out = 8, .bias = true, .split = models::Split::rows}, true);
  p.output({.cols = 8});
  const run::UnitPlan plan = p.take();
  CHECK(plan.params[0].box == run::Box{{9, 0}, {3, 8}});
  CHECK(plan.params[1].box == run::Box{{9}, {3}});
  CHECK(plan.params[2].box == run::Box{{3, 0}, {3, 8}});  // ranks 2 and 3 hold the second half
  CHECK(plan.params[2].partial_over == std::vector<run::AxisGroup>{{plan::Axis::tp, 2}});
  CHECK(plan.params[3].box == run::Box{{0, 9}, {8, 3}});
  CHECK(plan.params[4].replica_over == std::vector<run::AxisGroup>{{plan::Axis::tp, 0}});
  REQUIRE(plan.events[0].size() == 1);
  CHECK(plan.events[0][0].bytes({.rows = 10}) == 10 * 8 * 4);  // partial sums of bf16 travel in f32
  CHECK(plan.events[2].empty());
  CHECK_THROWS_AS(models::LinearLayer(p, {.name = "odd", .in = 8, .out = 6, .split = models::Split::columns}, true),
                  std::logic_error);
}
