// A run that was stopped, in whatever way, and started again is the run that was not stopped.
#include "tests/apps/checkpoint_file.h"
#include "tests/apps/dump_file.h"
#include "tests/apps/fixture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <catch2/catch.hpp>

#include <csignal>

using namespace mmt::app_test;

namespace {

/// Losses and norms of all steps up to `steps`: equal bit for bit, or to `relative`.
void check_same_losses(const std::filesystem::path& a, const std::filesystem::path& b, std::int64_t steps,
                       double relative = 0.0) {
  const auto first = read_metrics(a), second = read_metrics(b);
  for (std::int64_t s = 1; s <= steps; ++s) {
    INFO("step " << s);
    REQUIRE(first.contains(s));
    REQUIRE(second.contains(s));
    for (const char* key : {"loss", "grad_norm", "lr", "weight"}) {
      const double x = first.at(s).at(key).get<double>(), y = second.at(s).at(key).get<double>();
      INFO(key << ": " << x << " and " << y);
      CHECK(std::abs(x - y) <= relative * std::abs(x));
    }
  }
  CHECK(first.size() == second.size());
}

void check_same_checkpoint(const std::filesystem::path& a, const std::filesystem::path& b) {
  const auto names = checkpoint_differences(a, b);
  INFO(fmt::format("{}", fmt::join(names, "\n")));
  CHECK(names.empty());
}

}  // namespace

TEST_CASE("ten steps are five and a resume and five bit for bit") {
  const TinyRun tiny;
  for (const int ranks : {0, 2}) {
    INFO(ranks << " ranks");
    const Launch launch{.ranks = ranks};
    const std::string whole = fmt::format("whole{}", ranks), parts = fmt::format("parts{}", ranks);
    require_done(tiny.run("train", {"run.output_dir=" + whole}, launch));
    require_done(tiny.run("train", {"run.output_dir=" + parts, "train.steps=5"}, launch));
    CHECK(saved_steps(tiny.folder() / parts) == std::vector<std::int64_t>{5});
    const Outcome second = tiny.run("train", {"run.output_dir=" + parts}, launch);
    require_done(second);
    CHECK_THAT(second.out + second.err, Catch::Contains("resumed from") && Catch::Contains("train.steps"));
    check_same_losses(tiny.folder() / whole, tiny.folder() / parts, 10);
    check_same_checkpoint(tiny.checkpoint(10, whole), tiny.checkpoint(10, parts));
    // The comparison sees one step more.
    CHECK_FALSE(checkpoint_differences(tiny.checkpoint(10, whole), tiny.checkpoint(5, parts)).empty());
  }
}

TEST_CASE("a run goes on at another number of ranks with the same samples and losses") {
  const TinyRun tiny;
  require_done(tiny.run("train", {"run.output_dir=whole"}));
  require_done(tiny.run("train", {"run.output_dir=parts", "train.steps=4"}, {.ranks = 2}));
  require_done(tiny.run("train", {"run.output_dir=parts", "train.steps=7"}, {.ranks = 3}));
  require_done(tiny.run("train", {"run.output_dir=parts"}));
  // Rounding goes through up to nine AdamW updates, where it grows.
  check_same_losses(tiny.folder() / "whole", tiny.folder() / "parts", 10, 2e-3);
  const auto inspect = [&](const char* run) {
    const Outcome o = run_binary(tiny.folder(), {"inspect", (tiny.folder() / run).string(), "--json"});
    require_done(o);
    return nlohmann::json::parse(o.out);
  };
  const nlohmann::json a = inspect("whole"), b = inspect("parts");
  for (const char* key : {"step", "updates", "samples", "seed", "tensors"}) CHECK(a.at(key) == b.at(key));
  CHECK(a.at("samples") == 160);
}

