// A modality that no sample of any set has is normal: its encoder takes part with nothing to do.
#include <catch2/catch.hpp>

#include "tests/apps/fixture.h"

using namespace mmt::app_test;

TEST_CASE("sets without pictures, without sounds or without both train models that have encoders for them") {
  const TinyRun tiny;
  const Set base = {"train.steps=2", "learning_rate.warmup_steps=0", "eval={sets: []}", "resume=none"};
  for (const std::string set : {"pictures.json", "sounds.jsonl", "text.json"}) {
    INFO(set);
    const Set only = with(base, {"data.sets=[{path: " + set + "}]", "run.output_dir=run-" + set});
    require_done(tiny.run("train", only));
    const auto alone = read_metrics(tiny.folder() / ("run-" + set));
    REQUIRE(alone.size() == 2);
    const Set again = with(base, {"data.sets=[{path: " + set + "}]", "run.output_dir=two-" + set});
    require_done(tiny.run("train", again, {.ranks = 2}));
    const auto two = read_metrics(tiny.folder() / ("two-" + set));
    for (const auto& [step, values] : alone) {
      // Two ranks add in another order: rounding of f32.
      CHECK(two.at(step).at("loss").get<double>() == Approx(values.at("loss").get<double>()).epsilon(1e-5));
    }
  }
}
