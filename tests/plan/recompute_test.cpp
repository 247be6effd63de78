#include "parallel/plan/recompute.h"
#include "core/error.h"

#include <catch2/catch.hpp>

using namespace mmt;
using namespace mmt::plan;
using Catch::Matchers::Contains;

namespace {

/// Six layers: 100 bytes a block in flight without recompute, 60 with selective (5 more), 10 with full (30 more).
std::vector<Chain> variants() {
  std::vector<Chain> all(3);
  const std::int64_t bytes[] = {100, 60, 10};
  const Ns again[] = {0, 5, 30};
  for (std::size_t v = 0; v < 3; ++v) {
    for (int i = 0; i < 6; ++i) {
      PlannedLayer l;
      l.module = "llm";
      l.time = {30, 30, 30, again[v]};
      l.backward = l.trains = true;
      l.held = bytes[v];
      all[v].layers.push_back(l);
    }
  }
  return all;
}

using Levels = std::vector<std::uint8_t>;

}  // namespace

TEST_CASE("nothing is recomputed where everything fits") {
  const RecomputeChoice c = choose_recompute(variants(), 2, {.memory = 600});
  REQUIRE(c.level == Levels(6, 0));
  REQUIRE(c.cut.bottleneck == 270);
  REQUIRE(c.reason == "nothing is recomputed");
}

TEST_CASE("layers recompute only as far as the memory of their place demands") {
  // Two blocks of three layers at the first place: 600 bytes without, 360 with selective recompute; one block at the
  // last place: 300 and 180. Without recompute a cut of 2 and 4 layers fits, but takes 360.
  RecomputeChoice c = choose_recompute(variants(), 2, {.memory = 450});
  REQUIRE(c.cut.places[0].count == 3);
  REQUIRE(c.level == Levels{0, 1, 1, 0, 0, 0});  // 2 x (100 + 60 + 60) = 440
  REQUIRE((c.cut.places[0].memory == 440 && c.cut.places[1].memory == 300));
  REQUIRE(c.cut.bottleneck == 280);
  REQUIRE(c.reason ==
          "2 of 6 layers recompute, the slowest place takes 280 ns; without, the slowest place takes 360 ns");

  // 300: no cut fits without.
  c = choose_recompute(variants(), 2, {.memory = 300});
  for (const PlaceCost& p : c.cut.places) REQUIRE(p.memory <= 300);
  REQUIRE_THAT(c.reason, Contains("no cut of 6 layers into 2 stages fits"));
  // Every step back would break the limit.
  for (std::size_t l = 0; l < 6; ++l) {
    for (std::uint8_t v = 0; v < c.level[l]; ++v) {
      Chain chain = c.chain;
      chain.layers[l] = variants()[v].layers[l];
      std::vector<int> first;
      for (const PlaceCost& p : c.cut.places) first.push_back(p.first);
      const Cut cut = cost_of_cut(chain, first);
      REQUIRE(std::ranges::any_of(cut.places, [](const PlaceCost& p) { return p.memory > 300; }));
    }
  }
}

TEST_CASE("what does not fit with full recompute is refused with what it would take") {
  REQUIRE_THROWS_WITH(choose_recompute(variants(), 2, {.memory = 39}), Contains("no cut of 6 layers into 2 stages"));
  const RecomputeChoice c = choose_recompute(variants(), 2, {.memory = 40});
  REQUIRE(c.level == Levels(6, 2));
}
