// Tied parameters: one canonical name with several uses, in one stage or in several, on one rank or on many. Every use
// accumulates its own gradient; after its data reduction the uses' gradients are added, and all uses apply one update.
#pragma once

#include "parallel/run/store.h"

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace mmt::run {

/// What every rank knows of every stage, from the plans of its units.
struct StageUses {
  /// World ranks that run the stage, tp fastest, then cp, dp: ranks of equal places in two lists have equal
  /// coordinates.
  std::vector<int> ranks;
  struct Use {
    std::string name;  ///< canonical
    bool trainable = true;
  };
  std::vector<Use> params;  ///< in order; a name as often as it is used
};
StageUses uses_of(const Stage& stage, std::vector<int> ranks);

/// A tied parameter of the graph; its index in the list of all is its TIE number, on all ranks alike.
struct Tie {
  std::string name;
  std::vector<int> stages;  ///< that use it, in order; one entry a stage
};
/// Trainable parameters with more than one use, sorted by name. `stages` by stage id, which is graph order.
std::vector<Tie> find_ties(std::span<const StageUses> stages);

/// Collective over the world (every rank, the same `stages`, at start): groups of ranks with equal coordinates, made in
/// one order everywhere. `stores` by stage id, null for stages of other ranks. The result is in the order of find_ties;
/// a tie that this rank has no part in has no uses. Throws std::logic_error when the stages of a tied parameter have
/// other numbers of ranks.
struct Ties {
  std::vector<TieGroup> groups;
  std::vector<std::unique_ptr<comm::Communicator>> comms;  ///< what the groups point to
};
Ties make_ties(comm::Communicator& world, std::span<const StageUses> stages, std::span<ParameterStore* const> stores);

/// Collective over the groups that this rank is in: the uses' master weights are equal on all their ranks, else Error.
void check_ties(std::span<const TieGroup> groups, const Stream& stream);

}  // namespace mmt::run
