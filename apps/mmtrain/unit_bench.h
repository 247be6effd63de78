// Times of equal layers as a stage runs them: with weights, activations and gradients of their own, one after the
// other, forward through all and backward through all, so that what a cache holds in a run it holds here.
#pragma once

#include "parallel/plan/rows.h"
#include "parallel/plan/timing.h"
#include "parallel/run/store.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace mmt::app {

/// What made-up content is drawn from.
struct BenchContent {
  std::int64_t vocabulary = 1;   ///< token ids and labels are below it
  std::int64_t source_cols = 0;  ///< columns of the media that the first unit of an encoder reads
  std::vector<int> port_edges;   ///< by port of the stage: the edge that fills it, -1 for the layer before
};

class UnitBench {
 public:
  /// `stage` holds the units to measure and nothing else: equal ones, each reading rows as wide as those that it gives,
  /// or a single one. Collective over `tp` (null: one rank).
  UnitBench(run::Stage stage, comm::Communicator* tp, BenchContent content, const Stream& stream);

  /// Medians over passes and units for one block, averaged over the ranks of `world`, which all measure at once; a part
  /// that the frozen pattern does not need is 0. `recompute` is measured where a backward runs and the unit has an
  /// output. Collective.
  plan::LayerTime measure(const plan::RowsPlan& block, comm::Communicator& world);

 private:
  struct Memory;
  class Walk;
  run::Stage stage_;
  comm::Communicator* tp_;
  BenchContent content_;
  Stream stream_;
  std::unique_ptr<run::ParameterStore> store_;
};

}  // namespace mmt::app
