// mmtrain-bench: speed of the CPU backend beside the machine's own limits, measured in the same run. See README.md.
#include "bench/bench.h"
#include "bench/reduction.h"

#include "core/data/text/regex.h"
#include "core/error.h"
#include "kernels/cpu/isa.h"
#include "parallel/comm/mpi/world.h"

#include <fmt/core.h>
#include <omp.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <fstream>

using namespace mmt;
using namespace mmt::bench;

namespace {

std::string processor() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

void print_limits(int threads, const Limits& l, bool json) {
  const std::vector<std::pair<const char*, double>> list = {
      {"limit/fma/f32", l.fma_f32},     {"limit/dot/bf16", l.dot_bf16}, {"limit/gemm/f32", l.gemm_f32},
      {"limit/gemm/bf16", l.gemm_bf16}, {"limit/copy", l.copy},         {"limit/in-place", l.in_place}};
  for (const auto& [name, value] : list) {
    const bool bytes = std::string(name) == "limit/copy" || std::string(name) == "limit/in-place";
    const Row row{fmt::format("{}/{}t", name, threads), bytes ? "GB/s" : "GF/s", value / 1e9, value / 1e9, "", 0.0};
    json ? print_json(row) : print_table(row);
  }
}

struct Options {
  std::vector<std::string> patterns;
  bool json = false, list = false;
  int threads = omp_get_max_threads(), repeats = 10;
};

std::vector<std::string> wanted(const Case& c, const std::vector<data::Regex>& patterns) {
  std::vector<std::string> names;
  for (const std::string& name : c.names) {
    const auto found = [&](const data::Regex& p) { return p.next(name, 0).found; };
    if (patterns.empty() || std::ranges::any_of(patterns, found)) names.push_back(name);
  }
  return names;
}

using Chosen = std::vector<std::pair<Case, std::vector<std::string>>>;

/// Returns the number of rows.
int measure(const Chosen& chosen, const Options& o) {
  bool limits_shown = false;
  int rows = 0;
  for (const auto& [c, names] : chosen) {
    const int count = c.threads > 0 ? c.threads : o.threads;
    omp_set_num_threads(count);
    Bench bench(count, o.repeats);
    if (!limits_shown) {
      if (!o.json)
        fmt::print("{}, {}, {} threads, best of {}\n", processor(), name_of(cpu_isa()), o.threads, o.repeats);
      print_limits(o.threads, bench.limits(o.threads), o.json);
      limits_shown = true;
    }
    c.measure(bench);
    for (const Row& row : bench.rows()) {
      if (std::ranges::find(names, row.name) == names.end()) continue;
      o.json ? print_json(row) : print_table(row);
      ++rows;
    }
    std::fflush(stdout);
  }
  for (const std::string& text : disturbed_limits())
    fmt::print(stderr, "mmtrain-bench: the machine was disturbed: {}: measure again when it is idle\n", text);
  return rows;
}

int run(const Options& o, int* argc, char*** argv) {
  std::vector<data::Regex> patterns;
  for (const std::string& text : o.patterns) patterns.emplace_back(text, fmt::format("pattern \"{}\"", text));
  Cases cases;
  add_products(cases);
  add_attention(cases);
  add_row_ops(cases);
  add_head(cases);
  add_optimizer(cases);
  add_stems(cases);
  add_data(cases);
  add_planning(cases);
  add_reduction(cases);
  add_steps(cases);

  Chosen chosen;
  std::vector<std::string> all;
  for (const Case& c : cases) {
    std::vector<std::string> names = wanted(c, patterns);
    if (names.empty()) continue;
    all.insert(all.end(), names.begin(), names.end());
    chosen.emplace_back(c, std::move(names));
  }
  if (all.empty()) throw ConfigError("no row has a name that a pattern is found in; --list shows them all");
  if (o.list) {
    for (const std::string& name : all) fmt::print("{}\n", name);
    return 0;
  }
  if (comm::launched_as_one_of_many()) return run_as_rank(argc, argv, all, o.repeats);
  return measure(chosen, o) > 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Speed of the CPU backend beside the machine's own limits, measured in the same run.", "mmtrain-bench");
  Options o;
  app.add_option("PATTERN", o.patterns, "regular expressions searched in the rows' names; none: all rows");
  app.add_flag("--json", o.json, "one JSON object a row");
  app.add_flag("--list", o.list, "names of the rows, nothing is measured");
  app.add_option("--threads", o.threads, "OpenMP threads (rows ending in /1t use one)")->check(CLI::Range(1, 1024));
  app.add_option("--repeat", o.repeats, "timed calls a row")->check(CLI::Range(1, 1'000'000));
  CLI11_PARSE(app, argc, argv);
  try {
    return run(o, &argc, &argv);
  } catch (const std::exception& e) {
    fmt::print(stderr, "mmtrain-bench: {}\n", e.what());
    return 1;
  }
}
