#include "tests/apps/process.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <thread>

extern char** environ;

namespace mmt::app_test {
namespace {

using namespace std::chrono_literals;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// (state, parent) of a process; state 0 when there is none.
std::pair<char, pid_t> stat_of(pid_t pid) {
  const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return {0, 0};
  std::istringstream in(stat.substr(name_end + 1));
  char state = 0;
  pid_t parent = 0;
  in >> state >> parent;
  return {state, parent};
}

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> list;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (!std::ranges::all_of(name, [](unsigned char c) { return std::isdigit(c) != 0; })) continue;
    const pid_t pid = std::stoi(name);
    if (stat_of(pid).second == parent) list.push_back(pid);
  }
  return list;
}

/// The rank that mpirun gave a process; -1 before it executes the binary.
int rank_of(pid_t pid) {
  const std::string environment = read_file("/proc/" + std::to_string(pid) + "/environ");
  const std::string key = std::string("\0OMPI_COMM_WORLD_RANK=", 22);
  const std::size_t at = environment.find(key);
  return at == std::string::npos ? -1 : std::stoi(environment.substr(at + key.size()));
}

std::vector<std::string> merged_environment(const Launch& launch) {
  std::map<std::string, std::string> values;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string line = *e;
    values[line.substr(0, line.find('='))] = line.substr(std::min(line.size(), line.find('=') + 1));
  }
  values["OMP_NUM_THREADS"] = "1";
  values["OMPI_MCA_mpi_yield_when_idle"] = "1";
  values["MMTRAIN_POISON"] = "1";
  for (const auto& [key, value] : launch.environment) values[key] = value;
  std::vector<std::string> lines;
  for (const auto& [key, value] : values) lines.push_back(key + "=" + value);
  return lines;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> list;
  for (std::string& s : strings) list.push_back(s.data());
  list.push_back(nullptr);
  return list;
}

}  // namespace

bool alive(pid_t pid) {
  const char state = stat_of(pid).first;
  return state != 0 && state != 'Z' && state != 'X';
}

std::string Outcome::text() const {
  return "exit code " + std::to_string(code) + (timed_out ? " (timed out)" : "") + " after " + std::to_string(seconds) +
         " s\n--- standard output\n" + out + "--- standard error\n" + err;
}

Process::Process(const std::filesystem::path& folder, const std::vector<std::string>& arguments, const Launch& launch)
    : launch_(launch) {
  static std::atomic<int> number = 0;
  const std::string stem = "command_" + std::to_string(number++);
  std::filesystem::create_directories(folder);
  out_ = folder / (stem + ".out");
  err_ = folder / (stem + ".err");
  std::vector<std::string> command;
  if (launch.ranks > 0) {
    command = {MMT_MPIRUN, "--allow-run-as-root",       "--oversubscribe", "--bind-to", launch.bind,
               "-np",      std::to_string(launch.ranks)};
  }
  command.push_back(launch.binary.empty() ? MMT_BINARY : launch.binary);
  command.insert(command.end(), arguments.begin(), arguments.end());
  std::vector<std::string> environment = merged_environment(launch);
  const std::vector<char*> argv = pointers(command), envp = pointers(environment);
  const int out = ::open(out_.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644);
  const int err = ::open(err_.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644);
  const int in = ::open("/dev/null", O_RDONLY);
  start_ = now();
  pid_ = ::fork();
  if (pid_ == 0) {
    ::setpgid(0, 0);
    if (::chdir(folder.c_str()) != 0) ::_exit(126);
    ::dup2(in, 0);
    ::dup2(out, 1);
    ::dup2(err, 2);
    for (const int number_of : {SIGUSR1, SIGTERM, SIGINT, SIGPIPE}) ::signal(number_of, SIG_DFL);
    if (launch.file_bytes > 0) {
      const rlimit limit{static_cast<rlim_t>(launch.file_bytes), static_cast<rlim_t>(launch.file_bytes)};
      ::setrlimit(RLIMIT_FSIZE, &limit);
      ::signal(SIGXFSZ, SIG_IGN);
    }
    ::execve(argv[0], argv.data(), envp.data());
    ::_exit(127);
  }
  ::close(in);
  ::close(out);
  ::close(err);
  if (pid_ < 0) throw std::runtime_error("fork failed");
}

Process::~Process() {
  if (!ended_) {
    for (const pid_t rank : ranks()) ::kill(rank, SIGKILL);
    ::kill(-pid_, SIGKILL);
    reap(true);
  }
  for (const pid_t rank : seen_) {
    if (rank > 0 && rank != pid_ && alive(rank)) ::kill(rank, SIGKILL);
  }
}

std::vector<pid_t> Process::ranks() const {
  if (launch_.ranks == 0) return {pid_};
  std::vector<pid_t> list(static_cast<std::size_t>(launch_.ranks), 0);
  for (const pid_t child : children_of(pid_)) {
    const int rank = rank_of(child);
    if (rank >= 0 && rank < launch_.ranks) list[static_cast<std::size_t>(rank)] = child;
  }
  std::erase(list, 0);
  if (list.size() > seen_.size()) seen_ = list;
  return list;
}

void Process::signal(int number) const { ::kill(pid_, number); }

bool Process::takes_requests() const {
  const std::vector<pid_t> list = ranks();
  if (list.size() < static_cast<std::size_t>(std::max(1, launch_.ranks))) return false;
  return std::ranges::all_of(list, [](pid_t pid) {
    const std::string status = read_file("/proc/" + std::to_string(pid) + "/status");
    const std::size_t at = status.find("SigBlk:");
    if (at == std::string::npos) return false;
    return (std::stoull(status.substr(at + 7), nullptr, 16) >> (SIGUSR1 - 1) & 1U) != 0;
  });
}

bool Process::reap(bool block) {
  while (!ended_) {
    const pid_t got = ::waitpid(pid_, &status_, block ? 0 : WNOHANG);
    if (got == 0) return false;
    if (got < 0 && errno == EINTR) continue;
    ended_ = true;
    end_ = now();
  }
  return true;
}

std::string Process::text() const { return read_file(out_) + read_file(err_); }

bool Process::running() { return !reap(false); }

bool Process::wait_until(const std::function<bool()>& condition, double seconds) {
  const double limit = now() + seconds;
  while (true) {
    if (condition()) return true;
    if (!running() || now() > limit) return false;
    std::this_thread::sleep_for(1ms);
  }
}

Outcome Process::wait() {
  Outcome o;
  while (running()) {
    if (now() - start_ > launch_.timeout) {
      o.timed_out = true;
      for (const pid_t rank : ranks()) ::kill(rank, SIGKILL);
      ::kill(-pid_, SIGKILL);
      reap(true);
      break;
    }
    std::this_thread::sleep_for(2ms);
  }
  o.code = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  o.out = read_file(out_);
  o.err = read_file(err_);
  o.seconds = end_ - start_;
  return o;
}

Outcome run_binary(const std::filesystem::path& folder, const std::vector<std::string>& arguments,
                   const Launch& launch) {
  return Process(folder, arguments, launch).wait();
}

}  // namespace mmt::app_test
