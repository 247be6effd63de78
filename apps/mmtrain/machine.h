// What planning goes by: memory of a rank, links, costs of layers. The same on all ranks.
#pragma once

#include "apps/mmtrain/config.h"
#include "parallel/comm/communicator.h"
#include "parallel/plan/simulate.h"
#include "parallel/plan/timing.h"

#include <cstdint>
#include <string>

namespace mmt::app {

struct Machine {
  int ranks_per_node = 0;   ///< 0: all ranks are on one node
  std::int64_t memory = 0;  ///< bytes of a rank; 0: not known, anything fits
  plan::Link local, intra, inter;
  plan::CostModel costs;
  std::string text;  ///< "64 ranks on 8 nodes, 80.0 GiB a rank; ...": where each came from

  /// By world rank, without bytes of edges.
  plan::TransferCosts transfers(int ranks) const;
};

/// What `cluster` says, and where it says nothing: one node, this machine's memory shared by its ranks, links and rates
/// of an ordinary processor. Collective: all ranks agree on the memory (the least) and must read the same cost file.
/// Throws Agreed(kUsage) when they do not, or for a bad one.
Machine machine_of(const Config& config, int ranks, comm::Communicator& world);

/// The memory that this process may use, of the system or of its control group.
std::int64_t system_memory();

}  // namespace mmt::app
