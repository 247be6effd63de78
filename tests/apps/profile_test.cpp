// Measuring for plans: cost files of the machine at hand, traced steps beside their prediction, replays of them.
#include "tests/apps/fixture.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <set>

using namespace mmt::app_test;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

const std::vector<std::string> kPlainPipeline = {"parallel.layout.all.pp=2", "parallel.schedule.policy=1f1b",
                                                 "train.tokens_per_microbatch=256", "modules.llm.layers=4"};

/// Names of the actions of each rank in the order of a trace's timeline.
std::map<int, std::vector<std::string>> actions_of(const json& trace, const std::string& timeline) {
  int process = -1;
  for (const json& e : trace.at("traceEvents")) {
    if (e.at("ph") == "M" && e.at("name") == "process_name" && e.at("args").at("name") == timeline)
      process = e.at("pid");
  }
  REQUIRE(process >= 0);
  std::map<int, std::vector<std::string>> actions;
  double before = -1.0;
  int rank = -1;
  for (const json& e : trace.at("traceEvents")) {
    if (e.at("ph") != "X" || e.at("pid") != process) continue;
    if (e.at("tid") != rank) before = -1.0;
    rank = e.at("tid");
    CHECK(e.at("ts").get<double>() >= before);  // in the order of time
    before = e.at("ts").get<double>();
    actions[rank].push_back(e.at("name"));
    if (timeline == "measured") CHECK(e.at("args").contains("cpu_us"));
  }
  return actions;
}

/// The data of a page.
json page_data(const std::string& html) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const std::size_t from = html.find(open) + open.size();
  return json::parse(html.substr(from, html.find("</script>", from) - from));
}

}  // namespace

TEST_CASE("profile measures every kind of layer under the frozen pattern, on all ranks at once") {
  const TinyRun tiny;
  const std::vector<std::string> set = with(
      kPlainPipeline, {"modules.eyes.trainable=false", "modules.llm.trainable=false", "modules.ears.trainable=false"});
  const Outcome o = tiny.run("profile", set, {.ranks = 2}, {"--out", "costs.json"});
  INFO(o.text());
  REQUIRE(o.code == 0);
  CHECK_THAT(o.out, Contains("GFLOP F") && Contains("clip layer") && Contains("whisper layer"));
  const json costs = json::parse(read_text(tiny.folder() / "costs.json"));
  CHECK(costs.at("threads") == 1);
  std::map<std::string, std::set<std::int64_t>> sizes;  // by kind
  for (const json& layer : costs.at("layers")) {
    const std::string kind = layer.at("kind");
    const json &flops = layer.at("flops"), &ns = layer.at("ns");
    sizes[kind].insert(flops.at("forward").get<std::int64_t>());
    INFO(layer.dump());
    // What the pattern needs has a time, what it does not need has none.
    for (const char* part : {"forward", "backward_input", "backward_weight"})
      CHECK((flops.at(part) > 0) == (ns.at(part) > 0));
    const bool llm = kind.starts_with("llama layer"), projector = kind.find("projector") != std::string::npos;
    if (!projector) CHECK((flops.at("backward_input") > 0) == llm);  // two layers of a projector: inside it
    CHECK((flops.at("backward_weight") > 0) == projector);
    if (llm) CHECK(ns.at("recompute") > 0);
  }
  for (const auto& [kind, different] : sizes) {
    INFO(kind);
    CHECK(different.size() >= 2);
  }
  CHECK(costs.at("links").at("intra").at("bytes_per_us") > 0);

  // The file is what planning reads, and training is planned with it.
  const Outcome plan = tiny.run("plan", with(set, {"cluster.costs=costs.json"}), {}, {"--ranks", "2"});
  INFO(plan.text());
  CHECK(plan.code == 0);
}

