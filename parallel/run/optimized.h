// What the optimizer works on: a rank's trainable parameters, each element of the model counted once.
#pragma once

#include "parallel/run/optimizer.h"
#include "parallel/run/ties.h"

#include <span>

namespace mmt::run {

/// A stage's store and where this rank stands in the mesh of the stage's module.
struct PlacedStore {
  ParameterStore* store = nullptr;
  plan::Coord degrees{{1, 1, 1, 1}};
  plan::Coord coord{};
};

/// All trainable parameters with master weights of their own here, in the order of the stores. Parts that several ranks
/// hold count once in the norm (copies_of); of a tied parameter the first use in graph order counts, the others are
/// updated with it (`ties`: as find_ties made them). weight_decay is 1 where weights decay, else 0; lr_scale is 1.
std::vector<OptimizedParam> optimized_params(std::span<const PlacedStore> stores, std::span<const TieGroup> ties);

}  // namespace mmt::run
