// fuzz_parsers [TARGET] [--seconds N] [--seed S] [--keep DIR] | --input FILE | --list
//
// Runs the corpus of each target, then changed inputs until its time is over (all targets share N seconds; at least 100
// inputs each). What breaks a parser is written to DIR (the current folder) and the program ends with 1.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string_view>

#include "core/log.h"
#include "tests/fuzz/mutator.h"
#include "tests/fuzz/target.h"

// Sanitizers end the process themselves; they call this before.
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));  // NOLINT

namespace mmt::fuzz {
namespace {

constexpr std::size_t kMaxInput = 256 << 10;
constexpr unsigned kHangSeconds = 60;
constexpr std::uint64_t kFewest = 100;

bool g_accepted = false;
const Bytes* g_input = nullptr;  // what runs now, for the handlers
char g_path[4096];               // where it is saved

/// Only calls that a signal handler may make.
void save_input() {
  const int file = g_input == nullptr ? -1 : ::open(g_path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
  if (file < 0) return;
  const ssize_t written = ::write(file, g_input->data(), g_input->size());
  ::close(file);
  constexpr std::string_view kSaid = "fuzz: the process dies; the input is in ";
  if (written < 0 || ::write(2, kSaid.data(), kSaid.size()) < 0 || ::write(2, g_path, std::strlen(g_path)) < 0 ||
      ::write(2, "\n", 1) < 0) {
    return;
  }
  g_input = nullptr;
}

void on_signal(int number) {
  save_input();
  ::signal(number, SIG_DFL);
  ::raise(number);
}

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<Bytes> read_corpus(const Target& target) {
  std::vector<std::filesystem::path> paths;
  for (const std::string& pattern : target.corpus) {
    const std::filesystem::path path = std::filesystem::path(MMT_TESTS) / pattern;
    if (path.filename().string()[0] != '*') {
      paths.push_back(path);
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(path.parent_path())) {
      if (entry.path().extension() == path.extension()) paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> corpus;
  for (const auto& path : paths) corpus.push_back(read_file(path));
  if (corpus.empty()) throw std::runtime_error(target.name + " has no corpus");
  return corpus;
}

struct Options {
  std::string target, input;
  double seconds = 10;
  std::uint64_t seed = 1;
  std::filesystem::path keep = ".";
};

/// Runs one input. Returns what escaped; empty where nothing did.
std::string run_once(const Target& target, const Bytes& input) {
  g_input = &input;
  g_accepted = false;
  ::alarm(kHangSeconds);
  std::string problem;
  try {
    // A copy of just this size: reading behind the end is seen.
    const Bytes exact(input);
    target.run(exact.data(), exact.size());
  } catch (const std::exception& e) {
    problem = e.what();
    if (problem.empty()) problem = "an exception without a message";
  } catch (...) {
    problem = "something that is no exception was thrown";
  }
  ::alarm(0);
  g_input = nullptr;
  return problem;
}

void name_finding(const Options& options, const Target& target, std::uint64_t number) {
  const std::string name = "fuzz-" + target.name + "-" + std::to_string(options.seed) + "-" + std::to_string(number);
  const std::string path = (options.keep / name).string();
  std::memcpy(g_path, path.c_str(), std::min(path.size() + 1, sizeof g_path - 1));
}

bool fuzz(const Target& target, const Options& options, double seconds) {
  const std::vector<Bytes> corpus = read_corpus(target);
  std::vector<Bytes> pool = corpus;
  const Mutator mutator(target.dictionary, kMaxInput);
  const auto begin = std::chrono::steady_clock::now();
  const auto spent = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  std::uint64_t runs = 0, taken = 0;
  double slowest = 0;
  for (; runs < corpus.size() + kFewest || spent() < seconds; ++runs) {
    // Every input has a generator of its own: it can be made again from what was accepted before.
    std::mt19937_64 random(options.seed * 0x9E3779B97F4A7C15ULL + runs);
    Bytes input = runs < corpus.size() ? corpus[runs] : pool[random() % pool.size()];
    if (runs >= corpus.size()) {
      mutator.change(input, pool[random() % pool.size()], random);
      if (target.mend != nullptr && random() % 4 != 0) target.mend(input);
    }
    name_finding(options, target, runs);
    const double before = spent();
    const std::string problem = run_once(target, input);
    slowest = std::max(slowest, spent() - before);
    if (!problem.empty()) {
      std::ofstream(g_path, std::ios::binary)
          .write(reinterpret_cast<const char*>(input.data()), static_cast<std::streamsize>(input.size()));
      std::cerr << "fuzz: " << target.name << ": FOUND after " << runs << " inputs (seed " << options.seed
                << "): " << problem << "\nfuzz: the input is in " << g_path << ": run it alone with " << target.name
                << " --input " << g_path << "\n";
      return false;
    }
    if (!g_accepted) continue;
    ++taken;
    if (runs < corpus.size()) continue;
    // A bounded walk away from the corpus, which always stays.
    if (pool.size() < corpus.size() + 64) {
      pool.push_back(input);
    } else {
      pool[corpus.size() + random() % 64] = input;
    }
  }
  std::cout << "fuzz: " << target.name << ": " << runs << " inputs, " << taken << " accepted, " << spent()
            << " s, slowest " << slowest << " s\n";
  return true;
}

int usage(const std::string& problem) {
  std::cerr << "fuzz_parsers: " << problem
            << "\nusage: fuzz_parsers [TARGET] [--seconds N] [--seed S] [--keep DIR] | TARGET --input FILE | --list\n";
  return 2;
}

int run(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--list") {
      std::vector<std::string> names;
      for (const Target& t : targets()) {
        if (!t.planted) names.push_back(t.name);
      }
      std::sort(names.begin(), names.end());
      for (const std::string& name : names) std::cout << name << "\n";
      return 0;
    }
    if (!word.starts_with("--")) {
      options.target = word;
      continue;
    }
    if (i + 1 == argc) return usage(std::string(word) + " needs a value");
    const std::string value = argv[++i];
    if (word == "--seconds") {
      options.seconds = std::stod(value);
    } else if (word == "--seed") {
      options.seed = std::stoull(value);
    } else if (word == "--keep") {
      options.keep = value;
    } else if (word == "--input") {
      options.input = value;
    } else {
      return usage("unknown option " + std::string(word));
    }
  }
  std::vector<Target> chosen;
  for (const Target& t : targets()) {
    if (options.target.empty() ? !t.planted : t.name == options.target) chosen.push_back(t);
  }
  if (chosen.empty()) return usage("no target " + options.target + " (see --list)");
  std::sort(chosen.begin(), chosen.end(), [](const Target& a, const Target& b) { return a.name < b.name; });
  for (const int number : {SIGABRT, SIGALRM}) ::signal(number, on_signal);
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(save_input);
  } else {
    for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) ::signal(number, on_signal);
    const rlimit limit{std::uint64_t{4} << 30, std::uint64_t{4} << 30};  // small inputs that want more are a finding
    ::setrlimit(RLIMIT_AS, &limit);
  }
  log::set_sink([](log::Level, int, std::string_view) {});
  if (!options.input.empty()) {
    if (options.target.empty()) return usage("--input needs a target");
    std::snprintf(g_path, sizeof g_path, "%s", options.input.c_str());
    const std::string problem = run_once(chosen[0], read_file(options.input));
    std::cout << (problem.empty() ? (g_accepted ? "accepted" : "refused") : "FOUND: " + problem) << "\n";
    return problem.empty() ? 0 : 1;
  }
  bool good = true;
  for (const Target& t : chosen) good = fuzz(t, options, options.seconds / static_cast<double>(chosen.size())) && good;
  return good ? 0 : 1;
}

}  // namespace

void accepted() { g_accepted = true; }

}  // namespace mmt::fuzz

int main(int argc, char** argv) {
  try {
    return mmt::fuzz::run(argc, argv);
  } catch (const std::exception& e) {
    std::cerr << "fuzz_parsers: " << e.what() << "\n";
    return 2;
  }
}
