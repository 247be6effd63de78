// The ranks of an mpirun or srun job. No MPI type appears here.
#pragma once

#include "parallel/comm/communicator.h"

namespace mmt::comm {

struct MpiOptions {
  double timeout_seconds = 1800;          ///< MMTRAIN_COMM_TIMEOUT overrides it
  std::size_t staging_bytes = 512 << 10;  ///< per rank and communicator
  std::size_t outbox_bytes = 1 << 20;     ///< per rank and communicator, see Communicator::reserve_sends
};

/// Initialises MPI (MPI_THREAD_FUNNELED) and finalises it. One object per process, made before other threads start.
/// Throws ConfigError when the launcher made N worlds of one rank each (a PMI that this MPI does not speak).
/// MMTRAIN_NODES=k makes k groups of neighbouring ranks act as nodes that share no memory (tests).
/// MMTRAIN_SHARED_MEMORY=off sends everything as MPI messages; a number is a limit in MiB on shared memory windows.
class MpiWorld {
 public:
  MpiWorld(int* argc, char*** argv, const MpiOptions& options = {});
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  Communicator& world();
  int node() const;  ///< index of this rank's node
  int num_nodes() const;
  int ranks_on_node() const;
  const std::string& host() const;
  /// Sent by this rank as MPI messages so far: what goes from node to node, where nodes share memory inside.
  std::int64_t bytes_between_nodes() const;
  /// For the start-up report: how ranks of a node reduce and send, and, when it is a slow path, why.
  const std::string& transport() const;

  /// Ends the job from a rank that failed: makes the waits of the other ranks fail, prints the message, and ends all
  /// ranks with the exit code. When another rank failed first, its message stands: this one prints nothing and leaves
  /// it the time to end the job. Every exception that reaches main goes here, the PeerErrors of the other ranks too.
  [[noreturn]] void fail(int exit_code, std::string_view message) noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// True when this process was started by mpirun, srun or a like launcher as one of several.
bool launched_as_one_of_many();

}  // namespace mmt::comm
