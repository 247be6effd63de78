#include "core/log.h"
#include "parallel/comm/mpi/state.h"

#include <algorithm>
#include <exception>

namespace mmt::comm {

namespace {

// MPI counts are ints; longer messages go as several.
constexpr std::size_t kPiece = std::size_t{1} << 28;

}  // namespace

MpiPost::MpiPost(std::shared_ptr<MpiState> state, MPI_Comm comm)
    : state_(std::move(state)), comm_(comm), world_ranks_(world_ranks_of(comm)) {
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  std::vector<int> node_of;
  for (const int r : world_ranks_) node_of.push_back(state_->node_of[static_cast<std::size_t>(r)]);
  const int mine = node_of[static_cast<std::size_t>(rank_)];
  MPI_Comm near = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(comm_, mine, rank_, &near), "split by node");
  state_->comms.push_back(near);
  local_ = std::make_unique<ShmCommunicator>("node", std::make_shared<MpiGroup>(state_, near), state_->shm_options());
  if (!local_->usable()) local_.reset();
  local_rank_.assign(world_ranks_.size(), -1);
  int next = 0;
  for (std::size_t r = 0; r < node_of.size(); ++r) {
    if (node_of[r] == mine && local_ != nullptr) local_rank_[r] = next++;
  }
  // All nodes take the same path: one without shared memory keeps the others from using theirs in collectives.
  int have = local_ != nullptr ? 1 : 0;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &have, 1, MPI_INT, MPI_MIN, comm_), "split by node");
  if (have != 0) nodes_ = find_nodes(node_of, rank_, local_.get());
  state_->world.progress.push_back(this);
}

MpiPost::~MpiPost() {
  const auto idle = [&] { return sending_.empty(); };
  if (!idle() && std::uncaught_exceptions() == 0) {
    try {
      state_->world.wait_until(
          idle, [&] { return fmt::format("rank {} has sent messages that nobody receives", world().rank); });
    } catch (const std::exception& e) {
      log::warning("{}", e.what());
    }
  }
  std::erase(state_->world.progress, static_cast<Progress*>(this));
}

void MpiPost::post(int to, Mailbox::Lane lane, const void* data, std::size_t bytes) {
  state_->world.check_abort();
  if (const int near = local_rank_[static_cast<std::size_t>(to)]; near >= 0)
    return local_->mailbox().post(near, lane, data, bytes);
  const char* p = static_cast<const char*>(data);
  std::size_t done = 0;
  state_->bytes_between_nodes += static_cast<std::int64_t>(bytes);
  do {
    const std::size_t n = std::min(kPiece, bytes - done);
    Sending& s = sending_.emplace_back();
    if (n > 0) s.data.assign(p + done, p + done + n);
    check_mpi(MPI_Isend(s.data.data(), static_cast<int>(n), MPI_BYTE, to, lane, comm_, &s.request), "send");
    done += n;
  } while (done < bytes);
  poll();
}

void MpiPost::poll() {
  while (!sending_.empty()) {
    int done = 0;
    check_mpi(MPI_Test(&sending_.front().request, &done, MPI_STATUS_IGNORE), "send");
    if (done == 0) return;
    sending_.pop_front();
  }
}

void MpiPost::take(int from, Mailbox::Lane lane, void* data, std::size_t bytes, std::string_view comm_name) {
  if (const int near = local_rank_[static_cast<std::size_t>(from)]; near >= 0) {
    return local_->mailbox().take(near, lane, data, bytes, comm_name);
  }
  const int from_world = world_ranks_[static_cast<std::size_t>(from)];
  const auto mismatch = [&](std::string_view sent) {
    return std::logic_error(fmt::format("{}: rank {} receives {} bytes, but rank {} sent {}", comm_name, world().rank,
                                        bytes, from_world, sent));
  };
  char* p = static_cast<char*>(data);
  std::size_t done = 0;
  do {
    const std::size_t n = std::min(kPiece, bytes - done);
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Status status{};
    check_mpi(MPI_Irecv(p == nullptr ? nullptr : p + done, static_cast<int>(n), MPI_BYTE, from, lane, comm_, &request),
              "receive");
    int code = MPI_SUCCESS;
    try {
      state_->world.wait_until(
          [&] {
            int arrived = 0;
            code = MPI_Test(&request, &arrived, &status);
            return arrived != 0 || code != MPI_SUCCESS;
          },
          [&] {
            return fmt::format("{}: rank {} waits for a message of {} bytes ({} have come) from rank {}", comm_name,
                               world().rank, bytes, done, from_world);
          });
    } catch (...) {
      MPI_Cancel(&request);
      MPI_Request_free(&request);
      throw;
    }
    int kind = MPI_SUCCESS;
    if (code != MPI_SUCCESS) MPI_Error_class(code, &kind);
    if (kind == MPI_ERR_TRUNCATE) throw mismatch("more");
    check_mpi(code, "receive");
    int count = 0;
    MPI_Get_count(&status, MPI_BYTE, &count);
    if (static_cast<std::size_t>(count) != n) throw mismatch(fmt::format("{}", done + static_cast<std::size_t>(count)));
    done += n;
  } while (done < bytes);
}

void MpiPost::reserve(std::size_t bytes) {
  if (local_ != nullptr) local_->reserve_sends(bytes);
}

std::unique_ptr<Communicator> MpiPost::split(int color, int key, const std::string& name) {
  meet(state_->world, comm_, "split");
  MPI_Comm part = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(comm_, color < 0 ? MPI_UNDEFINED : color, key, &part), "split");
  if (part == MPI_COMM_NULL) return nullptr;
  state_->comms.push_back(part);
  return make_mpi_communicator(state_, part, name);
}

std::unique_ptr<Communicator> make_mpi_communicator(std::shared_ptr<MpiState> state, MPI_Comm comm, std::string name) {
  bool one_node = true;
  for (const int r : world_ranks_of(comm)) {
    one_node = one_node && state->node_of[static_cast<std::size_t>(r)] ==
                               state->node_of[static_cast<std::size_t>(state->world.rank)];
  }
  if (one_node) {
    auto shm = std::make_unique<ShmCommunicator>(name, std::make_shared<MpiGroup>(state, comm), state->shm_options());
    if (shm->usable()) return shm;
  }
  return std::make_unique<PairwiseCommunicator>(std::move(name), std::make_unique<MpiPost>(std::move(state), comm));
}

}  // namespace mmt::comm
