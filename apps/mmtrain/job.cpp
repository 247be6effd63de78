#include "apps/mmtrain/job.h"

#include "core/log.h"
#include "parallel/comm/mpi/world.h"
#include "parallel/comm/self.h"

#include <omp.h>
#include <sched.h>
#include <strings.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>

namespace mmt::app {

struct Job::Mpi {
  Mpi(int* argc, char*** argv) : world(argc, argv) {}
  comm::MpiWorld world;
};

Job::Job(int* argc, char*** argv) {
  if (comm::launched_as_one_of_many()) {
    mpi_ = std::make_unique<Mpi>(argc, argv);
    world_ = &mpi_->world.world();
  } else {
    self_ = comm::make_self();
    world_ = self_.get();
  }
  log::set_rank(world_->rank(), world_->size());
}
Job::~Job() = default;

void Job::fail(int code, const std::string& message) { mpi_->world.fail(code, message); }

namespace {

void broadcast_text(comm::Communicator& world, std::string& text) {
  std::int64_t size = static_cast<std::int64_t>(text.size());
  world.broadcast(Tensor(&size, DType::i64, {1}), 0);
  text.resize(static_cast<std::size_t>(size));
  if (size > 0) world.broadcast(Tensor(text.data(), DType::u8, {size}), 0);
}

/// Cores that a process may run on; 0: it cannot be told.
int cores_of(pid_t process) {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(process, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}

}  // namespace

int cores_available() { return std::max(1, cores_of(0)); }

std::string agree_on_failure(comm::Communicator& world, const std::string& own) {
  std::int64_t first = own.empty() ? world.size() : world.rank();
  world.all_reduce(Tensor(&first, DType::i64, {1}), comm::ReduceOp::min);
  if (first == world.size()) return {};
  std::string text = own;
  std::int64_t size = static_cast<std::int64_t>(text.size());
  world.broadcast(Tensor(&size, DType::i64, {1}), static_cast<int>(first));
  text.resize(static_cast<std::size_t>(size));
  world.broadcast(Tensor(text.data(), DType::u8, {size}), static_cast<int>(first));
  std::int64_t alone = own == text ? 0 : 1;  // a mistake that all ranks see is nobody's in particular
  world.all_reduce(Tensor(&alone, DType::i64, {1}), comm::ReduceOp::max);
  return alone == 0 ? text : fmt::format("rank {}: {}", first, text);
}

Config Job::read(const std::string& path, const std::vector<std::string>& overrides, Needs needs) {
  const bool alone = needs == Needs::nothing && size() == 1;
  Config config = read_for(path, overrides, alone ? 0 : size());
  if (alone) config.parallel = ParallelConfig();
  return config;
}

Config Job::read_for(const std::string& path, const std::vector<std::string>& overrides, int ranks) {
  std::string bytes, cluster, problem;
  const auto attempt = [&](const std::function<void()>& work) {
    try {
      work();
    } catch (const ConfigError& e) {
      problem += (problem.empty() ? "" : "\n") + std::string(e.what());
    }
  };
  if (rank() == 0) {
    // Mistakes of both files are reported once, before anything else happens.
    attempt([&] {
      const config::Sources sources = config::gather(path, overrides);
      bytes = sources.pack();
      if (const std::string file = cluster_file_of(sources); !file.empty()) {
        attempt([&] {
          const config::Sources of_cluster = config::gather(file);
          cluster = of_cluster.pack();
          ClusterConfig unused;
          read_cluster_file(of_cluster, unused);
        });
      }
      read_config(sources, ranks);
    });
  }
  broadcast_text(*world_, problem);
  if (!problem.empty()) throw Agreed(kUsage, problem);
  broadcast_text(*world_, bytes);
  broadcast_text(*world_, cluster);
  Config config = read_config(config::Sources::unpack(bytes), ranks);
  if (!cluster.empty()) read_cluster_file(config::Sources::unpack(cluster), config.cluster);
  return config;
}

bool same_on_all(comm::Communicator& world, std::uint64_t hash) {
  if (world.size() == 1) return true;
  const auto half = static_cast<std::int64_t>(hash >> 1);  // negated without overflow
  std::array<std::int64_t, 2> ends = {half, -half};
  world.all_reduce(Tensor(ends.data(), DType::i64, {2}), comm::ReduceOp::max);
  return ends[0] == -ends[1];
}

void in_agreement(comm::Communicator& world, const std::function<void()>& work) {
  std::string problem;
  std::int64_t code = 0;
  try {
    work();
  } catch (const ConfigError& e) {
    problem = e.what();
    code = kUsage;
  } catch (const OutOfMemoryError& e) {
    problem = e.what();
    code = kOutOfMemory;
  } catch (const std::bad_alloc&) {
    problem = "out of memory";
    code = kOutOfMemory;
  } catch (const std::exception& e) {
    problem = e.what();
    code = kFailed;
  }
  const std::string message = agree_on_failure(world, problem);
  if (message.empty()) return;
  world.all_reduce(Tensor(&code, DType::i64, {1}), comm::ReduceOp::max);
  throw Agreed(static_cast<ExitCode>(code), message);
}

void Job::report() const {
  const int threads = omp_get_max_threads();
  std::string where = "1 rank";
  int on_node = 1;
  if (mpi_) {
    on_node = mpi_->world.ranks_on_node();
    where = fmt::format("{} ranks on {} node{}; {}", size(), mpi_->world.num_nodes(),
                        mpi_->world.num_nodes() == 1 ? "" : "s", mpi_->world.transport());
  }
  log::info("{}; {} thread{} a rank", where, threads, threads == 1 ? "" : "s");
  const auto online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  if (rank() == 0 && on_node * threads > online) {
    log::warning(
        "{} ranks x {} threads on a node of {} cores: they will wait for each other; start with "
        "scripts/mmtrain-launch, or set "
        "OMP_NUM_THREADS={}",
        on_node, threads, online, std::max(1, online / on_node));
  }
  const int cores = cores_available();
  if (cores < threads) {
    log::warning("this rank may run on {} core{} only but has {} threads: start mpirun with --bind-to none", cores,
                 cores == 1 ? "" : "s", threads);
  }
  // The launcher on this node is the parent; what it may use and its ranks may not was taken away by its binding.
  const int of_launcher = std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr ? cores_of(getppid()) : 0;
  if (rank() == 0 && cores * on_node < of_launcher) {
    log::warning(
        "mpirun ties each of the {} rank{} on this node to {} of its {} cores, so that {} stay idle: start it "
        "with --bind-to none (scripts/mmtrain-launch does)",
        on_node, on_node == 1 ? "" : "s", cores, of_launcher, of_launcher - cores * on_node);
  }
  const char* wait = std::getenv("OMP_WAIT_POLICY");
  if (rank() == 0 && on_node > 1 && threads > 1 && (wait == nullptr || strcasecmp(wait, "passive") != 0)) {
    log::warning(
        "OMP_WAIT_POLICY is not passive: the threads of a waiting rank take the others' cores (scripts/mmtrain-launch "
        "sets it)");
  }
}

namespace {

/// What a failure means for the job: the message, the code, and whether all ranks know already.
struct Failure {
  ExitCode code = kFailed;
  std::string message;
  bool agreed = false;
};

Failure describe(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Agreed& e) {
    return {e.code(), e.what(), true};
  } catch (const ConfigError& e) {
    return {kUsage, e.what(), false};
  } catch (const NonFiniteError& e) {
    return {kNonFinite, e.what(), false};
  } catch (const PeerError& e) {
    return {kPeerFailed, e.what(), false};
  } catch (const OutOfMemoryError& e) {
    return {kOutOfMemory, e.what(), false};
  } catch (const std::bad_alloc&) {
    return {kOutOfMemory, "out of memory", false};
  } catch (const std::exception& e) {
    return {kFailed, e.what(), false};
  }
}

}  // namespace

int run_command(const std::function<int(Job&)>& command, int* argc, char*** argv) {
  std::unique_ptr<Job> job;
  try {
    job = std::make_unique<Job>(argc, argv);
    const int code = command(*job);
    job->world().barrier();
    return code;
  } catch (...) {
    const Failure f = describe(std::current_exception());
    if (job != nullptr && job->size() > 1 && !f.agreed) job->fail(f.code, f.message);
    if (job == nullptr || job->rank() == 0) log::error("{}", f.message);
    return f.code;
  }
}

void check_new_folder(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::exists(path, error)) return;
  if (!fs::is_directory(path, error)) throw ConfigError(fmt::format("--out {}: is not a folder", path));
  if (!fs::is_empty(path, error))
    throw ConfigError(fmt::format("{}: is there and not empty: give --out a new folder", path));
}

}  // namespace mmt::app
