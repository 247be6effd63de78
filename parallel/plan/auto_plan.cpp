#include "parallel/plan/auto_plan.h"

#include "core/at.h"
#include "core/error.h"

#include <algorithm>
#include <utility>

namespace mmt::plan {
namespace {

/// One way to cut.
struct Candidate {
  std::vector<Cut> cuts;
  std::vector<bool> projector_at_reader;
  int chunks = 1;
  PlannedPipeline pipeline;
};

std::vector<int> sizes(const Cut& cut) {
  std::vector<int> layers;
  for (const PlaceCost& p : cut.places) layers.push_back(p.count);
  return layers;
}

bool same(const Candidate& a, const Candidate& b) {
  return a.chunks == b.chunks && a.projector_at_reader == b.projector_at_reader &&
         std::ranges::equal(a.cuts, b.cuts, [](const Cut& x, const Cut& y) { return sizes(x) == sizes(y); });
}

CutOptions cut_options(const AutoOptions& options, InFlight in_flight) {
  CutOptions cut = options.cut;
  // The tightest rank: which place it holds is not known yet.
  if (!options.memory.empty()) cut.memory = *std::ranges::min_element(options.memory);
  cut.in_flight = in_flight;
  cut.in_flight.num_blocks = options.num_blocks;
  return cut;
}

/// Ways to cut for the schedules' memory: that of 1f1b first, as most need no more.
std::vector<InFlight> memories(const AutoOptions& options) {
  return {{.per_place = 1, .extra = 1}, {.per_place = 2, .extra = 1}, {.per_place = 0, .extra = options.num_blocks}};
}

AutoPlan choose(std::vector<Candidate> candidates, const AutoOptions& options) {
  std::vector<ScheduleProblem> problems;
  for (Candidate& c : candidates) {
    TransferCosts transfers = options.transfers;
    transfers.row_bytes = std::move(c.pipeline.simulate.transfers.row_bytes);
    transfers.grad_bytes = std::move(c.pipeline.simulate.transfers.grad_bytes);
    c.pipeline.simulate.transfers = std::move(transfers);
    problems.push_back(problem_of(c.pipeline));
  }
  ScheduleChoice choice = choose_schedule(problems, options.schedules, options.memory);
  if (choice.best < 0) throw ConfigError("no schedule fits: " + choice.reason);
  const ScheduleTrial& best = choice.trials[at(choice.best)];
  Candidate& winner = candidates[best.problem];
  AutoPlan plan;
  plan.cuts = std::move(winner.cuts);
  plan.projector_at_reader = std::move(winner.projector_at_reader);
  plan.chunks = winner.chunks;
  plan.schedule = best.options;
  plan.programs = programs_of(problems[best.problem], best.options);
  plan.timeline = simulate(problems[best.problem], plan.programs);
  plan.pipeline = std::move(winner.pipeline);
  plan.reason = std::move(choice.reason);
  plan.trials = std::move(choice.trials);
  return plan;
}

Ns slowest(const std::vector<Cut>& cuts) {
  Ns most = 0;
  for (const Cut& c : cuts) most = std::max(most, c.bottleneck);
  return most;
}

}  // namespace

AutoPlan plan_chain(const Chain& chain, int places, const AutoOptions& options) {
  std::vector<Candidate> candidates;
  const auto add = [&](Cut cut, int chunks) {
    Candidate c;
    c.chunks = chunks;
    c.cuts.push_back(std::move(cut));
    if (std::ranges::any_of(candidates, [&](const Candidate& other) { return same(c, other); })) return;
    c.pipeline = pipeline_of(chain, c.cuts[0], options.num_blocks, places);
    candidates.push_back(std::move(c));
  };
  std::string refused;
  for (const InFlight& memory : memories(options)) {
    try {
      add(cut_chain(chain, places, cut_options(options, memory)), 1);
    } catch (const ConfigError& e) {
      if (refused.empty()) refused = e.what();
    }
  }
  if (candidates.empty()) throw ConfigError(refused);
  const int pieces = places * options.chunks;
  if (options.chunks > 1 && places > 1 && pieces <= static_cast<int>(chain.layers.size())) {
    // A place holds several pieces: its memory is checked by simulation.
    CutOptions cut = cut_options(options, {});
    cut.memory = 0;
    add(cut_chain(chain, pieces, cut), options.chunks);
  }
  AutoPlan plan = choose(std::move(candidates), options);
  CutOptions by_forward = cut_options(options, {});
  by_forward.by = CutBy::forward;
  by_forward.memory = 0;
  const Ns unaware = cut_chain(chain, places * plan.chunks, by_forward).bottleneck;
  std::string layers;
  for (const int n : sizes(plan.cuts[0])) layers += fmt::format("{}{}", layers.empty() ? "" : ", ", n);
  plan.reason = fmt::format("{} places of {} layers, the slowest takes {} (cut by forward time: {}); {}", places,
                            layers, duration_text(slowest(plan.cuts)), duration_text(unaware), plan.reason);
  return plan;
}

AutoPlan plan_modules(std::span<const ModuleLayers> modules, int ranks, const AutoOptions& options) {
  std::vector<Candidate> candidates;
  std::string refused;
  for (const InFlight& memory : memories(options)) {
    std::vector<ModuleCuts> few;
    try {
      few = partition_modules(modules, ranks, cut_options(options, memory), options.candidates);
    } catch (const ConfigError& e) {
      if (refused.empty()) refused = e.what();
      continue;
    }
    for (ModuleCuts& cuts : few) {
      Candidate c;
      c.pipeline = pipeline_of(modules, cuts, options.num_blocks);
      c.cuts = std::move(cuts.cuts);
      c.projector_at_reader = std::move(cuts.projector_at_reader);
      if (std::ranges::none_of(candidates, [&](const Candidate& other) { return same(c, other); })) {
        candidates.push_back(std::move(c));
      }
    }
  }
  if (candidates.empty()) throw ConfigError(refused);
  AutoPlan plan = choose(std::move(candidates), options);
  const ModuleCuts cuts{plan.projector_at_reader, plan.cuts, slowest(plan.cuts), 0};
  plan.reason =
      fmt::format("{}, the slowest takes {}; {}", cuts.text(modules), duration_text(cuts.bottleneck), plan.reason);
  return plan;
}

}  // namespace mmt::plan
