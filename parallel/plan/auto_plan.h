// stages: auto and schedule: auto. A few good cuts are tried with every schedule; simulation decides, and says why.
#pragma once

#include "parallel/plan/partition_modules.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace mmt::plan {

struct AutoOptions {
  int num_blocks = 1;
  CutOptions cut{};           ///< `memory` and `in_flight` are set from what follows
  TransferCosts transfers{};  ///< links and nodes of the ranks that places stand for; bytes come from the cuts
  std::vector<ScheduleOptions> schedules = all_schedules();
  std::vector<std::int64_t> memory{};  ///< by place; one entry: all alike; empty: any
  int chunks = 2;                      ///< of a place in interleaved schedules, where there are layers enough; 1: none
  int candidates = 4;                  ///< divisions of ranks among modules that are simulated
};

struct AutoPlan {
  PlannedPipeline pipeline;
  std::vector<Cut> cuts;                  ///< one of a joined chain; else by module
  std::vector<bool> projector_at_reader;  ///< modules on ranks of their own
  int chunks = 1;
  ScheduleOptions schedule;
  std::vector<Program> programs;
  Timeline timeline;
  std::vector<ScheduleTrial> trials;
  /// "2 places of 180, 60 layers, the slowest takes 81 ms (cut by forward time: 120 ms); zero-bubble h1 774 ms; ..."
  std::string reason;
};

/// The best plan of one chain on `places` places. Cuts are made for the memory of 1f1b, gpipe and zero-bubble h2, and
/// into chunks. Throws ConfigError when nothing fits, with what each would need.
AutoPlan plan_chain(const Chain& chain, int places, const AutoOptions& options);

/// The best plan of modules on ranks of their own, for one replica of `ranks` ranks.
AutoPlan plan_modules(std::span<const ModuleLayers> modules, int ranks, const AutoOptions& options);

}  // namespace mmt::plan
