// Measured timelines: what all ranks executed in a step, on one clock.
#pragma once

#include "parallel/comm/communicator.h"
#include "parallel/plan/timeline.h"
#include "parallel/run/executor.h"

#include <functional>
#include <vector>

namespace mmt::run {

/// A rank's clock in seconds. By default the machine's monotonic one, which Executor::started() is of.
using Clock = std::function<double()>;
double monotonic_seconds();

struct MeasuredTrace {
  /// On rank 0: all ranks, from the first start of a run, in rank order, summarised, with the arenas' sizes and peaks.
  plan::Timeline timeline;
  /// On rank 0: by rank and action, CPU time of the calling thread, for plan::replay. Waits are in it where they spin:
  /// transfers are better modelled.
  std::vector<std::vector<plan::Ns>> cpu;
  /// On all ranks: by rank, how far its times may be off rank 0's clock.
  std::vector<plan::Ns> clock_error;
};

/// Collective, after a run(). Clocks are compared by pings between rank 0 and every other: half of the shortest round
/// trip is the error that is left. A clock that agrees with rank 0's within that (ranks of one machine) is not shifted.
MeasuredTrace gather_trace(comm::Communicator& world, const Executor& executor);
MeasuredTrace gather_trace(comm::Communicator& world, std::span<const TraceRow> rows, double started,
                           std::int64_t peak_bytes, std::int64_t capacity_bytes,
                           const Clock& clock = monotonic_seconds);

}  // namespace mmt::run
