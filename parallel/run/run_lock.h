// One job a run folder. Its lock says who holds it: job, host, process.
#pragma once

#include "parallel/comm/communicator.h"

#include <memory>
#include <string>

namespace mmt::run {

struct RunLockOptions {
  std::string job;              ///< what the user knows it by ("slurm job 1234"); may be empty
  double beat_seconds = 15;     ///< how often a holder shows that it lives
  double silence_seconds = 60;  ///< a holder on another machine that showed nothing for so long may be dead
};

/// Holds `<folder>/run.lock` until it is destroyed. A holder that died leaves its lock behind; it is taken over when
/// its process is gone (same machine: number and start time), or when, on another machine, its last sign of life is
/// older than `silence_seconds` and none comes while we watch for two beats (clocks may differ).
class RunLock {
 public:
  /// Collective: rank 0 takes the lock, the others hear of it. Throws ConfigError on all ranks, saying who holds it.
  RunLock(comm::Communicator& world, const std::string& folder, const RunLockOptions& options);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  class Holder;
  std::unique_ptr<Holder> holder_;  // rank 0
};

}  // namespace mmt::run
