// Many ranks as threads of one process: what tests run layouts on, under sanitizers, with seeded delays and failures.
#pragma once

#include "parallel/comm/communicator.h"

#include <functional>

namespace mmt::comm {

struct ThreadOptions {
  std::uint64_t seed = 0;  ///< other than 0: every operation is preceded by a random delay (0 to 300 us)
  int fail_rank = -1;      ///< this rank throws in its operation number `fail_at` (from 0, over all communicators)
  int fail_at = -1;
  double timeout_seconds = 60;
  bool direct = true;     ///< false: as between processes, tensors outside shared blocks go through staging buffers
  bool pairwise = false;  ///< collectives over messages, as between nodes
  int nodes = 0;          ///< with pairwise: groups of neighbouring ranks share memory as the ranks of a node do
  std::size_t staging_bytes = 256 << 10;  ///< per rank and communicator, as below
  std::size_t outbox_bytes = 1 << 20;
};

/// Runs `body` on `ranks` threads, each with its communicator "world". When ranks fail, all are ended and the first
/// cause is thrown again, of the same type, its message beginning with "rank R: ".
/// Do not use Catch assertions inside `body`: they are not thread-safe. Throw (MMT_CHECK) instead.
void run_threads(int ranks, const std::function<void(Communicator&)>& body, const ThreadOptions& options = {});

}  // namespace mmt::comm
