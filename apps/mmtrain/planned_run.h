// A run that is planned and not made: its layout, what every rank of a lane will hold, and how long a step will take.
#pragma once

#include "apps/mmtrain/commands.h"
#include "apps/mmtrain/layout.h"
#include "apps/mmtrain/predict.h"
#include "parallel/plan/choose.h"

#include <memory>
#include <string>
#include <vector>

namespace mmt::app {

/// What a plan is made from, whatever the schedule.
struct PlanInput {
  Config config;
  int ranks = 1;
  Workload workload;
  Machine machine;
};
/// Reads configuration and data (indexes that are missing are built) for `arguments.ranks` ranks; 0: as many as the
/// layout says. Collective.
PlanInput read_plan_input(Job& job, const Arguments& arguments);

/// One average step of the first lane.
struct PlannedRun {
  LayoutChoice choice;
  std::unique_ptr<Model> model;
  plan::StageGraph graph;
  std::vector<plan::Program> programs;
  plan::Timeline timeline;
  std::vector<RankMemory> memory;  ///< by rank of the lane, in the order of the programs

  std::string schedule() const { return plan::name_of(model->schedule); }
  std::vector<std::string> stage_names(const Config& config) const;  ///< "eyes embed-3"
};
/// Throws ConfigError when nothing fits what the configuration leaves open.
PlannedRun plan_run(const Config& config, const Workload& workload, const Machine& machine);

/// What would lower the memory of a run that does not fit: "train.recompute: full, ...".
std::string memory_advice(const Config& config);

}  // namespace mmt::app
