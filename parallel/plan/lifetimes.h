// Lifetimes: how long blocks live in a program, and so how much memory a rank needs.
#pragma once

#include "parallel/plan/program.h"
#include "parallel/plan/wiring.h"

namespace mmt::plan {

/// Transfers on a rank that a block of a stage waits for before its memory can be given back.
struct BlockReaders {
  int out = 0;      ///< that read its output: for each consumer block, a SEND and a local copy count one each
  int returns = 0;  ///< that bring gradients of its output
  int grads = 0;    ///< that read the gradients of its inputs
};
BlockReaders readers_of(const Wiring& wiring, int stage, int block, int rank);
BlockReaders readers_of(const StageGraph& graph, int stage, int block, int rank);

/// Most blocks of a stage that are alive at once in one rank's program: between F and I (kept), between F and W (held),
/// between I and W (stash), between R and I (restored), and between the first receive and the last reader (ports).
struct LiveBlocks {
  int kept = 0;
  int held = 0;
  int stash = 0;
  int restored = 0;
  int ports = 0;
  bool joint = false;  ///< a B runs: W within the backward
  friend bool operator==(const LiveBlocks&, const LiveBlocks&) = default;
};
LiveBlocks live_blocks(const Wiring& wiring, const Program& program, int stage);
LiveBlocks live_blocks(const StageGraph& graph, const Program& program, int stage);

}  // namespace mmt::plan
