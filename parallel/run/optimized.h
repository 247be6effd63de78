// A rank's parameters as the optimizer and the checkpoint want them: each element of the model counted, and written,
// once.
#pragma once

#include "parallel/run/checkpoint.h"
#include "parallel/run/optimizer.h"
#include "parallel/run/ties.h"

#include <span>

namespace mmt::run {

/// A stage's store and where this rank stands in the mesh of the stage's module.
struct PlacedStore {
  int stage = 0;  ///< id
  ParameterStore* store = nullptr;
  plan::Coord degrees{{1, 1, 1, 1}};
  plan::Coord coord{};
};

/// One parameter with master weights of its own on this rank (uses within a stage share theirs).
struct PlacedParam {
  ParamState* state = nullptr;
  std::string name;       ///< canonical
  Copies copies{};        ///< of its part
  bool first_use = true;  ///< in graph order: owns norm and checkpoint; other uses are updated with it
};
/// In the order of the stores and their parameters. `uses` by stage id, of all stages of the graph; empty: all stages
/// are here.
std::vector<PlacedParam> placed_params(std::span<const PlacedStore> stores, std::span<const StageUses> uses,
                                       bool trainable_only);

/// The trainable ones for the optimizer. weight_decay is 1 where weights decay, else 0; lr_scale is 1.
std::vector<OptimizedParam> optimized_params(std::span<const PlacedStore> stores, std::span<const StageUses> uses);

/// Weights ("model/<module>/<name>") and, with an optimizer made from optimized_params of the same arguments, moments
/// ("optimizer/first_moment/...", "optimizer/second_moment/..."). Parts that this rank does not own are in the list,
/// too (they are loaded, not saved).
std::vector<SavedPart> saved_parts(std::span<const PlacedStore> stores, std::span<const StageUses> uses,
                                   const Optimizer* optimizer);

}  // namespace mmt::run
