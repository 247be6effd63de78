// Shared memory as one rank of a group sees it: heap memory between threads, a window between processes of a node.
#pragma once

#include "parallel/comm/world.h"

#include <memory>
#include <vector>

namespace mmt::comm {

/// A piece of memory per rank, each addressable here.
struct ShmPieces {
  std::shared_ptr<void> owner;
  std::vector<char*> bases;  ///< one per rank, 64-byte aligned, zeroed; empty: could not be had (the same on all ranks)
};

class ShmGroup {
 public:
  virtual ~ShmGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual World& world() = 0;
  /// The ranks of the group as ranks of the world, for messages.
  virtual int world_rank(int r) const = 0;
  /// True when a pointer of one rank can be used by the others.
  virtual bool one_address_space() const = 0;
  /// Collective; each rank says how much it wants of its own.
  virtual ShmPieces allocate(std::size_t bytes) = 0;
  /// Why the last allocate could not have its memory.
  virtual std::string problem() const { return ""; }
  /// Collective; null for a negative color.
  virtual std::shared_ptr<ShmGroup> split(int color, int key) = 0;
};

}  // namespace mmt::comm
