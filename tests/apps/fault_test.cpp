// Kills, signals, damaged files, numbers that run away: what ends, how it is said, and that nothing is lost.
#include "tests/apps/checkpoint_file.h"
#include "tests/apps/fixture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>

using namespace mmt::app_test;
using Catch::Contains;

namespace {

/// Waits until none of the processes lives; false after `seconds`.
bool all_end(const std::vector<pid_t>& list, double seconds) {
  using namespace std::chrono;
  const auto limit = steady_clock::now() + duration<double>(seconds);
  while (std::ranges::any_of(list, alive)) {
    if (steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(10ms);
  }
  return true;
}

void check_same_end(const TinyRun& tiny, const std::string& whole, const std::string& parts, std::int64_t step) {
  const auto names = checkpoint_differences(tiny.checkpoint(step, whole), tiny.checkpoint(step, parts));
  INFO(fmt::format("{}", fmt::join(names, "\n")));
  CHECK(names.empty());
  const auto first = read_metrics(tiny.folder() / whole), second = read_metrics(tiny.folder() / parts);
  REQUIRE(first.size() == second.size());
  for (const auto& [s, line] : first) CHECK(second.at(s).at("loss") == line.at("loss"));
}

/// Kills mpirun, or its last rank, twice in a run and starts again each time.
void kill_and_resume(int ranks, bool whole_job) {
  const TinyRun tiny;
  const Launch launch{.ranks = ranks};
  // The ranks notice the death of mpirun within a second or two: the run must be longer.
  const std::int64_t steps_in_all = whole_job ? 200 : 60;
  const Set set = {fmt::format("train.steps={}", steps_in_all), "checkpoint.every_steps=4", "checkpoint.keep_last=2"};
  require_code(tiny.run("train", with(set, {"run.output_dir=whole"}), launch), 0);
  std::int64_t before = 0;
  for (int kill = 0; kill < 2; ++kill) {
    Process process(tiny.folder(), tiny.arguments("train", with(set, {"run.output_dir=parts"})), launch);
    REQUIRE(process.wait_until([&] {
      const auto steps = saved_steps(tiny.folder() / "parts");
      return !steps.empty() && steps.back() > before;
    }));
    const std::vector<pid_t> list = process.ranks();
    REQUIRE(list.size() == static_cast<std::size_t>(ranks));
    const auto start = std::chrono::steady_clock::now();
    if (whole_job) {
      process.signal(SIGKILL);
    } else {
      ::kill(list.back(), SIGKILL);
    }
    const Outcome o = process.wait();
    INFO(o.text());
    CHECK(o.code == 137);
    CHECK(all_end(list, 10.0));
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(15));
    if (!whole_job)
      CHECK_THAT(o.out + o.err,
                 Contains(fmt::format("rank {} (process {}", ranks - 1, list.back())) && Contains("has died"));
    const auto steps = saved_steps(tiny.folder() / "parts");
    REQUIRE(!steps.empty());
    before = steps.back();
    if (kill == 0) REQUIRE(before < steps_in_all);
    if (before == steps_in_all) break;  // a slow machine: too late for a second kill
  }
  const Outcome last = tiny.run("train", with(set, {"run.output_dir=parts"}), launch);
  require_code(last, 0);
  CHECK_THAT(last.out + last.err, Contains("resumed from"));
  check_same_end(tiny, "whole", "parts", steps_in_all);
}

}  // namespace

TEST_CASE("mpirun killed in the middle: all ranks end and the next start ends the same run", "[slow]") {
  kill_and_resume(2, true);
}

TEST_CASE("a rank killed in the middle ends the job with its name and the next start ends the same run") {
  kill_and_resume(2, false);
}

TEST_CASE("kills of four ranks", "[slow]") {
  kill_and_resume(4, true);
  kill_and_resume(4, false);
}

