// The start of a process: ranks, configuration (read once, by rank 0), log, warnings about threads and cores; and its
// end.
#pragma once

#include "apps/mmtrain/config.h"
#include "parallel/comm/communicator.h"

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace mmt::app {

enum ExitCode : int {
  kDone = 0,
  kFailed = 1,
  kUsage = 2,
  kNonFinite = 3,
  kOutOfMemory = 4,
  kPeerFailed = 5,
  kRequeue = 75,
};

/// Thrown by all ranks together, so that rank 0 alone reports it and nobody has to be woken up.
class Agreed : public Error {
 public:
  Agreed(ExitCode code, const std::string& message) : Error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// One message for a failure that any rank may have had alone; the same on all ranks afterwards. `own` is empty where
/// all is well. Returns the lowest failing rank's message with its rank, or an empty string.
std::string agree_on_failure(comm::Communicator& world, const std::string& own);

/// Runs `work`, which must not communicate, on every rank; when it throws on any of them, all throw Agreed with the
/// lowest rank's message. ConfigError becomes kUsage, anything else kFailed.
void in_agreement(comm::Communicator& world, const std::function<void()>& work);

/// Collective: whether all ranks have the same hash.
bool same_on_all(comm::Communicator& world, std::uint64_t hash);

/// Cores that this process may run on.
int cores_available();

class Job {
 public:
  /// Starts MPI where a launcher made several processes; else the job is one rank.
  Job(int* argc, char*** argv);
  ~Job();

  comm::Communicator& world() { return *world_; }
  int rank() const { return world_->rank(); }
  int size() const { return world_->size(); }

  /// Which number of ranks a command needs.
  enum class Needs : std::uint8_t {
    layout,   ///< what the configuration's layout says
    nothing,  ///< a single process does without the layout: it works on the whole model alone
  };
  /// Collective: rank 0 reads the files, all bind the same text. Throws Agreed(kUsage).
  Config read(const std::string& path, const std::vector<std::string>& overrides, Needs needs = Needs::layout);
  /// For a layout of any number of ranks (0: as many as it says), which nothing will run here.
  Config read_for(const std::string& path, const std::vector<std::string>& overrides, int ranks);
  /// "2 ranks on 1 node, 1 thread each; reductions through shared memory", and warnings on what would be slow.
  void report() const;
  /// Of a job of several ranks: prints the message and ends all ranks with the code, unless another rank failed first.
  [[noreturn]] void fail(int code, const std::string& message);

 private:
  struct Mpi;
  std::unique_ptr<Mpi> mpi_;
  std::unique_ptr<comm::Communicator> self_;
  comm::Communicator* world_ = nullptr;
};

/// Runs a command and turns what it throws into one message and an exit code.
int run_command(const std::function<int(Job&)>& command, int* argc, char*** argv);

/// For `--out`. ConfigError where there is something that is not an empty folder.
void check_new_folder(const std::string& path);

}  // namespace mmt::app
