// mmtrain-bench: speed of the CPU backend beside the machine's own limits, measured in the same run. See README.md.
#include "bench/bench.h"

#include "core/data/regex.h"
#include "core/error.h"
#include "kernels/cpu/isa.h"

#include <fmt/core.h>
#include <omp.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

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

void print_table(const Row& r) {
  fmt::print("{:<52}{:>10.2f} {:<9}", r.name, r.best, r.unit);
  if (r.limit > 0.0) fmt::print("{:>5.0f} % of {:.2f} ({})", 100 * r.best / r.limit, r.limit, r.limit_name);
  fmt::print("; median {:.2f}\n", r.median);
}

void print_json(const Row& r) {
  nlohmann::ordered_json j = {{"name", r.name}, {"figure", r.best}, {"unit", r.unit}};
  j["limit"] = r.limit > 0.0 ? nlohmann::ordered_json(r.limit) : nlohmann::ordered_json(nullptr);
  j["share"] = r.limit > 0.0 ? nlohmann::ordered_json(r.best / r.limit) : nlohmann::ordered_json(nullptr);
  j["best"] = r.best;
  j["median"] = r.median;
  j["limit_name"] = r.limit_name;
  fmt::print("{}\n", j.dump());
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

bool wanted(const Case& c, const std::vector<data::Regex>& patterns, std::vector<std::string>& names) {
  for (const std::string& name : c.names) {
    bool matches = patterns.empty();
    for (const data::Regex& p : patterns) matches = matches || p.next(name, 0).found;
    if (matches) names.push_back(name);
  }
  return !names.empty();
}

int run(const std::vector<std::string>& texts, bool json, bool list, int threads, int repeats) {
  std::vector<data::Regex> patterns;
  for (const std::string& text : texts) patterns.emplace_back(text, fmt::format("pattern \"{}\"", text));
  Cases cases;
  add_products(cases);
  add_attention(cases);
  add_row_ops(cases);
  add_head(cases);
  add_optimizer(cases);
  add_stems(cases);
  add_data(cases);
  add_reduction(cases);
  add_steps(cases);

  bool any = false;
  bool limits_shown = false;
  for (const Case& c : cases) {
    std::vector<std::string> names;
    if (!wanted(c, patterns, names)) continue;
    any = true;
    if (list) {
      for (const std::string& name : names) fmt::print("{}\n", name);
      continue;
    }
    const int count = c.threads > 0 ? c.threads : threads;
    omp_set_num_threads(count);
    Bench bench(count, repeats);
    if (!limits_shown) {
      if (!json) fmt::print("{}, {}, {} threads, best of {}\n", processor(), name_of(cpu_isa()), threads, repeats);
      print_limits(threads, bench.limits(threads), json);
      limits_shown = true;
    }
    c.measure(bench);
    for (const Row& row : bench.rows()) {
      if (std::ranges::find(names, row.name) == names.end()) continue;
      json ? print_json(row) : print_table(row);
    }
    std::fflush(stdout);
  }
  if (!any) throw ConfigError("no row has a name that a pattern is found in; --list shows them all");
  if (list) return 0;
  const std::vector<std::string> disturbed = disturbed_limits();
  for (const std::string& text : disturbed)
    fmt::print(stderr, "mmtrain-bench: the machine was disturbed: {}: measure again when it is idle\n", text);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Speed of the CPU backend beside the machine's own limits, measured in the same run.", "mmtrain-bench");
  std::vector<std::string> patterns;
  bool json = false, list = false;
  int threads = omp_get_max_threads(), repeats = 10;
  app.add_option("PATTERN", patterns, "regular expressions searched in the rows' names; none: all rows");
  app.add_flag("--json", json, "one JSON object a row");
  app.add_flag("--list", list, "names of the rows, nothing is measured");
  app.add_option("--threads", threads, "OpenMP threads (rows ending in /1t use one)")->check(CLI::Range(1, 1024));
  app.add_option("--repeat", repeats, "timed calls a row")->check(CLI::Range(1, 1'000'000));
  CLI11_PARSE(app, argc, argv);
  try {
    return run(patterns, json, list, threads, repeats);
  } catch (const std::exception& e) {
    fmt::print(stderr, "mmtrain-bench: {}\n", e.what());
    return 1;
  }
}
