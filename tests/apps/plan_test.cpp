// Planning without running: what `plan` says against what a run does, schedules compared, clusters that do not exist.
#include "tests/apps/fixture.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <sstream>

using namespace mmt::app_test;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

json plan_of(const TinyRun& tiny, std::vector<std::string> set, int ranks, int code = 0) {
  const Outcome o = tiny.run("plan", set, {}, {"--ranks", std::to_string(ranks), "--json"});
  INFO(o.text());
  REQUIRE(o.code == code);
  return json::parse(o.out);
}

void refused(const Outcome& o, int code, const std::vector<std::string>& parts) {
  INFO(o.text());
  REQUIRE(o.code == code);
  for (const std::string& part : parts) CHECK_THAT(o.err + o.out, Contains(part));
}

const std::vector<std::string> kPipeline = {"parallel.layout.all.pp=2", "train.tokens_per_microbatch=256",
                                            "modules.llm.layers=4"};

}  // namespace

TEST_CASE("plan and train choose the same stages and schedule, and say why") {
  const TinyRun tiny;
  const std::vector<std::string> set =
      with(kPipeline, {"train.steps=2", "learning_rate.warmup_steps=0", "eval.every_steps=0"});
  const json plan = plan_of(tiny, set, 2);
  const auto reason = plan.at("reason").get<std::string>();
  INFO(reason);
  CHECK_THAT(reason, Contains("stages: [{eyes: \"embed-") && Contains("2 places of"));
  CHECK_THAT(reason, Contains("1f1b ") && Contains("gpipe "));  // with their times
  const Outcome o = tiny.run("train", set, {.ranks = 2});
  INFO(o.text());
  REQUIRE(o.code == 0);
  std::istringstream lines(reason);
  for (std::string line; std::getline(lines, line);) CHECK_THAT(o.out + o.err, Contains(line));
}

TEST_CASE("plan cuts so that projectors stand where the config wants them, and that plan runs") {
  const TinyRun tiny;
  // Towers so deep that the LLM begins behind them.
  const Set deep = with(kPipeline, {"parallel.layout.all.pp=3", "modules.eyes.layers=12", "modules.ears.layers=12",
                                    "modules.llm.layers=2"});
  const auto placed = [&](const std::string& side) {
    return with(deep, {"modules.eyes.projector.place=" + side, "modules.ears.projector.place=" + side});
  };
  /// Stages at the place that computes a module's projector, as a stage of its own or as the end of the tower's.
  const auto beside = [&](const std::string& side, const std::string& module) {
    std::string at;
    const json plan = plan_of(tiny, placed(side), 3);
    for (const json& place : plan.at("places")) {
      for (const json& stage : place.at("stages")) {
        const auto name = stage.get<std::string>();
        if (name.starts_with(module + " ") && name.ends_with("projector")) at += place.at("stages").dump();
      }
    }
    REQUIRE(!at.empty());
    return at;
  };
  CHECK_THAT(beside("auto", "eyes"), !Contains("llm embed"));  // what the others must differ from
  for (const std::string m : {"eyes", "ears"}) {
    CHECK_THAT(beside("llm", m), Contains("llm embed"));
    CHECK_THAT(beside("encoder", m), Contains("-projector"));
  }
  const auto loss = [&](const std::string& side) {
    require_done(tiny.run("train",
                          with(placed(side), {"run.output_dir=" + side, "train.steps=2", "eval.every_steps=0",
                                              "learning_rate.warmup_steps=0"}),
                          {.ranks = 3}));
    return read_metrics(tiny.folder() / side).at(1).at("loss");
  };
  CHECK(loss("encoder") == loss("llm"));  // where a layer stands changes no sum
}