TEST_CASE("SIGTERM ends a job at once without a save") {
  const TinyRun tiny;
  const Set set = {"train.steps=100000"};
  {
    Process process(tiny.folder(), tiny.arguments("train", set), {});
    REQUIRE(process.wait_until([&] { return !read_metrics(tiny.run_folder()).empty(); }));
    process.signal(SIGTERM);
    require_code(process.wait(), 143);
    CHECK(saved_steps(tiny.run_folder()).empty());
  }
  {
    Process process(tiny.folder(), tiny.arguments("train", with(set, {"run.output_dir=two"})), {.ranks = 2});
    REQUIRE(process.wait_until([&] { return !read_metrics(tiny.folder() / "two").empty(); }));
    const std::vector<pid_t> list = process.ranks();
    process.signal(SIGTERM);
    const Outcome o = process.wait();
    INFO(o.text());
    CHECK(o.code != 0);
    CHECK(o.code != 75);
    CHECK(all_end(list, 5.0));
    CHECK(saved_steps(tiny.folder() / "two").empty());
  }
  // Under srun it asks for a save.
  Process process(tiny.folder(), tiny.arguments("train", with(set, {"run.output_dir=slurm"})),
                  {.environment = {{"SLURM_PROCID", "0"}}});
  REQUIRE(process.wait_until([&] { return !read_metrics(tiny.folder() / "slurm").empty(); }));
  process.signal(SIGTERM);
  require_code(process.wait(), 75);
  CHECK(saved_steps(tiny.folder() / "slurm").size() == 1);
}

TEST_CASE("SIGUSR1 ends indexing and evaluation with 75 and the next start goes on") {
  const TinyRun tiny;
  std::string lines;
  for (int i = 0; i < 30000; ++i) {
    lines += fmt::format(
        R"({{"messages":[{{"role":"user","content":"what comes after {0}? and then? and then, after many words, {0}?"}},)"
        R"({{"role":"assistant","content":"{1}"}}]}})"
        "\n",
        i, i + 1);
  }
  write_text(tiny.folder() / "eval.jsonl", lines);
  for (const int ranks : {0, 2}) {
    INFO(ranks << " ranks");
    const Launch launch{.ranks = ranks};
    const std::string run = fmt::format("run.output_dir=run{}", ranks),
                      index = fmt::format("data.index_dir=index{}", ranks);
    const auto stop = [&](const std::string& command, const Set& set, const std::function<bool(Process&)>& when) {
      Process process(tiny.folder(), tiny.arguments(command, set), launch);
      REQUIRE(process.wait_until([&] { return process.takes_requests() && when(process); }));
      process.signal(SIGUSR1);
      return process.wait();
    };
    const auto at_once = [](Process&) { return true; };
    require_code(stop("index", {index}, at_once), 75);
    require_code(stop("train", {index, run}, at_once), 75);  // indexing still
    require_code(tiny.run("index", {index}, launch), 0);
    // Evaluation in training: after step 1, before that of step 2 could come.
    const Set set = {index, run, "eval.every_steps=1"};
    const auto first_step = [&](Process&) {
      return read_metrics(tiny.folder() / fmt::format("run{}", ranks)).contains(1);
    };
    const Outcome stopped = stop("train", set, first_step);
    require_code(stopped, 75);
    CHECK(saved_steps(tiny.folder() / fmt::format("run{}", ranks)) == std::vector<std::int64_t>{1});
    CHECK(stopped.seconds < 60.0);
    // And the command.
    const auto started = [](Process& p) { return p.text().find("weights of step") != std::string::npos; };
    require_code(stop("eval", {index, run}, started), 75);
  }
}

TEST_CASE("a run folder belongs to one job") {
  const TinyRun tiny;
  Process process(tiny.folder(), tiny.arguments("train", {"train.steps=100000"}), {});
  REQUIRE(process.wait_until([&] { return !read_metrics(tiny.run_folder()).empty(); }));
  for (const int ranks : {0, 2}) {
    const Outcome second = tiny.run("train", {"train.steps=100000"}, {.ranks = ranks});
    require_code(second, 2);
    CHECK_THAT(second.err, Contains(std::to_string(process.pid())) && Contains("run"));
  }
  REQUIRE(process.running());
  process.signal(SIGUSR1);
  require_code(process.wait(), 75);
}

