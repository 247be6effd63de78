// A recorded step once more, from the processor time of its actions: what it takes where no rank waits for a core.
#pragma once

#include "apps/mmtrain/planned_run.h"

#include <string>

namespace mmt::app {

/// The measured timeline of a trace that `log.trace` wrote, replayed on the layout of `input`: computing actions take
/// the CPU time that was recorded, transfers what the machine's links take for average blocks. Throws ConfigError for a
/// file that is no such trace or is of another layout.
plan::Timeline replay_trace(const PlanInput& input, const std::string& path);

}  // namespace mmt::app