TEST_CASE("plan: a table of every place, for any number of ranks, without MPI") {
  const TinyRun tiny;
  const json plan = plan_of(tiny, with(kPipeline, {"parallel.zero.llm=1"}), 64);
  CHECK(plan.at("ranks") == 64);
  CHECK(plan.at("lanes") == 32);
  REQUIRE(plan.at("places").size() == 2);
  CHECK(plan["places"][0].at("ranks").size() == 32);
  CHECK(plan.at("step_seconds").get<double>() > 0.0);
  CHECK(plan.at("bubble").get<double>() > 0.0);
  const json alone = plan_of(tiny, kPipeline, 2);
  for (const json& place : plan["places"]) {
    std::int64_t sum = 0;
    for (const char* part : {"parameters", "gradients", "optimizer", "activations", "rows"})
      sum += place.at(part).get<std::int64_t>();
    CHECK(place.at("peak") == sum);
  }
  // The same weights in the places, wherever the cut is; 32 lanes share the LLM's moments.
  const auto all = [](const json& p, const char* part) {
    return p["places"][0].at(part).get<std::int64_t>() + p["places"][1].at(part).get<std::int64_t>();
  };
  CHECK(std::abs(all(plan, "parameters") - all(alone, "parameters")) < all(alone, "parameters") / 4);
  CHECK(all(plan, "optimizer") < all(alone, "optimizer") * 3 / 4);

  const Outcome text = tiny.run("plan", kPipeline, {}, {"--ranks", "2"});
  INFO(text.text());
  CHECK(text.code == 0);
  for (const char* part : {"parameters", "activations", "peak", "bubble", "fits: ", "llm ", "not measured"})
    CHECK_THAT(text.out, Contains(part));
}

TEST_CASE("plan: what a rank will hold is what the run takes") {
  const TinyRun tiny;
  const std::vector<std::string> set = {"modules.llm.hidden=128", "modules.llm.layers=6", "modules.llm.heads=4"};
  const json plan = plan_of(tiny, set, 1);
  const Outcome o = tiny.run(
      "train", with(set, {"train.steps=4", "learning_rate.warmup_steps=0", "eval.every_steps=0"}), {.ranks = 1});
  INFO(o.text());
  REQUIRE(o.code == 0);
  const std::string text = o.out + o.err, key = "estimate ";
  const std::size_t at = text.find(key, text.find("memory of this rank"));
  REQUIRE(at != std::string::npos);
  std::istringstream in(text.substr(at + key.size()));
  double estimate = 0.0;
  std::string unit;
  in >> estimate >> unit;
  // The estimate of a run is made of its stores and arenas and the media that its loader had at once, at most a few
  // hundred KiB here; two digits are printed.
  const double mib = plan["places"][0].at("peak").get<double>() / (1 << 20);
  CHECK(std::abs(mib - estimate) < 0.05 * estimate);
}

TEST_CASE("plan: what does not fit is told with what to do") {
  const TinyRun tiny;
  // Stages as written: there is a table, and a verdict.
  const std::vector<std::string> written =
      with(kPipeline, {"parallel.layout.all.stages=[{eyes: \"0-1\", ears: \"0-1\", llm: \"0\"}, {llm: \"1-3\"}]",
                       "parallel.schedule.policy=1f1b"});
  CHECK(plan_of(tiny, written, 2).at("fits") == true);
  refused(tiny.run("plan", with(written, {"cluster.memory_per_rank=1MiB"}), {}, {"--ranks", "2"}), kFailed,
          {"does not fit", "of 1.0 MiB", "train.recompute"});
  // A run of it is warned before it takes anything; the memory is what the config says, after all.
  const Set two = {"train.steps=2", "learning_rate.warmup_steps=0", "eval.every_steps=0"};
  require_outcome(tiny.run("train", with(with(written, two), {"cluster.memory_per_rank=1MiB"}), {.ranks = 2}), 0,
                  "of the 1.0 MiB that a rank has");
  // Open ones: nothing can be chosen, neither beside the rows of a step nor in half of what weights take.
  const json plan = plan_of(tiny, kPipeline, 2);
  std::int64_t room = 0;
  for (const json& place : plan.at("places"))
    room += place.at("rows").get<std::int64_t>() + place.at("parameters").get<std::int64_t>() / 2;
  refused(tiny.run("plan", with(kPipeline, {"cluster.memory_per_rank=1MiB"}), {}, {"--ranks", "2"}), kUsage,
          {"alone take", "of the 1.0 MiB that a rank has", "train.tokens_per_microbatch"});
  const std::string little = "cluster.memory_per_rank=" + std::to_string(room);
  refused(tiny.run("plan", with(kPipeline, {little}), {}, {"--ranks", "2"}), kUsage,
          {"no cut of", "a rank", "more stages"});
  refused(tiny.run("train", with(kPipeline, {little}), {.ranks = 2}), kUsage, {"no cut of"});
}

