// The rows of reduction_rank.cpp, measured by ranks that this process starts.
#include "bench/bench.h"

#include "core/error.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <thread>

extern char** environ;

namespace mmt::bench {
namespace {

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> list;
  for (std::string& s : strings) list.push_back(s.data());
  list.push_back(nullptr);
  return list;
}

/// What ranks on one machine need, as scripts/mmtrain-launch sets it.
std::vector<std::string> environment_of_ranks(int ranks) {
  std::map<std::string, std::string> values;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string line = *e;
    const std::size_t end = std::min(line.find('='), line.size());
    values[line.substr(0, end)] = line.substr(std::min(line.size(), end + 1));
  }
  const unsigned threads = std::max(1U, std::thread::hardware_concurrency() / static_cast<unsigned>(ranks));
  values["OMP_NUM_THREADS"] = std::to_string(threads);
  values["OMP_WAIT_POLICY"] = "passive";
  values["GOMP_SPINCOUNT"] = "0";
  values["OMPI_MCA_mpi_yield_when_idle"] = "1";
  std::vector<std::string> list;
  for (const auto& [key, value] : values) list.push_back(key + "=" + value);
  return list;
}

struct NotInstalled {};

/// Runs a command (found along PATH), its standard error left as it is, and returns its standard output.
std::string output_of(std::vector<std::string> command, std::vector<std::string> environment) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(fmt::format("no pipe: {}", std::strerror(errno)));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  pid_t pid = -1;
  const int failed = ::posix_spawnp(&pid, command[0].c_str(), &actions, nullptr, pointers(command).data(),
                                    pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::string text;
  char buffer[4096];
  while (failed == 0) {
    const ssize_t n = ::read(ends[0], buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(buffer, static_cast<std::size_t>(n));
  }
  ::close(ends[0]);
  if (failed == ENOENT) throw NotInstalled();
  if (failed != 0) throw Error(fmt::format("{} cannot be started: {}", command[0], std::strerror(failed)));
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw Error(fmt::format("{} failed ({} {}); its message stands above", fmt::join(command, " "),
                            WIFEXITED(status) ? "exit code" : "signal",
                            WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status)));
  return text;
}

void measure(Bench& bench, int ranks, const std::string& name) {
  std::vector<std::string> command = {"mpirun", "-np", std::to_string(ranks), "--oversubscribe", "--bind-to", "none"};
  if (::geteuid() == 0) command.emplace_back("--allow-run-as-root");
  command.push_back(std::filesystem::read_symlink("/proc/self/exe").string());
  command.push_back(fmt::format("^{}$", name));
  command.emplace_back("--json");
  command.emplace_back("--repeat");
  command.push_back(std::to_string(bench.repeats()));
  nlohmann::json j;
  try {
    j = nlohmann::json::parse(output_of(command, environment_of_ranks(ranks)));
  } catch (const NotInstalled&) {
    fmt::print(stderr,
               "mmtrain-bench: {} is left out: it needs mpirun, which is not in PATH (scripts/setup.sh installs it)\n",
               name);
    return;
  }
  bench.add({j.at("name"), j.at("unit"), j.at("best"), j.at("median"), j.at("limit_name"), j.at("limit")});
}

}  // namespace

void add_reduction(Cases& cases) {
  for (const int ranks : {2, 4}) {
    const std::string name = fmt::format("reduction/64MiB/{}ranks", ranks);
    cases.push_back({{name}, [=](Bench& bench) { measure(bench, ranks, name); }});
  }
}

}  // namespace mmt::bench
