#include "core/log.h"

#include "core/error.h"
#include "tests/support/temp_folder.h"

#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <tuple>
#include <vector>

using namespace mmt;
namespace fs = std::filesystem;

namespace {

struct Captured {
  std::vector<std::tuple<log::Level, int, std::string>> lines;
  Captured() {
    log::set_sink([this](log::Level level, int rank, std::string_view text) { lines.emplace_back(level, rank, text); });
  }
  ~Captured() {
    log::set_sink({});
    log::set_level(log::Level::info);
  }
};

std::string read(const fs::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("log lines carry the level and the rank of their thread") {
  Captured captured;
  std::thread([] {
    log::set_rank(2, 4);
    log::warning("disk {} is slow", "a");
    log::debug("not shown at this level");
  }).join();
  log::set_level(log::Level::debug);
  log::debug("shown");
  // A thread that never set a rank has the main thread's.
  std::thread([] { log::error("from a loader"); }).join();
  REQUIRE(captured.lines.size() == 3);
  REQUIRE(captured.lines[0] == std::make_tuple(log::Level::warning, 2, std::string("disk a is slow")));
  REQUIRE(captured.lines[1] == std::make_tuple(log::Level::debug, 0, std::string("shown")));
  REQUIRE(captured.lines[2] == std::make_tuple(log::Level::error, 0, std::string("from a loader")));
}

TEST_CASE("an impossible rank is refused") {
  REQUIRE_THROWS_AS(log::set_rank(4, 4), std::logic_error);
  REQUIRE_THROWS_AS(log::set_rank(-1, 4), std::logic_error);
}

TEST_CASE("the log file takes the lines of all ranks and appends") {
  const test::TempFolder folder;
  const fs::path path = folder.path() / "run.log";
  for (int run = 0; run < 2; ++run) {
    log::open_file(path.string());
    std::thread([run] {
      log::set_rank(3, 4);
      log::info("run {} \x1b[31mred\nsecond line", run);  // an info line of rank 3 goes to the file alone
    }).join();
    log::open_file("");
  }
  const std::string text = read(path);
  REQUIRE_THAT(text, Catch::Contains("[rank 3] run 0 \\x1b[31mred\nsecond line\n"));
  REQUIRE_THAT(text, Catch::Contains("[rank 3] run 1"));
}

TEST_CASE("a log file that cannot be opened is an error with its name") {
  REQUIRE_THROWS_WITH(log::open_file("/proc/no/such/folder/x.log"), Catch::Contains("/proc/no/such/folder/x.log"));
}

TEST_CASE("lines of many threads do not mix") {
  Captured captured;
  std::vector<std::thread> threads;
  for (int r = 0; r < 4; ++r) {
    threads.emplace_back([r] {
      log::set_rank(r, 4);
      for (int i = 0; i < 50; ++i) log::warning("rank {} line {}", r, i);
    });
  }
  for (auto& t : threads) t.join();
  REQUIRE(captured.lines.size() == 200);
  std::vector<int> next(4);
  for (const auto& [level, rank, text] : captured.lines) {
    REQUIRE(text == "rank " + std::to_string(rank) + " line " + std::to_string(next[static_cast<std::size_t>(rank)]++));
  }
}
