#include "core/log.h"

#include "core/error.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/ansicolor_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

namespace mmt::log {
namespace {

thread_local int rank_of_thread = -1;
std::atomic<int> rank_of_process{0};
std::atomic<Level> lowest_level{Level::info};

int current_rank() { return rank_of_thread >= 0 ? rank_of_thread : rank_of_process.load(); }

spdlog::level::level_enum to_spdlog(Level level) {
  constexpr spdlog::level::level_enum levels[] = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn,
                                                  spdlog::level::err};
  return levels[static_cast<int>(level)];
}

std::string_view prefix(Level level) {
  constexpr std::string_view names[] = {"debug: ", "", "warning: ", "error: "};
  return names[static_cast<int>(level)];
}

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if ((u < 0x20 && c != '\n' && c != '\t') || u == 0x7f) {
      out += fmt::format("\\x{:02x}", u);
    } else {
      out += c;
    }
  }
  while (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool color_wanted() {
  const char* no_color = std::getenv("NO_COLOR");
  return no_color == nullptr || *no_color == '\0';
}

// All output of the process, under one lock: lines of several ranks in one process do not mix.
class Output {
 public:
  static Output& get() {
    // Never destroyed: threads may still log while the process ends.
    static Output* const output = new Output;
    return *output;
  }

  void write(Level level, int rank, std::string_view text) {
    const std::lock_guard lock(mutex_);
    if (sink_) {
      sink_(level, rank, text);
      return;
    }
    const std::string line = printable(text);
    if (file_) {
      file_->log(to_spdlog(level), "{}[rank {}] {}", prefix(level), rank, line);
      file_->flush();
    }
    if (level == Level::info) {
      if (rank != 0) return;
      clear_status();
      out_.log(spdlog::level::info, line);
      draw_status();
    } else {
      clear_status();
      err_.log(to_spdlog(level), "[rank {} {}] {}", rank, host_.data(), line);
      draw_status();
    }
  }

  void open_file(const std::string& path) {
    const std::lock_guard lock(mutex_);
    if (path.empty()) {
      file_.reset();
      return;
    }
    try {
      auto sink = std::make_shared<spdlog::sinks::basic_file_sink_st>(path, false);
      auto logger = std::make_unique<spdlog::logger>("file", std::move(sink));
      logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %v");
      logger->set_level(spdlog::level::debug);
      file_ = std::move(logger);
    } catch (const spdlog::spdlog_ex& e) {
      throw Error(fmt::format("{}: cannot open the log file: {}", path, e.what()));
    }
  }

  void set_sink(std::function<void(Level, int, std::string_view)> sink) {
    const std::lock_guard lock(mutex_);
    sink_ = std::move(sink);
  }

  void status(std::string_view text) {
    if (!on_terminal()) return;
    const std::lock_guard lock(mutex_);
    clear_status();
    status_ = printable(text);
    draw_status();
  }

 private:
  Output() : out_("out", make_sink(stdout, "%v")), err_("err", make_sink(stderr, "%^%l:%$ %v")) {
    if (::gethostname(host_.data(), host_.size() - 1) != 0) std::strcpy(host_.data(), "unknown");
    out_.set_level(spdlog::level::debug);
    err_.set_level(spdlog::level::debug);
    out_.flush_on(spdlog::level::debug);
    err_.flush_on(spdlog::level::debug);
  }

  static std::shared_ptr<spdlog::sinks::sink> make_sink(std::FILE* file, const char* pattern) {
    const auto mode = color_wanted() ? spdlog::color_mode::automatic : spdlog::color_mode::never;
    std::shared_ptr<spdlog::sinks::sink> sink;
    if (file == stdout) {
      sink = std::make_shared<spdlog::sinks::ansicolor_stdout_sink_st>(mode);
    } else {
      sink = std::make_shared<spdlog::sinks::ansicolor_stderr_sink_st>(mode);
    }
    sink->set_pattern(pattern);
    return sink;
  }

  void clear_status() {
    if (status_.empty()) return;
    std::fputs("\r\x1b[2K", stdout);
    std::fflush(stdout);
  }
  void draw_status() {
    if (status_.empty()) return;
    // A line that wraps could not be erased again.
    winsize size{};
    const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    const std::size_t width = known ? size.ws_col - 1u : 79u;
    std::fwrite(status_.data(), 1, std::min(status_.size(), width), stdout);
    std::fflush(stdout);
  }

  std::mutex mutex_;
  std::function<void(Level, int, std::string_view)> sink_;
  spdlog::logger out_;
  spdlog::logger err_;
  std::unique_ptr<spdlog::logger> file_;
  std::string status_;
  std::array<char, 256> host_{};
};

}  // namespace

void set_rank(int rank, int ranks) {
  MMT_CHECK(rank >= 0 && rank < ranks, "rank {} of {}", rank, ranks);
  rank_of_thread = rank;
  if (::getpid() == ::gettid()) rank_of_process = rank;
}

void set_level(Level lowest) { lowest_level = lowest; }
void open_file(const std::string& path) { Output::get().open_file(path); }
void set_sink(std::function<void(Level, int, std::string_view)> sink) { Output::get().set_sink(std::move(sink)); }
void status(std::string_view text) { Output::get().status(text); }

bool on_terminal() {
  // mpirun gives its ranks a pseudo-terminal whatever its own output is; the launcher says what that is.
  static const bool terminal = [] {
    const bool behind_mpirun = std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr;
    const char* told = std::getenv("MMTRAIN_TERMINAL");
    if (behind_mpirun && (told == nullptr || std::strcmp(told, "1") != 0)) return false;
    return ::isatty(STDOUT_FILENO) == 1;
  }();
  return terminal;
}

bool colored() {
  const char* term = std::getenv("TERM");
  return on_terminal() && color_wanted() && (term == nullptr || std::strcmp(term, "dumb") != 0);
}

void write(Level level, std::string_view text) {
  if (level < lowest_level.load()) return;
  Output::get().write(level, current_rank(), text);
}

}  // namespace mmt::log