TEST_CASE("recompute: auto recomputes what the memory asks for, and no more") {
  const TinyRun tiny;
  const std::vector<std::string> set =
      with(kPipeline, {"modules.llm.layers=8", "train.tokens_per_microbatch=1024", "parallel.schedule.policy=1f1b"});
  const auto peak = [](const json& plan) {
    std::int64_t most = 0;
    for (const json& place : plan.at("places")) most = std::max(most, place.at("peak").get<std::int64_t>());
    return most;
  };
  const std::int64_t none = peak(plan_of(tiny, set, 2));
  const std::int64_t full = peak(plan_of(tiny, with(set, {"train.recompute=full"}), 2));
  REQUIRE(full < none);
  const std::vector<std::string> open = with(set, {"train.recompute=auto"});
  const json plenty = plan_of(tiny, open, 2);
  CHECK_THAT(plenty.at("reason").get<std::string>(), Contains("nothing is recomputed"));
  CHECK(peak(plenty) == none);
  const json tight = plan_of(tiny, with(open, {"cluster.memory_per_rank=" + std::to_string((none + full) / 2)}), 2);
  INFO(tight.dump(1));
  CHECK_THAT(tight.at("reason").get<std::string>(), Contains("layers recompute"));
  CHECK(tight.at("fits") == true);
  CHECK(peak(tight) < none);
}

TEST_CASE("clusters: every mistake of the file with its place, files that are not there or no such files") {
  const TinyRun tiny;
  const auto plan = [&](const std::string& file) {
    return tiny.run("plan", with(kPipeline, {"cluster=" + (tiny.folder() / file).string()}), {}, {"--ranks", "2"});
  };
  write_text(tiny.folder() / "bad.yaml",
             "ranks_per_node: 0\nmemory_per_rank: 1GiB\nmemory_per_node: lots\nlinks:\n  intra: {latency_us: -1, "
             "transfer: teleport}\n  outer: {}\ngflops: 3\n");
  refused(plan("bad.yaml"), kUsage,
          {"bad.yaml:1:", "bad.yaml:3:", "bad.yaml:5:", "latency_us", "teleport", "inline", "overlapped", "outer",
           "gflops_per_rank"});
  refused(plan("nowhere.yaml"), kUsage, {"nowhere.yaml"});
  write_text(tiny.folder() / "binary.yaml", std::string("\x00\xff\xfe{[", 5));
  refused(plan("binary.yaml"), kUsage, {"binary.yaml"});
  write_text(tiny.folder() / "list.yaml", "- 1\n- 2\n");
  refused(plan("list.yaml"), kUsage, {"list.yaml"});
  // Mistakes of both files are told together.
  const Outcome both = tiny.run(
      "plan", with(kPipeline, {"cluster=" + (tiny.folder() / "bad.yaml").string(), "train.global_batch_size=none"}));
  refused(both, kUsage, {"bad.yaml:1:", "train.global_batch_size"});
}

