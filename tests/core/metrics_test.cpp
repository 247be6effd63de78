#include "core/metrics/metrics.h"

#include "core/error.h"
#include "core/files.h"
#include "core/log.h"
#include "tests/support/temp_folder.h"

#include <fmt/core.h>
#include <sys/resource.h>
#include <catch2/catch.hpp>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

using namespace mmt;
namespace fs = std::filesystem;
using Catch::Contains;

namespace {

struct CapturedLines {
  std::vector<std::string> lines;
  CapturedLines() {
    log::set_sink([this](log::Level, int, std::string_view text) { lines.emplace_back(text); });
  }
  ~CapturedLines() { log::set_sink({}); }
};

Metrics figures(std::int64_t step, double loss) {
  Metrics m;
  m.step = step;
  m.set("loss", loss);
  m.set("eval/accuracy", -0.125);
  return m;
}

std::string text(const std::string& path) { return files::read(path, 1 << 20); }

std::string from_hex(std::string_view hex) {
  std::string out;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    out += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return out;
}

}  // namespace

TEST_CASE("metrics keep their order and replace by name") {
  Metrics m = figures(3, 2.5);
  m.set("loss", 2.25);
  REQUIRE(m.values == std::vector<std::pair<std::string, double>>{{"loss", 2.25}, {"eval/accuracy", -0.125}});
  REQUIRE(m.find("loss") == 2.25);
  REQUIRE_FALSE(m.find("none").has_value());
}

TEST_CASE("values and durations are written for people") {
  REQUIRE(format_value(2.34149, Unit::number) == "2.341");
  REQUIRE(format_value(2e-5, Unit::number) == "2e-05");
  REQUIRE(format_value(12345, Unit::count) == "12.3k");
  REQUIRE(format_value(999, Unit::count) == "999");
  REQUIRE(format_value(0.412, Unit::percent) == "41.2%");
  REQUIRE(format_value(0.0035, Unit::seconds) == "3.5ms");
  REQUIRE(format_value(2e-5, Unit::seconds) == "20us");
  REQUIRE(format_value(75, Unit::seconds) == "1m15s");
  REQUIRE(format_value(1.5 * 1073741824.0, Unit::bytes) == "1.5GiB");
  REQUIRE(format_value(std::numeric_limits<double>::quiet_NaN(), Unit::number) == "nan");
  REQUIRE(format_value(-std::numeric_limits<double>::infinity(), Unit::bytes) == "-inf");
  REQUIRE(format_duration(45) == "45s");
  REQUIRE(format_duration(723) == "12m03s");
  REQUIRE(format_duration(3 * 3600 + 7 * 60) == "3h07m");
  REQUIRE(format_duration(2 * 86400 + 4 * 3600) == "2d04h");
  REQUIRE(format_duration(-1) == "?");
  REQUIRE(format_duration(std::numeric_limits<double>::quiet_NaN()) == "?");
}

TEST_CASE("the terminal has one line a step with the time that remains") {
  CapturedLines captured;
  double now = 100;
  auto sink = terminal_sink(
      {{{"loss", "loss", Unit::number}, {"tokens_per_second", "tok/s", Unit::count}}, 10, [&] { return now; }});
  for (std::int64_t step = 1; step <= 4; ++step) {
    Metrics m = figures(step, 2.5 / static_cast<double>(step));
    if (step > 1) m.set("tokens_per_second", 12345);
    sink->write(m);
    now += step == 1 ? 500 : 20;  // the first step warms up
  }
  REQUIRE(captured.lines == std::vector<std::string>{"step 1/10  loss 2.5", "step 2/10  loss 1.25  tok/s 12.3k",
                                                     "step 3/10  loss 0.8333  tok/s 12.3k  eta 2m20s",
                                                     "step 4/10  loss 0.625  tok/s 12.3k  eta 2m00s"});
  captured.lines.clear();
  terminal_sink({})->write(figures(7, 1));
  REQUIRE(captured.lines == std::vector<std::string>{"step 7  loss 1  eval/accuracy -0.125"});
}

TEST_CASE("json lines hold one object a step") {
  const test::TempFolder folder;
  const std::string path = folder / "metrics.jsonl";
  {
    auto sink = json_lines_sink(path);
    sink->write(figures(1, 1.0 / 3));
    // Flushed at once: another reader sees it.
    REQUIRE(text(path) == "{\"step\":1,\"loss\":0.3333333333333333,\"eval/accuracy\":-0.125}\n");
    Metrics m;
    m.step = 2;
    m.set("a \"b\"\\\n", std::numeric_limits<double>::infinity());
    m.set("step", 5);
    sink->write(m);
  }
  REQUIRE_THAT(text(path), Catch::EndsWith("{\"step\":2,\"a \\\"b\\\"\\\\\\u000a\":null}\n"));
}

