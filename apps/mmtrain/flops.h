// The arithmetic that a step needs, whatever the layout: what MFU counts.
#pragma once

#include "apps/mmtrain/step.h"

#include <map>

namespace mmt::app {

/// F, and of the backward what the frozen pattern wants; no recompute. Work that every rank of a tp group does again (a
/// projector, a norm) counts once: the costs are those of the uncut model, and one rank of each group counts them.
class RequiredFlops {
 public:
  RequiredFlops(const Config& config, const Model& model);
  /// This rank's share of a step; the sum over ranks is the step's.
  double of(const Model& model, const PlannedStep& step) const;

 private:
  std::map<int, plan::LayerCost> costs_;  ///< by stage that this rank leads
};

}  // namespace mmt::app