TEST_CASE("a flipped bit is found and names the tensor") {
  const TinyRun tiny;
  require_code(tiny.run("train", {"train.steps=2"}), 0);
  const std::string tensor = "model/llm/model.layers.0.mlp.up_proj.weight";
  flip_bit(tiny.checkpoint(2), tensor);
  for (const int ranks : {0, 2}) {
    const Outcome o = tiny.run("train", {"train.steps=4"}, {.ranks = ranks});
    require_code(o, 1);
    CHECK_THAT(o.err, Contains(tensor));
    CHECK(saved_steps(tiny.run_folder()) == std::vector<std::int64_t>{2});
  }
  const Outcome eval = tiny.run("eval");
  require_code(eval, 1);
  CHECK_THAT(eval.err, Contains(tensor));
}

TEST_CASE("half-written checkpoints are passed over") {
  const TinyRun tiny;
  require_code(tiny.run("train", {"train.steps=4", "checkpoint.every_steps=2"}), 0);
  const auto folder = tiny.run_folder() / "checkpoints";
  // A save of step 6 that was killed, and one of step 4 that a full disk cut short afterwards.
  std::filesystem::copy(tiny.checkpoint(4), folder / "step_00000006.tmp", std::filesystem::copy_options::recursive);
  std::filesystem::resize_file(folder / "step_00000006.tmp" / "index.h5", 100);
  std::filesystem::resize_file(tiny.checkpoint(4) / "rank_00000.h5", 1000);
  const Outcome o = tiny.run("train", {"train.steps=6", "checkpoint.every_steps=2"});
  require_code(o, 0);
  CHECK_THAT(o.out + o.err, Contains("resumed from") && Contains("step_00000002") && Contains("step_00000004"));
  require_code(tiny.run("train", {"train.steps=6", "run.output_dir=whole"}), 0);
  CHECK(checkpoint_differences(tiny.checkpoint(6), tiny.checkpoint(6, "whole")).empty());
}

TEST_CASE("a full disk during a save leaves the last checkpoint") {
  const TinyRun tiny;
  require_code(tiny.run("train", {"train.steps=2"}), 0);
  const auto before = read_checkpoint(tiny.checkpoint(2));
  for (const char* async : {"false", "true"}) {
    const Outcome o =
        tiny.run("train", {"train.steps=4", std::string("checkpoint.async=") + async}, {.file_bytes = 200 << 10});
    require_code(o, 1);
    CHECK_THAT(o.err, Contains("step_00000004"));
    CHECK(saved_steps(tiny.run_folder()) == std::vector<std::int64_t>{2});
    CHECK(read_checkpoint(tiny.checkpoint(2)) == before);
  }
  require_code(tiny.run("train", {"train.steps=4"}), 0);
  require_code(tiny.run("train", {"train.steps=4", "run.output_dir=whole"}), 0);
  CHECK(checkpoint_differences(tiny.checkpoint(4), tiny.checkpoint(4, "whole")).empty());
}

TEST_CASE("numbers that run away end all ranks with 3 before anything is updated or saved") {
  const TinyRun tiny;
  for (const int ranks : {0, 2}) {
    const std::string run = fmt::format("run{}", ranks);
    const Outcome o =
        tiny.run("train", {"optimizer.lr=1e30", "checkpoint.every_steps=5", "run.output_dir=" + run}, {.ranks = ranks});
    require_code(o, 3);
    CHECK_THAT(o.err, Contains("not finite") && Contains("step 2"));
    CHECK(saved_steps(tiny.folder() / run).empty());
    const auto metrics = read_metrics(tiny.folder() / run);
    CHECK(metrics.size() == 1);
  }
}

TEST_CASE("replicas are checked and equal") {
  const TinyRun tiny;
  const Outcome o = tiny.run("train", {"train.consistency_every=1"}, {.ranks = 3});
  require_code(o, 0);
}
