#include "parallel/comm/mpi/world.h"

#include "parallel/comm/mpi/state.h"
#include "parallel/comm/process.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>

namespace mmt::comm {

namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// How many ranks the launcher says there are, and the variable that says it; 0: no launcher.
std::pair<int, const char*> launched_ranks() {
  // In this order: mpirun inside a Slurm step sets the first, and it is the one that counts then.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    if (const int n = std::atoi(environment(name).c_str()); n > 0) return {n, name};
  }
  return {0, ""};
}

}  // namespace

bool launched_as_one_of_many() { return launched_ranks().first > 1; }

struct MpiWorld::State {
  std::shared_ptr<MpiState> mpi = std::make_shared<MpiState>();
  std::unique_ptr<Communicator> world;
  std::vector<ProcessId> processes;
  ShmPieces control;
  std::string host;
  std::string transport;
  int num_nodes = 1;
  int ranks_on_node = 1;
};

MpiWorld::MpiWorld(int* argc, char*** argv, const MpiOptions& options) : state_(std::make_unique<State>()) {
  MpiState& mpi = *state_->mpi;
  mpi.options = options;
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);  // a waiting rank must not take the core of a computing one
  int provided = 0;
  if (MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) throw PeerError("MPI_Init failed");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  World& world = mpi.world;
  MPI_Comm_rank(MPI_COMM_WORLD, &world.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world.size);
  world.timeout_seconds = options.timeout_seconds;
  if (const std::string set = environment("MMTRAIN_COMM_TIMEOUT"); !set.empty())
    world.timeout_seconds = std::max(1.0, std::atof(set.c_str()));
  world.abort = &mpi.own_flag;

  if (const auto [expected, variable] = launched_ranks(); expected > 1 && world.size == 1) {
    MPI_Finalize();
    throw ConfigError(
        fmt::format("{}={}, but MPI sees one rank: the launcher and this program's MPI do not speak the same process "
                    "interface, so {} "
                    "separate runs would start. Use this MPI's mpirun, or srun --mpi=pmix.",
                    variable, expected, expected));
  }

  // Who is where.
  const ProcessId own = this_process();
  state_->host = own.host;
  state_->processes.resize(static_cast<std::size_t>(world.size));
  check_mpi(MPI_Allgather(&own, sizeof(ProcessId), MPI_BYTE, state_->processes.data(), sizeof(ProcessId), MPI_BYTE,
                          MPI_COMM_WORLD),
            "start");
  MPI_Comm near = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world.rank, MPI_INFO_NULL, &near), "start");
  int first = world.rank;
  check_mpi(MPI_Bcast(&first, 1, MPI_INT, 0, near), "start");
  if (const int pretended = std::atoi(environment("MMTRAIN_NODES").c_str()); pretended > 1) {
    first = first * pretended + static_cast<int>(std::int64_t{world.rank} * pretended / world.size);
  }
  MPI_Comm node = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(near, first, world.rank, &node), "start");
  MPI_Comm_free(&near);
  mpi.comms.push_back(node);
  std::vector<int> firsts(static_cast<std::size_t>(world.size));
  check_mpi(MPI_Allgather(&first, 1, MPI_INT, firsts.data(), 1, MPI_INT, MPI_COMM_WORLD), "start");
  std::map<int, int> node_index;
  for (const int f : firsts) node_index.try_emplace(f, static_cast<int>(node_index.size()));
  for (const int f : firsts) mpi.node_of.push_back(node_index[f]);
  state_->num_nodes = static_cast<int>(node_index.size());
  MPI_Comm_size(node, &state_->ranks_on_node);

  if (const std::string set = environment("MMTRAIN_SHARED_MEMORY"); set == "off") {
    mpi.use_shared_memory = false;
    mpi.why_not_shared = "MMTRAIN_SHARED_MEMORY=off";
  } else if (!set.empty()) {
    mpi.shared_limit = static_cast<std::uint64_t>(std::max(0, std::atoi(set.c_str()))) << 20;
  }
  state_->control = MpiGroup(state_->mpi, node).allocate(sizeof(AbortFlag));
  if (!state_->control.bases.empty()) world.abort = reinterpret_cast<AbortFlag*>(state_->control.bases[0]);
  world.find_dead_rank = [this, &world]() -> std::string {
    const std::uint64_t machine = state_->processes[static_cast<std::size_t>(world.rank)].machine;
    for (std::size_t r = 0; r < state_->processes.size(); ++r) {
      const ProcessId& p = state_->processes[r];
      if (p.machine == machine && is_dead(p))
        return fmt::format("rank {} (process {} on {}) has died", r, p.pid, p.host);
    }
    return "";
  };

  MPI_Comm all = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &all), "start");
  mpi.comms.push_back(all);
  state_->world = make_mpi_communicator(state_->mpi, all, "world");
  const std::string place = fmt::format("{} rank{} on {} node{}", world.size, world.size == 1 ? "" : "s",
                                        state_->num_nodes, state_->num_nodes == 1 ? "" : "s");
  if (!mpi.why_not_shared.empty()) {
    state_->transport =
        fmt::format("{}, through MPI messages, which is slow within a node, since {}", place, mpi.why_not_shared);
  } else if (state_->num_nodes == 1) {
    state_->transport = fmt::format("{}, through shared memory", place);
  } else {
    state_->transport = fmt::format("{}, through shared memory within a node and MPI between nodes", place);
  }
}

MpiWorld::~MpiWorld() {
  const bool failed = std::uncaught_exceptions() > 0 || state_->mpi->world.abort->set();
  state_->world.reset();
  // After a failure the others may never come: leaving without MPI_Finalize lets the launcher end the job.
  if (failed) return;
  MpiState& mpi = *state_->mpi;
  try {
    meet(mpi.world, MPI_COMM_WORLD, "end");
  } catch (const std::exception& e) {
    fmt::print(stderr, "[rank {} {}] {}\n", mpi.world.rank, state_->host, e.what());
    return;
  }
  mpi.world.abort = &mpi.own_flag;
  for (MPI_Win& window : mpi.windows) MPI_Win_free(&window);
  for (MPI_Comm& comm : mpi.comms) MPI_Comm_free(&comm);
  MPI_Finalize();
}

Communicator& MpiWorld::world() { return *state_->world; }
int MpiWorld::node() const { return state_->mpi->node_of[static_cast<std::size_t>(state_->mpi->world.rank)]; }
int MpiWorld::num_nodes() const { return state_->num_nodes; }
int MpiWorld::ranks_on_node() const { return state_->ranks_on_node; }
std::int64_t MpiWorld::bytes_between_nodes() const { return state_->mpi->bytes_between_nodes; }
const std::string& MpiWorld::host() const { return state_->host; }
const std::string& MpiWorld::transport() const { return state_->transport; }

void MpiWorld::fail(int exit_code, std::string_view message) noexcept {
  const World& world = state_->mpi->world;
  if (world.abort->raise(world.rank, message)) {
    std::fprintf(stderr, "[rank %d %s] %.*s\n", world.rank, state_->host.c_str(), static_cast<int>(message.size()),
                 message.data());
    std::fflush(nullptr);
  } else {
    // The rank that failed first is ending the job with its own exit code.
    std::fflush(nullptr);
    sleep(10);
  }
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

}  // namespace mmt::comm