TEST_CASE("a run goes on in other layouts with the same samples and losses") {
  const TinyRun tiny;
  require_done(tiny.run("train", {"run.output_dir=whole"}));
  require_done(tiny.run("train", {"run.output_dir=parts", "train.steps=3", "parallel.layout.all.pp=2"}, {.ranks = 2}));
  require_done(tiny.run("train",
                        {"run.output_dir=parts", "train.steps=5", "parallel.layout.all.pp=2", "parallel.zero.llm=1"},
                        {.ranks = 4}));
  require_done(tiny.run("train",
                        {"run.output_dir=parts", "train.steps=8", "parallel.layout.all.tp=2",
                         "parallel.layout.all.sequence_parallel=true"},
                        {.ranks = 2}));
  require_done(tiny.run("train", {"run.output_dir=parts"}));
  // Rounding goes through up to nine AdamW updates, where it grows.
  check_same_losses(tiny.folder() / "whole", tiny.folder() / "parts", 10, 2e-3);
}

TEST_CASE("bf16 frozen modules and averaged epochs resume bit for bit") {
  const TinyRun tiny;
  // Two epochs of 48 samples in batches of 16, with a cosine over them, a frozen encoder and parameter groups.
  tiny.edit_config("  steps: 10\n", "  epochs: 2\n");
  tiny.edit_config("  kind: constant\n  warmup_steps: 4\n", "  kind: cosine\n  warmup_steps: 2\n  min_lr: 1e-4\n");
  tiny.edit_config("  weight_decay: 0.05\n",
                   "  weight_decay: 0.05\n  groups:\n    - match: projector\n      lr: 2e-2\n");
  const Set set = {"train.precision=bf16", "modules.eyes.trainable=false", "checkpoint.every_steps=2",
                   "checkpoint.keep_last=10"};
  const auto with = [&](const char* folder) {
    Set s = set;
    s.push_back(std::string("run.output_dir=") + folder);
    return s;
  };
  require_done(tiny.run("train", with("whole"), {.ranks = 2}));
  CHECK(saved_steps(tiny.folder() / "whole") == std::vector<std::int64_t>{2, 4, 6});
  // Back to the state after step 4: what a kill between 4 and 6 leaves.
  std::filesystem::copy(tiny.folder() / "whole", tiny.folder() / "parts", std::filesystem::copy_options::recursive);
  std::filesystem::remove_all(tiny.checkpoint(6, "parts"));
  const Outcome second = tiny.run("train", with("parts"), {.ranks = 2});
  require_done(second);
  CHECK_THAT(second.out + second.err, Catch::Contains("step 4"));
  check_same_losses(tiny.folder() / "whole", tiny.folder() / "parts", 6);
  check_same_checkpoint(tiny.checkpoint(6, "whole"), tiny.checkpoint(6, "parts"));
}

TEST_CASE("SIGUSR1 saves and ends with 75 and the next start ends the same run") {
  const TinyRun tiny;
  for (const int ranks : {0, 2}) {
    INFO(ranks << " ranks");
    const Launch launch{.ranks = ranks};
    const std::string whole = fmt::format("whole{}", ranks), parts = fmt::format("parts{}", ranks);
    const std::int64_t steps = 60;
    require_done(tiny.run("train", {"train.steps=60", "run.output_dir=" + whole}, launch));
    {
      Process process(tiny.folder(), tiny.arguments("train", {"train.steps=60", "run.output_dir=" + parts}), launch);
      REQUIRE(process.wait_until([&] { return read_metrics(tiny.folder() / parts).size() >= 2; }));
      process.signal(SIGUSR1);
      const Outcome o = process.wait();
      require_code(o, 75);
      CHECK_THAT(o.out + o.err, Catch::Contains("asked to stop: saved step"));
    }
    const std::vector<std::int64_t> saved = saved_steps(tiny.folder() / parts);
    REQUIRE(saved.size() == 1);
    CHECK(saved[0] >= 2);
    REQUIRE(saved[0] < steps);
    require_done(tiny.run("train", {"train.steps=60", "run.output_dir=" + parts}, launch));
    check_same_losses(tiny.folder() / whole, tiny.folder() / parts, steps);
    check_same_checkpoint(tiny.checkpoint(steps, whole), tiny.checkpoint(steps, parts));
  }
}

