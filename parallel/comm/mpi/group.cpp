#include "parallel/comm/mpi/state.h"

#include <sys/statvfs.h>

#include <cstdlib>
#include <cstring>

namespace mmt::comm {

namespace {

// Where Open MPI keeps the files behind its windows. A file may be larger than the file system: the first touch beyond
// the end kills the process, so the room is looked at before.
std::string window_folder() {
  const char* set = std::getenv("OMPI_MCA_osc_sm_backing_directory");
  return set != nullptr ? set : "/dev/shm";
}

std::string check_room(std::uint64_t need) {
  const std::string folder = window_folder();
  struct statvfs info {};
  if (statvfs(folder.c_str(), &info) != 0) return fmt::format("{} cannot be read: {}", folder, std::strerror(errno));
  const std::uint64_t room = std::uint64_t{info.f_bavail} * info.f_frsize;
  if (room / 10 * 9 >= need) return "";
  return fmt::format("{} has {} MiB free, {} MiB more are needed (docker: --shm-size)", folder, room >> 20,
                     (need >> 20) + 1);
}

}  // namespace

void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw PeerError(fmt::format("{}: {}", what, text));
}

void meet(const World& world, MPI_Comm comm, const char* what) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibarrier(comm, &request), what);
  world.wait_until(
      [&] {
        int done = 0;
        check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what);
        return done != 0;
      },
      [&] { return fmt::format("{}: rank {} waits for the others", what, world.rank); });
}

std::vector<int> world_ranks_of(MPI_Comm comm) {
  int size = 0;
  MPI_Comm_size(comm, &size);
  std::vector<int> here(static_cast<std::size_t>(size)), in_world(here.size());
  for (int r = 0; r < size; ++r) here[static_cast<std::size_t>(r)] = r;
  MPI_Group group, world;
  MPI_Comm_group(comm, &group);
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  MPI_Group_translate_ranks(group, size, here.data(), world, in_world.data());
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  return in_world;
}

MpiGroup::MpiGroup(std::shared_ptr<MpiState> state, MPI_Comm comm)
    : state_(std::move(state)), comm_(comm), world_ranks_(world_ranks_of(comm)) {
  MPI_Comm_rank(comm_, &rank_);
}

ShmPieces MpiGroup::allocate(std::size_t bytes) {
  if (!state_->use_shared_memory) return {};
  meet(state_->world, comm_, "shared memory");
  constexpr std::size_t kAlign = 64;
  // Window bases may lie at 8 mod 64.
  const std::uint64_t mine = bytes + 2 * kAlign;
  std::uint64_t all = 0;
  check_mpi(MPI_Allreduce(&mine, &all, 1, MPI_UINT64_T, MPI_SUM, comm_), "shared memory");
  std::string problem;
  if (rank_ == 0) {
    problem = check_room(all);
    if (state_->shared_bytes + all > state_->shared_limit) {
      problem = fmt::format("MMTRAIN_SHARED_MEMORY allows {} MiB, {} MiB more are needed", state_->shared_limit >> 20,
                            (all >> 20) + 1);
    }
  }
  int length = static_cast<int>(problem.size());
  check_mpi(MPI_Bcast(&length, 1, MPI_INT, 0, comm_), "shared memory");
  problem.resize(static_cast<std::size_t>(length));
  check_mpi(MPI_Bcast(problem.data(), length, MPI_CHAR, 0, comm_), "shared memory");
  if (!problem.empty()) {
    state_->why_not_shared = problem;
    return {};
  }
  void* base = nullptr;
  MPI_Win window = MPI_WIN_NULL;
  check_mpi(MPI_Win_allocate_shared(static_cast<MPI_Aint>(mine), 1, MPI_INFO_NULL, comm_, &base, &window),
            "shared memory window");
  state_->windows.push_back(window);
  state_->shared_bytes += all;
  ShmPieces pieces;
  for (int r = 0; r < size(); ++r) {
    MPI_Aint bytes_of_r = 0;
    int unit = 0;
    check_mpi(MPI_Win_shared_query(window, r, &bytes_of_r, &unit, &base), "shared memory window");
    const auto address = (reinterpret_cast<std::uintptr_t>(base) + kAlign - 1) / kAlign * kAlign;
    pieces.bases.push_back(reinterpret_cast<char*>(address));
  }
  std::memset(pieces.bases[static_cast<std::size_t>(rank_)], 0, bytes);
  check_mpi(MPI_Barrier(comm_), "shared memory window");
  pieces.owner = state_;
  return pieces;
}

std::shared_ptr<ShmGroup> MpiGroup::split(int color, int key) {
  meet(state_->world, comm_, "split");
  MPI_Comm part = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(comm_, color < 0 ? MPI_UNDEFINED : color, key, &part), "split");
  if (part == MPI_COMM_NULL) return nullptr;
  state_->comms.push_back(part);
  return std::make_shared<MpiGroup>(state_, part);
}

}  // namespace mmt::comm