TEST_CASE("profile needs whole tensor-parallel groups") {
  const TinyRun tiny;
  const std::vector<std::string> set = {"parallel.layout.all.tp=2"};
  const Outcome alone = tiny.run("profile", set, {}, {"--out", "costs.json"});
  INFO(alone.text());
  CHECK(alone.code == 2);
  CHECK_THAT(alone.err, Contains("tp 2 is measured by groups of 2 ranks, and there are 1: start `mpirun -np 2"));
  const Outcome both = tiny.run("profile", set, {.ranks = 2}, {"--out", "costs.json"});
  INFO(both.text());
  CHECK(both.code == 0);
  CHECK_THAT(read_text(tiny.folder() / "costs.json"), Contains("tp 2"));
  // Blocks are filled up to a multiple of tp, as in training.
  const Outcome shares = tiny.run("profile", with(set, {"parallel.layout.all.sequence_parallel=true"}), {.ranks = 2},
                                  {"--out", "shares.json"});
  INFO(shares.text());
  CHECK(shares.code == 0);
}

TEST_CASE("a traced step with shared rows is predicted for the blocks that ran") {
  const TinyRun tiny;
  const Outcome o =
      tiny.run("train",
               {"parallel.layout.all.tp=2", "parallel.layout.all.pp=2", "parallel.layout.all.sequence_parallel=true",
                "train.steps=1", "learning_rate.warmup_steps=0", "eval.every_steps=0", "log.trace.steps=[1, 1]"},
               {.ranks = 4});
  INFO(o.text());
  REQUIRE(o.code == 0);
  const json trace = json::parse(read_text(tiny.run_folder() / "trace-step-1.json"));
  const auto measured = actions_of(trace, "measured");
  CHECK(measured.size() == 4);
  CHECK(actions_of(trace, "predicted") == measured);
}

TEST_CASE("a traced step stands beside its prediction, action by action, and can be replayed") {
  const TinyRun tiny;
  const std::vector<std::string> set = with(kPlainPipeline, {"train.steps=3", "learning_rate.warmup_steps=0",
                                                             "eval.every_steps=0", "log.trace.steps=[2, 3]"});
  const Outcome o = tiny.run("train", set, {.ranks = 2});
  INFO(o.text());
  REQUIRE(o.code == 0);
  CHECK(!std::filesystem::exists(tiny.run_folder() / "trace-step-1.json"));
  for (const char* step : {"2", "3"}) {
    const std::string path = (tiny.run_folder() / ("trace-step-" + std::string(step) + ".json")).string();
    const json trace = json::parse(read_text(path));
    const auto predicted = actions_of(trace, "predicted"), measured = actions_of(trace, "measured");
    REQUIRE(measured.size() == 2);
    CHECK(predicted == measured);  // the program, on both sides
    std::int64_t forwards = 0, updates = 0;
    for (const auto& [rank, names] : measured) {
      for (const std::string& name : names) {
        forwards += name.find('F') != std::string::npos ? 1 : 0;
        updates += name.find("OPT") != std::string::npos ? 1 : 0;
      }
    }
    CHECK(forwards > 0);
    CHECK(updates == 2);
    const json data = page_data(read_text(tiny.run_folder() / ("timeline-step-" + std::string(step) + ".html")));
    REQUIRE(data.at("timelines").size() == 2);
    for (const json& timeline : data.at("timelines")) {
      for (const json& rank : timeline.at("ranks"))
        CHECK(rank.at("rows").size() == measured.at(rank.at("rank").get<int>()).size());
    }
    CHECK(!data.at("errors").empty());
  }

  const std::vector<std::string> from = {"--ranks", "2", "--from-trace",
                                         (tiny.run_folder() / "trace-step-2.json").string()};
  const Outcome replayed = tiny.run("simulate", set, {}, with(from, {"--json"}));
  INFO(replayed.text());
  REQUIRE(replayed.code == 0);
  const json r = json::parse(replayed.out);
  double busiest = 0.0;
  for (const json& rank : r.at("ranks")) busiest = std::max(busiest, rank.at("busy_seconds").get<double>());
  CHECK(busiest > 0.0);
  CHECK(r.at("replayed_seconds").get<double>() >= busiest);

  const Outcome other =
      tiny.run("simulate", with(set, {"modules.eyes.layers=5", "parallel.layout.all.pp=1"}), {}, from);
  INFO(other.text());
  CHECK(other.code == 2);
  CHECK_THAT(other.err, Contains("recorded in another layout"));
  const Outcome wrong = tiny.run("train", with(set, {"log.trace.steps=[3, 2]"}));
  CHECK(wrong.code == 2);
  CHECK_THAT(wrong.err, Contains("log.trace.steps: [3, 2] ends before it begins"));
}
