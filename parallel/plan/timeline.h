// Timeline: when each action of each rank ran, simulated or measured, and what follows from it.
#pragma once

#include "parallel/plan/program.h"
#include "parallel/plan/timing.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace mmt::plan {

struct TimelineRow {
  Action action;
  Ns start = 0;  ///< since the start of the step
  Ns end = 0;
};

/// The rank's memory from this time to the next point.
struct MemoryPoint {
  Ns at = 0;
  std::int64_t bytes = 0;
};

struct RankTimeline {
  int rank = 0;
  std::vector<TimelineRow> rows;  ///< in program order
  Ns busy = 0;                    ///< in everything but transfers
  Ns transfer = 0;                ///< in SEND and RECV; where measured, their waiting counts here
  Ns wait = 0;                    ///< the rest of the makespan
  std::vector<MemoryPoint> memory;
  std::int64_t peak = 0;    ///< most bytes at once
  std::int64_t arenas = 0;  ///< bytes of the executor's arenas, which are sized for the most of each part
};

/// One action of the longest chain: it starts `in_flight` (a message under way) after the step before it ends.
struct CriticalStep {
  int rank = 0;  ///< world rank
  int row = 0;   ///< of its timeline
  Ns in_flight = 0;
};

struct Timeline {
  std::vector<RankTimeline> ranks;  ///< in the order of the programs
  Ns makespan = 0;
  /// Actions and messages under way, end to end from 0 to the makespan. Simulated timelines only.
  std::vector<CriticalStep> critical;
  /// Share of all ranks' time in which nothing but transfers and waiting happened.
  double bubble() const;
};

/// Fills makespan, busy, transfer and wait from the rows.
void summarise(Timeline& timeline);

/// Predicted against measured time of all actions of one kind and stage, over all ranks.
struct ActionError {
  Kind kind = Kind::forward;
  int stage = 0;
  int count = 0;  ///< actions present in both
  Ns predicted = 0, measured = 0;
  Ns worst = 0;  ///< largest |measured - predicted| of one action
};
/// By (stage, kind). Actions are matched by rank and value; those in one timeline only are left out.
std::vector<ActionError> compare(const Timeline& predicted, const Timeline& measured);

}  // namespace mmt::plan
