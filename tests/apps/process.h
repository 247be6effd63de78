// Runs the built binary as users do: a process of its own, with or without mpirun, no shell between.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace mmt::app_test {

struct Outcome {
  int code = -1;  ///< exit code; 128 + number for a signal
  bool timed_out = false;
  std::string out, err;
  double seconds = 0.0;
  std::string text() const;  ///< for messages of failed checks
};

struct Launch {
  int ranks = 0;              ///< 0: the binary alone, without mpirun
  std::string bind = "none";  ///< mpirun --bind-to
  double timeout = 120.0;
  std::vector<std::pair<std::string, std::string>> environment{};  ///< besides one thread a rank
  std::string binary{};                                            ///< another program than mmtrain
  std::int64_t file_bytes = 0;  ///< > 0: no file can grow beyond this, as on a full disk (writes fail)
};

/// A running command. Ends with all its ranks when destroyed.
class Process {
 public:
  /// Runs in `folder`, which also takes the files of standard output and error.
  Process(const std::filesystem::path& folder, const std::vector<std::string>& arguments, const Launch& launch);
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process();

  pid_t pid() const { return pid_; }  ///< of mpirun, or of the binary where there is none
  /// The binary's processes by rank (without mpirun: the one).
  std::vector<pid_t> ranks() const;
  void signal(int number) const;
  /// Whether all ranks are at the point from which SIGUSR1 is a request and no longer the end of the process.
  bool takes_requests() const;
  bool running();
  std::string text() const;  ///< standard output and error so far
  /// Polls until `condition` holds; false when the command ended first, or after `seconds`.
  bool wait_until(const std::function<bool()>& condition, double seconds = 60.0);
  /// Waits for the end; after the launch's timeout everything is killed.
  Outcome wait();

 private:
  bool reap(bool block);

  std::filesystem::path out_, err_;
  Launch launch_;
  pid_t pid_ = -1;
  bool ended_ = false;
  int status_ = 0;
  double start_ = 0.0, end_ = 0.0;
  mutable std::vector<pid_t> seen_;  // ranks, once they were found
};

/// `mmtrain ARGUMENTS` from start to end.
Outcome run_binary(const std::filesystem::path& folder, const std::vector<std::string>& arguments,
                   const Launch& launch = {});

bool alive(pid_t pid);  ///< there and not a zombie

}  // namespace mmt::app_test
