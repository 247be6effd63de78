// What a run says about its data at its end.
#include "tests/apps/fixture.h"

#include <catch2/catch.hpp>

#include <thread>

using namespace mmt::app_test;
using Catch::Matchers::Contains;

TEST_CASE("the data report counts repeated samples by passes over their set and what was left out") {
  const TinyRun tiny;
  const auto line = [](const std::string& question) {
    return R"({"messages": [{"role": "user", "content": ")" + question +
           R"("}, {"role": "assistant", "content": "b"}], "images": []})" + "\n";
  };
  const std::string unusable = R"({"messages": [{"role": "user", "content": "no answer"}]})";
  write_text(tiny.folder() / "own.jsonl", line("a") + line("c") + line("d") + unusable + "\n");
  // An epoch visits the three usable samples floor(1.5 * 3) = 4 times: 8 visits in two epochs, 3 of them the first.
  const Outcome o = tiny.run(
      "train", {"train.steps=null", "train.epochs=2", "train.global_batch_size=3", "learning_rate.warmup_steps=0",
                "data.bad_samples=skip", "eval.every_steps=0",
                "data.sets=[{path: " + (tiny.folder() / "own.jsonl").string() + ", format: messages, weight: 1.5}]"});
  INFO(o.text());
  REQUIRE(o.code == 0);
  CHECK_THAT(o.out + o.err, Contains("data: 8 samples seen, 5 of them repeated"));
  CHECK_THAT(o.out + o.err, Contains("left out of own from the start: 1 no_labels"));
}

TEST_CASE("a run says what loading cost") {
  const TinyRun tiny;
  const Outcome o = tiny.run("train", {"train.steps=3", "learning_rate.warmup_steps=0", "eval.every_steps=0"});
  INFO(o.text());
  REQUIRE(o.code == 0);
  CHECK_THAT(o.out + o.err, Contains("samples/s loaded by this rank at"));
}

TEST_CASE("a rank that mpirun ties to one core says that the others stay idle") {
  if (std::thread::hardware_concurrency() < 2) return;
  const TinyRun tiny;
  const std::vector<std::string> settings = {"train.steps=1", "learning_rate.warmup_steps=0", "eval.every_steps=0"};
  const Outcome tied = tiny.run("train", settings, {.ranks = 1, .bind = "core"});
  INFO(tied.text());
  REQUIRE(tied.code == 0);
  CHECK_THAT(tied.out + tied.err, Contains("stay idle: start it with --bind-to none"));
  const Outcome free = tiny.run("train", settings, {.ranks = 1});
  INFO(free.text());
  REQUIRE(free.code == 0);
  CHECK_THAT(free.out + free.err, !Contains("stay idle"));
}
