// Layers with their times and bytes for one block of a run: what cuts are made of.
#pragma once

#include "apps/mmtrain/layer_infos.h"
#include "apps/mmtrain/machine.h"
#include "apps/mmtrain/workload.h"
#include "parallel/plan/partition_modules.h"

#include <vector>

namespace mmt::app {

/// By module, its projector among the layers: times of an average block, memory of the largest one.
std::vector<plan::ModuleLayers> module_layers(const std::vector<std::vector<plan::LayerInfo>>& infos,
                                              const Workload& workload, const Machine& machine);

/// A cut's places as runs of units, where the chain has these units in order; neighbours of one module that meet at a
/// place again become one run.
std::vector<std::vector<plan::UnitSpan>> runs_of(const plan::Cut& cut, const std::vector<plan::UnitSpan>& units);

/// Links between neighbouring places of a mesh by the places behind, as CutOptions wants them.
std::vector<plan::Link> place_links(const plan::Mesh& mesh, const Machine& machine);

}  // namespace mmt::app
