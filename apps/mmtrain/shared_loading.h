// With tensor parallelism one rank of a group reads and decodes; the others get what it read.
#pragma once

#include "apps/mmtrain/step.h"

#include <vector>

namespace mmt::app {

/// Whether this rank's loader brings what its tp group needs; the others open no data files for a step.
bool reads_samples(const Model& model);
/// What the loader is asked for: step.wanted, or nothing.
std::vector<data::Wanted> wanted_here(const Model& model, const PlannedStep& step);

/// Collective over the tp group, after agree_on_failed, whose result `faults` is: fills `loaded` on ranks that asked
/// for nothing. Sizes are known from the plan.
void share_loaded(const Config& config, const Model& model, const PlannedStep& step,
                  const std::vector<std::int32_t>& faults, std::vector<data::LoadedSample>& loaded);

}  // namespace mmt::app
