#include "parallel/plan/choose.h"

#include "core/at.h"
#include "core/error.h"

#include <algorithm>
#include <set>

namespace mmt::plan {
namespace {

/// Costs as generators ask for them; without B, what is recomputed stands in front of I or in R.
CostFunction cost_function(const ScheduleProblem& problem) {
  return [times = problem.times, restore = problem.restore](Kind kind, int stage, int block) -> std::int64_t {
    const auto& blocks = times[at(stage)].blocks;
    const LayerTime& t = blocks.size() == 1 ? blocks[0] : blocks.at(at(block));
    const bool restored = at(stage) < restore.size() && restore[at(stage)];
    const Ns again = restored ? 0 : t.recompute;
    switch (kind) {
      case Kind::forward: return t.forward;
      case Kind::recompute: return t.recompute;
      case Kind::backward_input: return t.backward_input + again;
      case Kind::backward_weight: return t.backward_weight;
      case Kind::backward: return t.backward_input + t.backward_weight + again;
      default: return 0;
    }
  };
}

/// Fills in the rank that is worst off.
void weigh(ScheduleTrial& trial, const Timeline& timeline, const ScheduleProblem& problem,
           std::span<const std::int64_t> memory) {
  bool first = true;
  for (const RankTimeline& r : timeline.ranks) {
    const auto& fixed = problem.simulate.fixed_bytes;
    const std::int64_t needs = r.arenas + (at(r.rank) < fixed.size() ? fixed[at(r.rank)] : 0);
    std::int64_t limit = 0;
    if (memory.size() == 1) limit = memory[0];
    if (memory.size() > 1 && at(r.rank) < memory.size()) limit = memory[at(r.rank)];
    if (!first && needs - limit <= trial.memory - trial.limit) continue;
    first = false;
    trial.fullest = r.rank;
    trial.memory = needs;
    trial.limit = limit;
  }
}

std::string reason_of(const ScheduleChoice& choice) {
  std::vector<const ScheduleTrial*> fit, large, refused;
  for (const ScheduleTrial& t : choice.trials) {
    (t.fits() ? fit : t.refused.empty() ? large : refused).push_back(&t);
  }
  std::ranges::stable_sort(fit, {}, &ScheduleTrial::makespan);
  std::ranges::stable_sort(large, {}, [](const ScheduleTrial* t) { return t->memory - t->limit; });
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : "; ") + part; };
  std::set<std::string> told;  // each schedule once, by its best trial
  for (const ScheduleTrial* t : fit) {
    if (told.insert(t->name).second) add(fmt::format("{} {}", t->name, duration_text(t->makespan)));
  }
  for (const ScheduleTrial* t : large) {
    if (!told.insert(t->name).second) continue;
    add(fmt::format("{} needs {} of {} on rank {}", t->name, bytes_text(t->memory), bytes_text(t->limit), t->fullest));
  }
  if (fit.empty() && large.empty()) {
    for (const ScheduleTrial* t : refused) add(fmt::format("{}: {}", t->name, t->refused));
  }
  return text;
}

}  // namespace

std::vector<ScheduleOptions> all_schedules() {
  const auto of = [](Policy policy) {
    ScheduleOptions options;
    options.policy = policy;
    return options;
  };
  std::vector<ScheduleOptions> all{of(Policy::one_f_one_b), of(Policy::gpipe),       of(Policy::interleaved),
                                   of(Policy::zero_bubble), of(Policy::zero_bubble), of(Policy::list),
                                   of(Policy::list)};
  all[4].memory = ZeroBubbleMemory::h2;
  all[6].split_backward = true;
  return all;
}

std::string name_of(const ScheduleOptions& options) {
  std::string name = name_of(options.policy);
  if (options.policy == Policy::zero_bubble) name += options.memory == ZeroBubbleMemory::h1 ? " h1" : " h2";
  if (options.policy == Policy::list && options.split_backward) name += " (split backward)";
  return name;
}

std::vector<Program> programs_of(const ScheduleProblem& problem, ScheduleOptions options) {
  MMT_CHECK(problem.graph != nullptr && problem.places.size() == problem.graph->stages.size() &&
                problem.times.size() == problem.places.size(),
            "a problem of {} places and {} times", problem.places.size(), problem.times.size());
  if (!options.cost) options.cost = cost_function(problem);
  PassOptions pass;
  pass.boundary = boundary_of(options.policy);
  pass.end = problem.end;
  return make_programs(*problem.graph, generate(shape_of(*problem.graph, problem.places, problem.restore), options),
                       pass);
}

Timeline simulate(const ScheduleProblem& problem, std::span<const Program> programs) {
  return simulate(*problem.graph, programs, cost_of_stages(programs, problem.times), problem.simulate);
}

ScheduleChoice choose_schedule(std::span<const ScheduleProblem> problems, std::span<const ScheduleOptions> schedules,
                               std::span<const std::int64_t> memory) {
  ScheduleChoice choice;
  for (const ScheduleOptions& schedule : schedules) {
    for (std::size_t p = 0; p < problems.size(); ++p) {
      ScheduleTrial trial;
      trial.name = name_of(schedule);
      trial.problem = p;
      trial.options = schedule;
      trial.options.credits = problems[p].graph->credits;
      if (!trial.options.cost) trial.options.cost = cost_function(problems[p]);
      try {
        const std::vector<Program> programs = programs_of(problems[p], trial.options);
        const Timeline timeline = simulate(problems[p], programs);
        trial.makespan = timeline.makespan;
        trial.bubble = timeline.bubble();
        weigh(trial, timeline, problems[p], memory);
      } catch (const ConfigError& e) {
        trial.refused = e.what();
      }
      const bool better = trial.fits() && (choice.best < 0 || trial.makespan < choice.trials[at(choice.best)].makespan);
      if (better) choice.best = static_cast<int>(choice.trials.size());
      choice.trials.push_back(std::move(trial));
    }
  }
  choice.reason = reason_of(choice);
  return choice;
}

}  // namespace mmt::plan
