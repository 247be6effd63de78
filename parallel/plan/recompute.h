// recompute: auto. Which layers recompute, so that the memory suffices and the slowest place is fastest.
#pragma once

#include "parallel/plan/partition.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace mmt::plan {

struct RecomputeChoice {
  std::vector<std::uint8_t> level;  ///< by layer: index into the variants
  Chain chain;                      ///< the layers as chosen
  Cut cut;
  /// "12 of 40 layers recompute, the slowest place takes 81 ms; no cut of 40 layers into 4 stages fits ..."
  std::string reason;
};

/// `variants`: the same chain with more and more recompute (none, selective, full); at least one. Each is cut into
/// `places`; then layers of each place go back to less recompute, those first that save most time for their memory, as
/// long as the place fits. The fastest slowest place wins; of equals, that which began with less recompute. Throws what
/// cut_chain throws for the last variant when none fits.
RecomputeChoice choose_recompute(std::span<const Chain> variants, int places, const CutOptions& options);

}  // namespace mmt::plan
