#include "parallel/comm/process.h"

#include "core/philox.h"

#include <fmt/core.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <fstream>
#include <string>

namespace mmt::comm {

namespace {

// Fields 3 (state) and 22 (start time) of /proc/PID/stat. The name in field 2 may hold spaces and brackets.
bool read_stat(std::int64_t pid, char& state, std::uint64_t& start) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  if (!std::getline(file, line)) return false;
  const std::size_t close = line.rfind(')');
  if (close == std::string::npos) return false;
  return std::sscanf(line.c_str() + close + 1,
                     " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %lu", &state,
                     &start) == 2;
}

}  // namespace

ProcessId this_process() {
  ProcessId p;
  p.pid = getpid();
  gethostname(p.host, sizeof(p.host) - 1);
  char space[PATH_MAX] = {};
  const ssize_t n = readlink("/proc/self/ns/pid", space, sizeof(space) - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  p.machine = hash64(fmt::format("{} {} {}", p.host, boot, n > 0 ? space : ""));
  char state = 0;
  read_stat(p.pid, state, p.start);
  return p;
}

bool is_dead(const ProcessId& process) {
  if (kill(static_cast<pid_t>(process.pid), 0) != 0 && errno == ESRCH) return true;
  char state = 0;
  std::uint64_t start = 0;
  if (!read_stat(process.pid, state, start)) return false;  // no /proc: cannot be told
  return state == 'Z' || state == 'X' || start != process.start;
}

}  // namespace mmt::comm