TEST_CASE("clusters: keys of the config are laid over those of the file") {
  const TinyRun tiny;
  write_text(
      tiny.folder() / "four.yaml",
      "ranks_per_node: 1\nmemory_per_node: 4GiB\nlinks:\n  inter: {transfer: overlapped, latency_us: 5, gb_per_s: "
      "12.5}\ngflops_per_rank: 200\n");
  const std::string file = "cluster.file=" + (tiny.folder() / "four.yaml").string();
  const json from_file = plan_of(tiny, with(kPipeline, {file}), 2);
  CHECK(from_file.at("memory_limit") == std::int64_t{4} << 30);
  CHECK_THAT(from_file.at("machine").get<std::string>(),
             Contains("2 nodes") && Contains("12.5 GB/s after 5.0 us (overlapped)") && Contains("200 GFLOP/s"));
  const json over =
      plan_of(tiny, with(kPipeline, {file, "cluster.memory_per_rank=2GiB", "cluster.gflops_per_rank=100"}), 2);
  CHECK(over.at("memory_limit") == std::int64_t{2} << 30);
  // Half the speed, and transfers that are small beside the layers.
  const double ratio = over.at("step_seconds").get<double>() / from_file.at("step_seconds").get<double>();
  CHECK(ratio > 1.2);
  CHECK(ratio <= 2.0);
}

TEST_CASE("simulate compares schedules and writes their timelines") {
  const TinyRun tiny;
  const std::string out = (tiny.folder() / "timelines").string();
  const Outcome o = tiny.run("simulate", kPipeline, {},
                             {"--ranks", "2", "--policies", "1f1b,gpipe,zero-bubble", "--out", out, "--json"});
  INFO(o.text());
  REQUIRE(o.code == 0);
  const json result = json::parse(o.out);
  REQUIRE(result.at("policies").size() == 3);
  const json plan = plan_of(tiny, kPipeline, 2);
  const int blocks = plan.at("microbatches").at("median").get<int>();
  double least = 1e9;
  std::string fastest;
  for (const json& p : result["policies"]) {
    const auto name = p.at("policy").get<std::string>();
    const double seconds = p.at("step_seconds").get<double>();
    if (seconds < least) least = seconds, fastest = name;
    // The page holds every action of every rank: each stage's forwards and backwards, one update a rank.
    const std::string page = read_text(std::filesystem::path(out) / name / "timeline.html");
    const std::string open = "<script type=\"application/json\" id=\"data\">";
    const std::size_t from = page.find(open);
    REQUIRE(from != std::string::npos);
    const json data = json::parse(page.substr(from + open.size(), page.find("</script>", from) - from - open.size()));
    REQUIRE(data.at("timelines").size() == 1);
    const json& timeline = data["timelines"][0];
    CHECK(1e-9 * timeline.at("makespan").get<double>() == Approx(seconds));
    const auto stages = static_cast<int>(data.at("stages").size());
    CHECK(stages >= 4);  // eyes, ears, and the LLM on both places
    std::map<std::string, int> kinds;
    int rows = 0;
    for (const json& rank : timeline.at("ranks")) {
      for (const json& row : rank.at("rows")) {
        ++rows;
        const auto action = row[1].get<std::string>();  // "0F3", "1RED:b0"
        const std::size_t first = action.find_first_not_of("0123456789");
        ++kinds[action.substr(first, action.find_first_of("0123456789:", first) - first)];
      }
    }
    CHECK(kinds["F"] == stages * blocks);
    CHECK(kinds["OPT"] == 2);
    CHECK((name == "zero-bubble" ? kinds["I"] : kinds["B"]) == stages * blocks);
    const json trace = json::parse(read_text(std::filesystem::path(out) / name / "trace.json"));
    int events = 0;
    for (const json& e : trace.contains("traceEvents") ? trace["traceEvents"] : trace)
      events += e.at("ph") == "X" ? 1 : 0;
    CHECK(events == rows);
  }
  CHECK(result.at("chosen") == fastest);

  refused(tiny.run("simulate", kPipeline, {}, {"--ranks", "2", "--policies", "1f1b,magic"}), kUsage,
          {"magic", "legal are 1f1b, gpipe, interleaved, zero-bubble, zero-bubble-h2, list"});
}
