// Arguments in any order, and mistakes in them: under mpirun, too, all ranks end.
#include "tests/apps/fixture.h"

#include <catch2/catch.hpp>

using namespace mmt::app_test;
using Catch::Matchers::Contains;

TEST_CASE("options that may be repeated take one value each and may stand before the config") {
  const TinyRun tiny;
  const Outcome o = run_binary(tiny.folder(), {"validate", "--set", "train.steps=3", tiny.config(), "--json"});
  require_outcome(o, 0, "\"valid\": true");
  require_outcome(run_binary(tiny.folder(), {"generate", "--image", "a.png", tiny.config(), "--prompt", "x"}), kUsage,
                  "holds no checkpoint");
}

TEST_CASE("a wrong prompt ends every rank") {
  const TinyRun tiny;
  require_outcome(tiny.run("train", {"train.steps=1", "learning_rate.warmup_steps=0", "eval.every_steps=0"}), 0,
                  "done");
  for (const int ranks : {0, 2}) {
    require_outcome(tiny.run("generate", {}, {.ranks = ranks, .timeout = 30}, {"--prompt", "<image> what?"}), kUsage,
                    "more <image> than files");
    require_outcome(tiny.run("generate", {"eval={sets: []}"}, {.ranks = ranks, .timeout = 30}), kUsage,
                    "give --prompt");
  }
  require_outcome(tiny.run("generate", {}, {}, {"--prompt", "a", "--top-p", "0"}), kUsage, "--top-p");
  require_outcome(tiny.run("generate", {}, {}, {"--prompt", "a", "--seed", "-1"}), kUsage, "--seed");
}

TEST_CASE("validate under mpirun writes one result") {
  const TinyRun tiny;
  const Outcome o = tiny.run("validate", {}, {.ranks = 2}, {"--json"});
  require_outcome(o, 0, "\"valid\": true");
  CHECK(nlohmann::json::parse(o.out).at("valid") == true);
}

TEST_CASE("dump of a step behind the end of the run is refused") {
  const TinyRun tiny;
  require_outcome(tiny.run("dump", {"train.steps=null", "train.epochs=1"}, {}, {"--out", "x.h5", "--step", "1000"}),
                  kUsage, "--step 1000, but the run has");
}

TEST_CASE("commands that use weights say when the model is not the one that was trained") {
  const TinyRun tiny;
  require_outcome(tiny.run("train", {"train.steps=1", "learning_rate.warmup_steps=0", "eval.every_steps=0"}), 0,
                  "done");
  const Outcome same = tiny.run("eval");
  require_outcome(same, 0, "answers");
  CHECK_THAT(same.out + same.err, !Contains("not the model"));
  require_outcome(tiny.run("eval", {"modules.llm.rope_theta=500"}), 0, "modules.llm.rope_theta: 10000 -> 500");
}
