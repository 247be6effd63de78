#include "parallel/run/run_lock.h"

#include "core/files.h"
#include "core/log.h"
#include "parallel/comm/process.h"
#include "parallel/comm/values.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <mutex>
#include <thread>

namespace mmt::run {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kMaxLock = 64 << 10;

struct Content {
  comm::ProcessId process;
  std::string job;
  std::int64_t beat = 0;  // counts
  std::int64_t time = 0;  // of the last beat, seconds since 1970 by the holder's clock

  std::string who() const {
    return fmt::format("{}process {} on {}", job.empty() ? "" : job + ", ", process.pid, process.host);
  }
  // The beat comes first and has a fixed length: it is rewritten in place.
  std::string beat_line() const { return fmt::format("beat {:012} {:012}\n", beat, time); }
  std::string text() const {
    return fmt::format("{}process {} {} {}\nhost {}\njob {}\n", beat_line(), process.pid, process.machine,
                       process.start, process.host, job);
  }
};

Content parse(const std::string& text) {
  Content c;
  char host[64] = {};
  long long beat = 0, time = 0, pid = 0;
  unsigned long long machine = 0, start = 0;
  if (std::sscanf(text.c_str(), "beat %lld %lld process %lld %llu %llu host %63s", &beat, &time, &pid, &machine, &start,
                  host) != 6) {
    throw Error("it is not one of this program");
  }
  c.beat = beat;
  c.time = time;
  c.process.pid = pid;
  c.process.machine = machine;
  c.process.start = start;
  std::memcpy(c.process.host, host, sizeof(host));
  if (const std::size_t at = text.find("\njob "); at != std::string::npos) {
    c.job = text.substr(at + 5);
    while (!c.job.empty() && c.job.back() == '\n') c.job.pop_back();
  }
  return c;
}

}  // namespace

class RunLock::Holder {
 public:
  Holder(const std::string& folder, const RunLockOptions& options) : path_(folder + "/run.lock"), options_(options) {
    mine_.process = comm::this_process();
    mine_.job = options.job;
    for (char& c : mine_.job) {
      if (c == '\n') c = ' ';
    }
    fs::create_directories(folder);
    while (!create()) take_over();
    thread_ = std::thread([this] { beat(); });
  }

  ~Holder() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
    ::close(file_);
    try {
      if (same_holder(parse(files::read(path_, kMaxLock)))) ::unlink(path_.c_str());
    } catch (const Error&) {
      // Somebody took it away: not ours to remove.
    }
  }

 private:
  static std::int64_t now() { return static_cast<std::int64_t>(std::time(nullptr)); }
  bool same_holder(const Content& c) const {
    return c.process.pid == mine_.process.pid && c.process.machine == mine_.process.machine &&
           c.process.start == mine_.process.start;
  }

  // The lock appears with its content, or it does not: a file beside it is linked to its name.
  bool create() {
    mine_.time = now();
    const std::string draft = fmt::format("{}.{}.{}", path_, mine_.process.host, mine_.process.pid);
    files::write_atomic(draft, mine_.text());
    const int result = ::link(draft.c_str(), path_.c_str());
    const int error = errno;
    if (result == 0) file_ = ::open(draft.c_str(), O_WRONLY | O_CLOEXEC);
    ::unlink(draft.c_str());
    if (result == 0 && file_ >= 0) return true;
    if (result != 0 && error == EEXIST) return false;
    throw Error(fmt::format("{}: {}", path_, std::strerror(result == 0 ? errno : error)));
  }

  // Throws when somebody alive holds it; returns when it is gone.
  void take_over() {
    std::string text;
    Content other;
    try {
      text = files::read(path_, kMaxLock);
    } catch (const Error&) {
      return;  // released just now
    }
    try {
      other = parse(text);
    } catch (const Error& e) {
      throw ConfigError(
          fmt::format("{}: cannot be read as a lock: {}; remove it if no job uses this folder", path_, e.what()));
    }
    if (alive(other)) {
      throw ConfigError(
          fmt::format("{}: this run folder is in use by {}: choose another run.output_dir, or end that job first",
                      path_, other.who()));
    }
    // Of several that want it, one renames it away; what it got must be what it looked at.
    const std::string away = fmt::format("{}.stale.{}.{}", path_, mine_.process.host, mine_.process.pid);
    if (::rename(path_.c_str(), away.c_str()) != 0) return;
    Content taken;
    try {
      taken = parse(files::read(away, kMaxLock));
    } catch (const Error&) {
    }
    const bool right = taken.process.pid == other.process.pid && taken.process.start == other.process.start &&
                       taken.process.machine == other.process.machine;
    if (!right) [[maybe_unused]]
      const int put_back = ::link(away.c_str(), path_.c_str());
    ::unlink(away.c_str());
    if (right) log::warning("{}: {} died and left its lock: taken over", path_, other.who());
  }

  bool alive(const Content& other) const {
    if (other.process.machine == mine_.process.machine) return !comm::is_dead(other.process);
    if (static_cast<double>(now() - other.time) < options_.silence_seconds) return true;
    log::info("{}: {} has not been heard of for {} s: watching its lock for {:g} s", path_, other.who(),
              now() - other.time, 2 * options_.beat_seconds);
    std::this_thread::sleep_for(std::chrono::duration<double>(2 * options_.beat_seconds));
    try {
      return parse(files::read(path_, kMaxLock)).beat != other.beat;
    } catch (const Error&) {
      return false;
    }
  }

  void beat() {
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, std::chrono::duration<double>(options_.beat_seconds), [&] { return stop_; })) {
      ++mine_.beat;
      mine_.time = now();
      const std::string line = mine_.beat_line();
      [[maybe_unused]] const ssize_t written = ::pwrite(file_, line.data(), line.size(), 0);
      ::fsync(file_);
    }
  }

  std::string path_;
  RunLockOptions options_;
  Content mine_;
  int file_ = -1;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;
};

RunLock::RunLock(comm::Communicator& world, const std::string& folder, const RunLockOptions& options) {
  std::string problem;
  if (world.rank() == 0) {
    try {
      holder_ = std::make_unique<Holder>(folder, options);
    } catch (const std::exception& e) {
      problem = e.what();
    }
  }
  problem = comm::broadcast(world, problem);
  if (!problem.empty()) throw ConfigError(problem);
}

RunLock::~RunLock() = default;

}  // namespace mmt::run
