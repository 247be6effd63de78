#include "parallel/run/run_lock.h"
#include "core/error.h"
#include "core/log.h"
#include "parallel/comm/process.h"
#include "parallel/comm/self.h"
#include "parallel/comm/threads.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"

#include <catch2/catch.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <fstream>
#include <thread>

using namespace mmt;
using namespace mmt::run;
using mmt::test::message_of;

namespace {

RunLockOptions quick(const std::string& job) {
  RunLockOptions o;
  o.job = job;
  o.beat_seconds = 0.05;
  o.silence_seconds = 60;
  return o;
}

void write_lock(const std::string& folder, long beat, long time) {
  std::ofstream(folder + "/run.lock") << fmt::format(
      "beat {:012} {:012}\nprocess 1 12345 678\nhost elsewhere\njob slurm job 17\n", beat, time);
}

}  // namespace

TEST_CASE("a second job is told who holds the run folder") {
  test::TempFolder temp;
  const auto world = comm::make_self();
  {
    RunLock first(*world, temp.path(), quick("slurm job 42"));
    const std::string text = message_of([&] { RunLock second(*world, temp.path(), quick("slurm job 43")); });
    INFO(text);
    CHECK(text.find(fmt::format("slurm job 42, process {} on {}", getpid(), comm::this_process().host)) !=
          std::string::npos);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // several beats keep it readable
    CHECK(message_of([&] { RunLock second(*world, temp.path(), quick("")); }) == text);
  }
  CHECK_FALSE(std::filesystem::exists(temp / "run.lock"));
  RunLock again(*world, temp / "new/folder", quick(""));
}

TEST_CASE("every rank hears of a held lock") {
  test::TempFolder temp;
  const auto world = comm::make_self();
  RunLock held(*world, temp.path(), quick("job 1"));
  std::atomic<int> told = 0;
  comm::run_threads(3, [&](comm::Communicator& all) {
    if (message_of([&] { RunLock lock(all, temp.path(), quick("job 2")); }).find("in use by job 1") !=
        std::string::npos)
      ++told;
  });
  CHECK(told == 3);
}

TEST_CASE("the lock of a dead process is taken over") {
  test::TempFolder temp;
  const pid_t pid = fork();
  if (pid == 0) {
    const auto world = comm::make_self();
    auto* lock = new RunLock(*world, temp.path(), quick("doomed"));
    _exit(lock == nullptr ? 1 : 0);
  }
  waitpid(pid, nullptr, 0);
  REQUIRE(std::filesystem::exists(temp / "run.lock"));
  std::string line;
  log::set_sink([&](log::Level, int, std::string_view text) { line = text; });
  {
    const auto world = comm::make_self();
    RunLock mine(*world, temp.path(), quick("next"));
    CHECK(message_of([&] { RunLock other(*world, temp.path(), quick("third")); }).find("in use by next") !=
          std::string::npos);
  }
  log::set_sink({});
  CHECK(line.find(fmt::format("doomed, process {}", pid)) != std::string::npos);
  CHECK(std::filesystem::is_empty(temp.path()));
}

TEST_CASE("a holder on another machine lives as long as its lock beats") {
  test::TempFolder temp;
  const auto world = comm::make_self();
  const long now = std::time(nullptr);
  write_lock(temp.path(), 5, now - 10);
  CHECK(message_of([&] {
          RunLock lock(*world, temp.path(), quick(""));
        }).find("slurm job 17, process 1 on elsewhere") != std::string::npos);
  {
    // An old time, but it beats: its clock is wrong.
    write_lock(temp.path(), 5, now - 1000);
    std::thread beats([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(40));
      write_lock(temp.path(), 6, now - 999);
    });
    log::set_sink([](log::Level, int, std::string_view) {});
    CHECK(message_of([&] { RunLock lock(*world, temp.path(), quick("")); }).find("in use by slurm job 17") !=
          std::string::npos);
    beats.join();
  }
  write_lock(temp.path(), 6, now - 1000);
  CHECK_NOTHROW(RunLock(*world, temp.path(), quick("")));
  log::set_sink({});
  std::ofstream(temp / "run.lock") << "what is this";
  CHECK(message_of([&] { RunLock lock(*world, temp.path(), quick("")); }).find("cannot be read as a lock") !=
        std::string::npos);
}
