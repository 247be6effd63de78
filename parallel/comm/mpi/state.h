// What the MPI communicators of one process share. The only MPI types outside .cpp files, seen in this folder alone.
#pragma once

#include "parallel/comm/mpi/world.h"
#include "parallel/comm/pairwise.h"
#include "parallel/comm/shm.h"

#define OMPI_SKIP_MPICXX 1  // no C++ bindings of old
#include <mpi.h>

#include <deque>

namespace mmt::comm {

/// Throws PeerError with MPI's own text.
void check_mpi(int code, const char* what);
/// Waits until all ranks are here, as every wait does: sends of this rank move on meanwhile, and a failure elsewhere or
/// a rank that does not come ends it. Called before MPI's own blocking collectives, which know none of that.
void meet(const World& world, MPI_Comm comm, const char* what);

struct MpiState {
  World world;
  MpiOptions options;
  std::vector<int> node_of;  ///< by world rank
  bool use_shared_memory = true;
  std::uint64_t shared_limit = ~std::uint64_t{0};  ///< bytes of windows, summed over the ranks of each
  std::uint64_t shared_bytes = 0;
  std::int64_t bytes_between_nodes = 0;  ///< sent by this rank over MPI
  std::string why_not_shared;            ///< why windows could not be had, when they could not
  AbortFlag own_flag;                    ///< when there is no shared memory
  // Freed at the end, in the order made, since freeing is collective.
  std::vector<MPI_Comm> comms;
  std::vector<MPI_Win> windows;

  ShmOptions shm_options() const { return {options.staging_bytes, options.outbox_bytes, true}; }
};

/// Ranks of one node over an MPI communicator; memory comes from MPI windows.
class MpiGroup final : public ShmGroup {
 public:
  MpiGroup(std::shared_ptr<MpiState> state, MPI_Comm comm);
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(world_ranks_.size()); }
  World& world() override { return state_->world; }
  int world_rank(int r) const override { return world_ranks_[static_cast<std::size_t>(r)]; }
  bool one_address_space() const override { return false; }
  ShmPieces allocate(std::size_t bytes) override;
  std::string problem() const override { return state_->why_not_shared; }
  std::shared_ptr<ShmGroup> split(int color, int key) override;

 private:
  std::shared_ptr<MpiState> state_;
  MPI_Comm comm_;
  int rank_ = 0;
  std::vector<int> world_ranks_;
};

/// Messages between ranks of several nodes: shared memory where two ranks have it, MPI otherwise.
class MpiPost final : public Post, public Progress {
 public:
  MpiPost(std::shared_ptr<MpiState> state, MPI_Comm comm);
  ~MpiPost() override;
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(world_ranks_.size()); }
  World& world() override { return state_->world; }
  void post(int to, Mailbox::Lane lane, const void* data, std::size_t bytes) override;
  void take(int from, Mailbox::Lane lane, void* data, std::size_t bytes, std::string_view comm_name) override;
  void poll() override;
  void reserve(std::size_t bytes) override;
  const Nodes* nodes() const override { return nodes_ ? &*nodes_ : nullptr; }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override;

 private:
  struct Sending {
    std::vector<char> data;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  std::shared_ptr<MpiState> state_;
  MPI_Comm comm_;
  int rank_ = 0;
  std::vector<int> world_ranks_;
  std::unique_ptr<ShmCommunicator> local_;  // the ranks of this communicator on this node; null without shared memory
  std::vector<int> local_rank_;             // by rank: its rank there, or -1
  std::optional<Nodes> nodes_;
  std::deque<Sending> sending_;
};

/// Collective. Shared memory when all ranks of `comm` are on one node and it can be had, messages otherwise.
std::unique_ptr<Communicator> make_mpi_communicator(std::shared_ptr<MpiState> state, MPI_Comm comm, std::string name);

std::vector<int> world_ranks_of(MPI_Comm comm);

}  // namespace mmt::comm