TEST_CASE("a resumed run removes the lines of later steps and torn lines") {
  const test::TempFolder folder;
  const std::string path = folder / "metrics.jsonl";
  {
    auto sink = json_lines_sink(path);
    for (std::int64_t step = 1; step <= 5; ++step) sink->write(figures(step, 1));
  }
  std::ofstream(path, std::ios::app) << "{\"step\":3x}\n{\"step\":2,\"lo";  // killed while it wrote
  CapturedLines captured;
  json_lines_sink(path, 3)->write(figures(4, 9));
  std::string expected;
  for (const int step : {1, 2, 3})
    expected += fmt::format("{{\"step\":{},\"loss\":1,\"eval/accuracy\":-0.125}}\n", step);
  REQUIRE(text(path) == expected + "{\"step\":4,\"loss\":9,\"eval/accuracy\":-0.125}\n");
  REQUIRE(captured.lines.size() == 2);
  // A new run keeps the file of the earlier one.
  json_lines_sink(path)->write(figures(1, 7));
  REQUIRE(text(path) == "{\"step\":1,\"loss\":7,\"eval/accuracy\":-0.125}\n");
  REQUIRE(text(path + ".1").starts_with(expected));
  REQUIRE_THROWS_WITH(json_lines_sink(folder / "no/such/m.jsonl"), Contains("no/such/m.jsonl: cannot open"));
}

TEST_CASE("a full disk costs figures and not the run") {
  const test::TempFolder folder;
  const std::string path = folder / "metrics.jsonl";
  auto sink = json_lines_sink(path);
  sink->write(figures(1, 1));
  const std::string before_text = text(path);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{before_text.size() + 10, before.rlim_max};
  CapturedLines captured;
  ::setrlimit(RLIMIT_FSIZE, &small);
  sink->write(figures(2, 1));
  sink->write(figures(3, 1));
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  REQUIRE(text(path) == before_text);
  sink->write(figures(4, 1));
  REQUIRE(captured.lines.size() == 2);
  REQUIRE_THAT(captured.lines[0], Contains("metrics.jsonl: cannot write: File too large"));
  REQUIRE_THAT(captured.lines[1], Contains("can be written again"));
  REQUIRE(text(path) == before_text + "{\"step\":4,\"loss\":1,\"eval/accuracy\":-0.125}\n");
}

TEST_CASE("event files are byte for byte those of the tensorboard package") {
  // RFC 3720, appendix B.4.
  REQUIRE(crc32c(std::string(32, '\0')) == 0x8a9136aau);
  REQUIRE(crc32c(std::string(32, '\xff')) == 0x62a8ab43u);
  REQUIRE(crc32c("123456789") == 0xe3069283u);
  // Written by tensorboard 2.20's RecordWriter and its own message classes.
  const std::string record = from_hex(
      "31000000000000009d8383e90900001040fc54d94110ac022a230a0b0a046c6f737315000020400a140a0d6576616c2f6163637572616379"
      "15000000be023f1f66");
  const std::string version =
      from_hex("1800000000000000a37f4b220900001040fc54d9411a0d627261696e2e4576656e743a32338d2fe9");
  const std::string start = from_hex("100000000000000095fbfe180900001040fc54d94110ad023a020801cb79b93b");
  REQUIRE(event_record(figures(300, 2.5), 1700000000.25) == record);
  const test::TempFolder folder;
  const auto clock = [] { return 1700000000.25; };
  tensorboard_sink(folder / "tb", std::nullopt, clock)->write(figures(300, 2.5));
  tensorboard_sink(folder / "tb", 300, clock)->write(figures(300, 2.5));
  std::vector<std::string> paths;
  for (const auto& entry : fs::directory_iterator(folder / "tb")) paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end(),
            [](const auto& a, const auto& b) { return fs::file_size(a) < fs::file_size(b); });
  REQUIRE(paths.size() == 2);
  REQUIRE_THAT(paths[0], Contains("events.out.tfevents.1700000000."));
  REQUIRE(text(paths[0]) == version + record);
  REQUIRE(text(paths[1]) == version + start + record);
  std::ofstream(folder / "file") << "x";
  REQUIRE_THROWS_WITH(tensorboard_sink(folder / "file"), Contains("file"));
}
