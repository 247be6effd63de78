// `mmtrain simulate`: a step under every schedule, and what it looks like.
#include "apps/mmtrain/replay_trace.h"
#include "core/files.h"
#include "core/log.h"
#include "parallel/plan/timeline_files.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <optional>

namespace mmt::app {
namespace {

/// A schedule as the command line and the table name it, and as a configuration asks for it.
struct Policy {
  const char* name;
  const char* policy;
  bool h2;
  int chunks;
};
constexpr Policy kPolicies[] = {{"1f1b", "1f1b", false, 1},
                                {"gpipe", "gpipe", false, 1},
                                {"interleaved", "interleaved", false, 2},
                                {"zero-bubble", "zero-bubble", false, 1},
                                {"zero-bubble-h2", "zero-bubble", true, 1},
                                {"list", "list", false, 1}};

/// One schedule's step, or why there is none.
struct Trial {
  std::string name;
  std::optional<PlannedRun> run;
  std::string refused;
};

std::vector<const Policy*> wanted(const std::string& list) {
  std::vector<const Policy*> out;
  std::string unknown;
  for (std::size_t from = 0; from <= list.size() && !list.empty();) {
    const std::size_t comma = std::min(list.find(',', from), list.size());
    const std::string name = list.substr(from, comma - from);
    from = comma + 1;
    const auto found = std::ranges::find(kPolicies, name, &Policy::name);
    if (found != std::end(kPolicies)) {
      out.push_back(found);
    } else {
      unknown += fmt::format("{}\"{}\"", unknown.empty() ? "" : ", ", name);
    }
  }
  if (!unknown.empty()) {
    std::string legal;
    for (const Policy& p : kPolicies) legal += fmt::format("{}{}", legal.empty() ? "" : ", ", p.name);
    throw Agreed(kUsage, fmt::format("--policies: {}: legal are {}", unknown, legal));
  }
  if (out.empty()) {
    for (const Policy& p : kPolicies) out.push_back(&p);
  }
  return out;
}

Trial try_policy(const PlanInput& in, const Policy& policy) {
  Trial trial;
  trial.name = policy.name;
  Config c = in.config;
  c.parallel.policy = policy.policy;
  c.parallel.memory_h2 = policy.h2;
  c.parallel.chunks =
      policy.chunks > 1 && in.config.parallel.policy == policy.policy ? in.config.parallel.chunks : policy.chunks;
  try {
    for (const MeshConfig& mesh : c.parallel.meshes) {
      const auto pieces = static_cast<std::size_t>(mesh.pp * c.parallel.chunks);
      if (!mesh.stages.empty() && mesh.stages.size() != pieces)
        throw ConfigError(fmt::format("{} stages are written, {} are needed", mesh.stages.size(), pieces));
    }
    trial.run = plan_run(c, in.workload, in.machine);
  } catch (const ConfigError& e) {
    trial.refused = e.what();
  }
  return trial;
}

bool fits(const Trial& trial, const Machine& machine) {
  return trial.run && (machine.memory == 0 || most_memory(trial.run->memory) <= machine.memory);
}

std::string line_of(const Trial& trial, const Machine& machine) {
  if (!trial.run) return fmt::format("{:<15} {}", trial.name, trial.refused);
  return fmt::format("{:<15} {:>10}  bubble {:>5.1f}%  memory {:>10}{}", trial.name,
                     plan::duration_text(trial.run->timeline.makespan), 100.0 * trial.run->timeline.bubble(),
                     plan::bytes_text(most_memory(trial.run->memory)), fits(trial, machine) ? "" : " does not fit");
}

void write_files(const std::filesystem::path& folder, const PlanInput& in, const Trial& trial) {
  const PlannedRun& run = *trial.run;
  plan::TimelinePage page;
  page.title = fmt::format("{}: a step of {} microbatches, predicted", trial.name, in.workload.num_blocks);
  page.notes = {in.machine.text};
  for (std::size_t from = 0; from < run.choice.reason.size();) {
    const std::size_t end = std::min(run.choice.reason.find('\n', from), run.choice.reason.size());
    page.notes.push_back(run.choice.reason.substr(from, end - from));
    from = end + 1;
  }
  page.timelines.push_back({"predicted", &run.timeline, nullptr});
  page.stage_names = run.stage_names(in.config);
  std::filesystem::create_directories(folder);
  files::write_atomic((folder / "timeline.html").string(), plan::timeline_html(page));
  files::write_atomic((folder / "trace.json").string(), plan::chrome_trace(page));
}

int replay(const PlanInput& in, const Arguments& a) {
  const plan::Timeline timeline = replay_trace(in, a.from_trace);
  if (a.json) {
    nlohmann::json out = {{"replayed_seconds", 1e-9 * static_cast<double>(timeline.makespan)},
                          {"bubble", timeline.bubble()}};
    for (const plan::RankTimeline& r : timeline.ranks)
      out["ranks"].push_back({{"rank", r.rank}, {"busy_seconds", 1e-9 * static_cast<double>(r.busy)}});
    std::cout << out.dump(2) << "\n";
    return kDone;
  }
  std::cout << fmt::format("replayed from {}: {}, bubble {:.1f}%\n", a.from_trace,
                           plan::duration_text(timeline.makespan), 100.0 * timeline.bubble());
  for (const plan::RankTimeline& r : timeline.ranks)
    std::cout << fmt::format("rank {}: busy {}\n", r.rank, plan::duration_text(r.busy));
  return kDone;
}

}  // namespace

int run_simulate(Job& job, const Arguments& a) {
  if (a.json) log::set_level(log::Level::warning);
  const std::vector<const Policy*> policies = wanted(a.policies);
  const PlanInput in = read_plan_input(job, a);
  if (job.rank() != 0) return kDone;  // one rank looks
  if (!a.from_trace.empty()) return replay(in, a);
  std::vector<Trial> trials;
  for (const Policy* p : policies) trials.push_back(try_policy(in, *p));
  const Trial* best = nullptr;
  for (const Trial& t : trials) {
    if (!fits(t, in.machine)) continue;
    if (best == nullptr || t.run->timeline.makespan < best->run->timeline.makespan) best = &t;
  }
  if (!a.out.empty()) {
    for (const Trial& t : trials) {
      if (t.run) write_files(std::filesystem::path(a.out) / t.name, in, t);
    }
  }
  if (a.json) {
    nlohmann::json out = {{"ranks", in.ranks}, {"machine", in.machine.text}, {"memory_limit", in.machine.memory}};
    out["chosen"] = best == nullptr ? nlohmann::json(nullptr) : nlohmann::json(best->name);
    for (const Trial& t : trials) {
      nlohmann::json entry = {{"policy", t.name}, {"fits", fits(t, in.machine)}};
      if (t.run) {
        entry["step_seconds"] = 1e-9 * static_cast<double>(t.run->timeline.makespan);
        entry["bubble"] = t.run->timeline.bubble();
        entry["memory"] = most_memory(t.run->memory);
      } else {
        entry["refused"] = t.refused;
      }
      out["policies"].push_back(std::move(entry));
    }
    std::cout << out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  } else {
    std::cout << in.machine.text << "\n";
    for (const Trial& t : trials) std::cout << line_of(t, in.machine) << "\n";
    if (best != nullptr) std::cout << fmt::format("fastest that fits: {}\n", best->name);
    if (!a.out.empty())
      std::cout << fmt::format("timelines: {}/<policy>/timeline.html, and trace.json for Perfetto\n", a.out);
  }
  if (best != nullptr) return kDone;
  log::error("no schedule fits: {}", memory_advice(in.config));
  return kFailed;
}

}  // namespace mmt::app
