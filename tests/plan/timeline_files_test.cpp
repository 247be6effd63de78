#include "parallel/plan/timeline_files.h"
#include "core/error.h"
#include "parallel/plan/choose.h"
#include "pipelines.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <fstream>
#include <map>

using namespace mmt;
using namespace mmt::plan;
using namespace mmt::testing;
using Json = nlohmann::json;

namespace {

/// Two encoders that join an LLM of three places, zero-bubble, inline transfers; "measured" is a little slower.
struct Example {
  Pipeline p = make_join({1, 2}, 3, {}, 6);
  std::vector<Program> programs;
  SimulateOptions options;
  Timeline predicted, measured;

  Example() {
    programs = programs_of(p, {.policy = Policy::list, .split_backward = true});
    options.transfers.intra = {.overlapped = false, .latency = 150'000, .bytes_per_us = 1000};
    options.transfers.row_bytes.assign(p.graph.edges.size(), 200'000);
    options.block_bytes.assign(
        p.graph.stages.size(),
        {.kept = 64 << 20, .held = 16 << 20, .stash = 8 << 20, .restored = 0, .ports = 2 << 20, .work = 1 << 20});
    options.fixed_bytes.assign(p.graph.stages.size(), 300 << 20);
    StageTimes times{.blocks = {{4'000'000, 4'100'000, 3'900'000, 0}}};
    times.reduce = 900'000;
    times.optimize = 1'500'000;
    predicted = simulate(p.graph, programs,
                         cost_of_stages(programs, std::vector<StageTimes>(p.graph.stages.size(), times)), options);
    std::vector<std::vector<Ns>> recorded;
    for (const RankTimeline& r : predicted.ranks) {
      recorded.emplace_back();
      for (const TimelineRow& row : r.rows) {
        const Ns time = row.end - row.start;
        recorded.back().push_back(time + time * ((row.start / 1000 + r.rank) % 7) / 50);
      }
    }
    measured = replay(p.graph, programs, recorded, options);
    measured.critical.clear();
  }

  std::size_t num_actions() const {
    std::size_t n = 0;
    for (const Program& program : programs) n += program.actions.size();
    return n;
  }

  TimelinePage page() const {
    return {.title = "list <schedule> of \"5\" places </script>",
            .notes = {"eyes 1, ears 2, llm 3 places", "caf\xc3\xa9 & \xff"},
            .timelines = {{"predicted", &predicted}, {"measured", &measured}},
            .stage_names = {"eyes 0-23", "ears 0-15", "ears 16-31", "llm 0-9", "llm 10-19", "llm 20-31"},
            .errors = compare(predicted, measured)};
  }
};

Json data_of(const std::string& html) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const std::size_t first = html.find(open) + open.size();
  return Json::parse(html.substr(first, html.find("</script>", first) - first));
}

}  // namespace

TEST_CASE("the page's data holds every action of every rank at its time") {
  const Example e;
  const std::string html = timeline_html(e.page());
  const Json data = data_of(html);
  REQUIRE(data["title"] == e.page().title);
  REQUIRE(data["notes"][1] == "caf\xc3\xa9 & \xef\xbf\xbd");
  REQUIRE(data["timelines"].size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    const Timeline& t = i == 0 ? e.predicted : e.measured;
    const Json& j = data["timelines"][i];
    REQUIRE(j["makespan"] == t.makespan);
    REQUIRE(j["bubble"].get<double>() == Approx(t.bubble()).margin(1e-6));
    std::size_t rows = 0;
    for (std::size_t r = 0; r < t.ranks.size(); ++r) {
      const Json& rank = j["ranks"][r];
      REQUIRE((rank["rank"] == t.ranks[r].rank && rank["peak"] == t.ranks[r].peak && rank["busy"] == t.ranks[r].busy));
      REQUIRE(rank["memory"].size() == t.ranks[r].memory.size());
      for (std::size_t k = 0; k < t.ranks[r].rows.size(); ++k, ++rows) {
        const TimelineRow& row = t.ranks[r].rows[k];
        REQUIRE(rank["rows"][k] == Json::array({static_cast<int>(row.action.kind), to_string(row.action), row.start,
                                                row.end, row.action.stage}));
        const std::string kind = data["kinds"][rank["rows"][k][0].get<std::size_t>()];
        REQUIRE(to_string(row.action).find(kind) != std::string::npos);
      }
    }
    REQUIRE(rows == e.num_actions());
  }
  REQUIRE(data["timelines"][0]["critical"].size() == e.predicted.critical.size());
  REQUIRE(data["errors"].size() == e.page().errors.size());
  // Shown by hand in a browser: MMTRAIN_TIMELINE=FILE keeps the page.
  if (const char* file = std::getenv("MMTRAIN_TIMELINE")) std::ofstream(file) << html;
}

TEST_CASE("the page loads nothing and no text in it can become markup") {
  const Example e;
  const std::string html = timeline_html(e.page());
  REQUIRE(html.find("http") == std::string::npos);
  REQUIRE(html.find("src=") == std::string::npos);
  std::size_t scripts = 0;
  for (std::size_t at = html.find("</script>"); at != std::string::npos; at = html.find("</script>", at + 1)) ++scripts;
  REQUIRE(scripts == 2);
}

TEST_CASE("the trace has one complete event an action in microseconds and a counter for memory") {
  const Example e;
  const Json trace = Json::parse(chrome_trace(e.page()));
  std::map<std::string, std::size_t> phases;
  std::map<int, std::size_t> processes;
  for (const Json& event : trace["traceEvents"]) {
    const std::string phase = event["ph"];
    ++phases[phase];
    if (phase == "X") ++processes[event["pid"].get<int>()];
  }
  REQUIRE(phases["X"] == 2 * e.num_actions());
  REQUIRE((processes[0] == e.num_actions() && processes[1] == e.num_actions()));
  REQUIRE(phases["M"] == 2 + 2 * e.predicted.ranks.size());
  REQUIRE(phases["C"] > 0);
  const TimelineRow& row = e.predicted.ranks[3].rows[4];
  const auto same = [&](const Json& event) {
    return event["ph"] == "X" && event["pid"] == 0 && event["tid"] == 3 && event["name"] == to_string(row.action);
  };
  const auto found = std::ranges::find_if(trace["traceEvents"], same);
  REQUIRE(found != trace["traceEvents"].end());
  REQUIRE((*found)["ts"].get<double>() == Approx(static_cast<double>(row.start) / 1000));
  REQUIRE((*found)["dur"].get<double>() == Approx(static_cast<double>(row.end - row.start) / 1000));
  REQUIRE((*found)["args"]["stage"] == e.page().stage_names[static_cast<std::size_t>(row.action.stage)]);
}

TEST_CASE("a recorded trace is read back and replayed to the same step time") {
  const Example e;
  std::vector<std::vector<Ns>> cpu;
  for (const RankTimeline& r : e.measured.ranks) {
    cpu.emplace_back();
    for (const TimelineRow& row : r.rows) cpu.back().push_back(row.end - row.start - 7);
  }
  TimelinePage page = e.page();
  page.timelines[1].cpu = &cpu;
  const std::string text = chrome_trace(page);
  const RecordedTrace plain = read_chrome_trace(text, "predicted", "trace.json");
  REQUIRE(plain.programs == e.programs);
  REQUIRE(replay(e.p.graph, plain.programs, plain.times, e.options).makespan == e.predicted.makespan);
  const RecordedTrace measured = read_chrome_trace(text, "measured", "trace.json");
  REQUIRE(measured.programs == e.programs);
  for (std::size_t r = 0; r < cpu.size(); ++r) {
    for (std::size_t i = 0; i < cpu[r].size(); ++i) {
      const Kind kind = e.programs[r].actions[i].kind;
      const bool moves = kind == Kind::send || kind == Kind::recv;
      REQUIRE(measured.times[r][i] == (moves ? kModelled : cpu[r][i]));
    }
  }
}

TEST_CASE("text that is no trace is refused with the file and the event") {
  using Catch::Matchers::Contains;
  const auto read = [](const std::string& text) { return read_chrome_trace(text, "measured", "old.json"); };
  const std::string head =
      R"([{"ph":"M","name":"process_name","pid":3,"args":{"name":"measured"}},{"ph":"X","name":"0F0","pid":3,)";
  REQUIRE(read(head + R"("tid":2,"ts":1,"dur":2.5}])").times == std::vector<std::vector<Ns>>{{2500}});
  for (const auto& [text, message] : std::map<std::string, std::string>{
           {"", "no trace of ours"},
           {"{}", "traceEvents"},
           {"{\"traceEvents\":3}", "no trace"},
           {"[1]", "no trace"},
           {R"([{"ph":"M","name":"process_name","pid":3,"args":{"name":"other"}}])", "it has: other"},
           {head + R"("tid":-2,"ts":1,"dur":2}])", "event 2: -2 is no rank"},
           {head + R"("tid":5000000000,"ts":1,"dur":2}])", "is no rank"},
           {head + R"("tid":1e300,"ts":1,"dur":2}])", "1e+300 is no integer"},
           {head + R"("tid":2,"ts":1,"dur":-2}])", "no length of time"},
           {head + R"("tid":2,"ts":1,"dur":1e300}])", "no length of time"},
           {head + R"("tid":2,"ts":1}])", "event 2"},
           {head + R"("tid":2,"ts":1,"dur":1},{"ph":"X","name":"nonsense","pid":3,"tid":0,"dur":1}])",
            "event 3: \"nonsense\" is not an action"},
           {std::string(100'000, '['), "no trace"}}) {
    INFO(text.substr(0, 200));
    REQUIRE_THROWS_WITH(read(text), Contains("old.json: ") && Contains(message));
    REQUIRE_THROWS_AS(read(text), ConfigError);
  }
}

TEST_CASE("strings in JSON are escaped and broken UTF-8 is replaced") {
  REQUIRE(json_string("a\"b\\c\n<&>") == "\"a\\\"b\\\\c\\u000a\\u003c\\u0026\\u003e\"");
  REQUIRE(json_string("\xe2\x82\xac") == "\"\xe2\x82\xac\"");
  for (const char* broken : {"\x80", "\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xe2\x82"}) {
    REQUIRE(Json::parse(json_string(broken)).get<std::string>().starts_with("\xef\xbf\xbd"));
  }
}