TEST_CASE("an asynchronous save holds what a synchronous one does") {
  const TinyRun tiny;
  const Set set = {"checkpoint.every_steps=3", "checkpoint.keep_last=9"};
  for (const char* async : {"false", "true"}) {
    Set s = set;
    s.push_back(std::string("checkpoint.async=") + async);
    s.push_back(std::string("run.output_dir=async_") + async);
    require_done(tiny.run("train", s, {.ranks = 2}));
    CHECK(saved_steps(tiny.folder() / (std::string("async_") + async)) == std::vector<std::int64_t>{3, 6, 9, 10});
  }
  for (const std::int64_t step : {3, 6, 9, 10})
    check_same_checkpoint(tiny.checkpoint(step, "async_false"), tiny.checkpoint(step, "async_true"));
}

TEST_CASE("checkpoints are kept by number and by the best evaluation") {
  const TinyRun tiny;
  require_done(tiny.run("train", {"checkpoint.every_steps=1", "checkpoint.keep_last=2", "checkpoint.keep_every=4"}));
  CHECK(saved_steps(tiny.run_folder()) == std::vector<std::int64_t>{4, 8, 9, 10});
  CHECK(read_text(tiny.run_folder() / "checkpoints" / "latest").find("step_00000010") != std::string::npos);

  require_done(
      tiny.run("train", {"run.output_dir=best", "checkpoint.every_steps=1", "checkpoint.keep_last=1",
                         "checkpoint.keep_best=loss", "eval.every_steps=1", "optimizer.lr=1", "train.steps=8"}));
  const auto metrics = read_metrics(tiny.folder() / "best");
  std::int64_t best = 1;
  for (const auto& [step, line] : metrics) {
    if (line.at("eval/loss").get<double>() < metrics.at(best).at("eval/loss").get<double>()) best = step;
  }
  std::vector<std::int64_t> expected = {8};
  if (best != 8) expected.insert(expected.begin(), best);
  CHECK(best != 8);  // else this run proves nothing: the learning rate is chosen so that the loss rises again
  CHECK(saved_steps(tiny.folder() / "best") == expected);

  // Evaluated less often than saved: the step that was evaluated is kept, not one that came after it.
  require_done(
      tiny.run("train", {"run.output_dir=seldom", "checkpoint.every_steps=1", "checkpoint.keep_last=1",
                         "checkpoint.keep_best=loss", "eval.every_steps=2", "optimizer.lr=1", "train.steps=5"}));
  const auto seldom = read_metrics(tiny.folder() / "seldom");
  best = 2;
  for (const auto& [step, line] : seldom) {
    CHECK(line.contains("eval/loss") == (step % 2 == 0 || step == 5));
    if (line.contains("eval/loss")) UNSCOPED_INFO("step " << step << " loss " << line["eval/loss"]);
    if (line.contains("eval/loss") && line["eval/loss"] < seldom.at(best).at("eval/loss")) best = step;
  }
  CHECK(best != 5);
  CHECK(saved_steps(tiny.folder() / "seldom") == std::vector<std::int64_t>{best, 5});
}

TEST_CASE("init from a checkpoint takes weights alone") {
  const TinyRun tiny;
  require_done(tiny.run("train", {"run.output_dir=first"}));
  tiny.edit_config("    projector:\n      kind: mlp2\n",
                   "    projector:\n      kind: mlp2\n    trainable: false\n"
                   "    init: {checkpoint: first/checkpoints/step_00000010}\n");
  const Set set = {"run.output_dir=second", "train.steps=2", "run.seed=7"};
  const Outcome o = tiny.run("train", set);
  require_done(o);
  CHECK_THAT(o.out + o.err, Catch::Contains("weights of step 10"));
  const auto first = read_checkpoint(tiny.checkpoint(10, "first")),
             second = read_checkpoint(tiny.checkpoint(2, "second"));
  int frozen = 0, own = 0;
  for (const auto& [name, bytes] : first) {
    if (name.starts_with("model/eyes/")) {
      CHECK(second.at(name) == bytes);
      ++frozen;
    } else if (name.starts_with("model/llm/")) {
      CHECK(second.at(name) != bytes);
      ++own;
    }
  }
  CHECK(frozen > 10);
  CHECK(own > 10);
  for (const auto& [name, bytes] : second) CHECK_FALSE(name.starts_with("optimizer/first_moment/eyes/"));
  // A folder that lacks what the module needs.
  const Outcome other = tiny.run("train", {"run.output_dir=third", "modules.eyes.hidden=64"});
  require_code(other, 2);
  CHECK_THAT(other.err, Catch::Contains("model/eyes"));
}

TEST_CASE("a changed config is printed on resume and refused where it changes the mathematics") {
  const TinyRun tiny;
  require_done(tiny.run("train", {"train.steps=2"}));
  const Outcome refused = tiny.run("train", {"train.steps=4", "optimizer.lr=5e-3", "log.every_steps=2"});
  require_code(refused, 2);
  CHECK_THAT(refused.err, Catch::Contains("optimizer.lr") && Catch::Contains("another one"));
  CHECK_THAT(refused.out + refused.err, Catch::Contains("log.every_steps"));
  // A learning rate that falls until the last step depends on where that is.
  const std::string cosine = "learning_rate.kind=cosine", warm = "learning_rate.warmup_steps=1",
                    falling = "run.output_dir=falling";
  require_done(tiny.run("train", {"train.steps=2", cosine, warm, falling}));
  const Outcome longer = tiny.run("train", {"train.steps=4", cosine, warm, falling});
  INFO(longer.text());
  REQUIRE(longer.code == 2);
  REQUIRE_THAT(longer.err, Catch::Contains("train.steps: 2 -> 4"));
  const Outcome none = tiny.run("train", {"train.steps=4", "resume=none"});
  require_code(none, 2);
  CHECK_THAT(none.err, Catch::Contains("resume: none"));
  CHECK(saved_steps(tiny.run_folder()) == std::vector<std::int64_t>{2});
  const Outcome allowed = tiny.run("train", {"train.steps=4", "log.every_steps=2", "data.workers=2"});
  require_done(allowed);
  CHECK_THAT(allowed.out + allowed.err, Catch::Contains("log.every_steps") && Catch::Contains("data.workers"));
  // From a folder given by name, into another run.
  require_done(tiny.run("train", {"train.steps=4", "run.output_dir=other", "resume=" + tiny.checkpoint(2).string()}));
  CHECK(saved_steps(tiny.folder() / "other") == std::vector<std::int64_t>{4});
}

TEST_CASE("data may move between a save and a resume but not change") {
  const TinyRun tiny;
  require_done(tiny.run("train", {"train.steps=3", "run.output_dir=whole"}));
  require_done(tiny.run("train", {"train.steps=2"}));
  // Everything is somewhere else now.
  std::filesystem::create_directory(tiny.folder() / "moved");
  for (const char* name : {"media", "pictures.json", "sounds.jsonl", "both.jsonl", "text.json", "tokenizer.json",
                           "eval.jsonl", "config.yaml", "run"})
    std::filesystem::rename(tiny.folder() / name, tiny.folder() / "moved" / name);
  const auto train = [&](const std::string& steps) {
    return run_binary(tiny.folder(), {"train", "moved/config.yaml", "--set", "train.steps=" + steps});
  };
  const Outcome moved = train("3");
  require_done(moved);
  CHECK_THAT(moved.out + moved.err, Catch::Contains("data.sets.0.path"));
  check_same_checkpoint(tiny.checkpoint(3, "whole"), tiny.checkpoint(3, "moved/run"));
  // One answer has another length.
  const auto text = tiny.folder() / "moved" / "text.json";
  std::string changed = read_text(text);
  changed.replace(changed.find("\"white\""), 7, "\"black and white\"");
  write_text(text, changed);
  const Outcome refused = train("4");
  require_code(refused, 2);
  CHECK_THAT(refused.err, Catch::Contains("data.sets"));
  CHECK(saved_steps(tiny.folder() / "moved" / "run") == std::vector<std::int64_t>{2, 3});
}
