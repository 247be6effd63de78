// The communicator tests on real MPI ranks. usage: mpirun -np N test_comm_mpi all|print|config|die|late|hang
#include "comm/bodies.h"
#include "core/arena.h"
#include "core/log.h"
#include "parallel/comm/mpi/world.h"
#include "parallel/comm/threads.h"
#include "parallel/comm/values.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

using namespace mmt;
using namespace mmt::comm;

namespace {

// The same bits as thread ranks give.
std::uint64_t expected_print(int ranks) {
  std::atomic<std::uint64_t> print = 0;
  run_threads(ranks, [&](Communicator& comm) {
    const std::uint64_t mine = bodies::fingerprint(comm);
    if (comm.rank() == 0) print = mine;
  });
  return print;
}

// All ranks together: bytes that an operation sends from node to node.
template <class F> std::int64_t between_nodes(MpiWorld& mpi, F&& f) {
  Communicator& comm = mpi.world();
  comm.barrier();
  const std::int64_t before = mpi.bytes_between_nodes();
  f(comm);
  return all_reduce(comm, mpi.bytes_between_nodes() - before, ReduceOp::sum);
}

// Reductions run node by node: the data crosses each border between two nodes once in each direction, whatever the
// ranks per node. Messages inside a node cross none.
void count_between_nodes(MpiWorld& mpi) {
  const std::int64_t borders = mpi.num_nodes() - 1;
  std::vector<float> data(300'000, 1.0f);
  const Tensor t(data.data(), DType::f32, {std::ssize(data)});
  // The sum of the counts is an all_reduce of eight bytes of its own, made after its argument.
  const std::int64_t reduced = between_nodes(mpi, [&](Communicator& comm) { comm.all_reduce(t, ReduceOp::sum); });
  MMT_CHECK(reduced == 2 * borders * t.bytes(), "{} bytes between {} nodes for a sum of {}", reduced, mpi.num_nodes(),
            t.bytes());
  MMT_CHECK(data[0] == static_cast<float>(mpi.world().size()), "{}", data[0]);
  const std::vector<std::int64_t> node_of = all_gather(mpi.world(), std::int64_t{mpi.node()});
  const int size = mpi.world().size();
  std::int64_t crossing = 0;
  for (int r = 0; r < size; ++r) {
    if (node_of[static_cast<std::size_t>(r)] != node_of[static_cast<std::size_t>((r + 1) % size)])
      crossing += t.bytes();
  }
  std::vector<float> got(data.size());
  const std::int64_t sent = between_nodes(mpi, [&](Communicator& comm) {
    comm.send(t, (comm.rank() + 1) % size);
    // MPI moves nothing while a rank computes: sends go on where it looks after them.
    for (int i = 0; i < 10; ++i) comm.poll();
    comm.recv(Tensor(got.data(), DType::f32, {t.numel()}), (comm.rank() + size - 1) % size);
  });
  MMT_CHECK(got == data && sent == crossing, "{} bytes between nodes for a ring, expected {}", sent, crossing);
}

void everything(MpiWorld& mpi) {
  Communicator& comm = mpi.world();
  bodies::reductions(comm);
  bodies::gathers_and_scatters(comm);
  bodies::broadcasts(comm);
  bodies::all_to_all(comm);
  bodies::messages(comm);
  bodies::splits(comm);
  bodies::shared_memory(comm);
  bodies::values(comm);
  const std::uint64_t print = bodies::fingerprint(comm);
  MMT_CHECK(print == expected_print(comm.size()), "a sum over MPI ranks has other bits than over threads");
  // Groups that lie on one node share memory, whatever the whole does.
  const auto node = comm.split(mpi.node(), 0, "node");
  MMT_CHECK(node->size() == mpi.ranks_on_node(), "{} of {}", node->size(), mpi.ranks_on_node());
  bodies::reductions(*node);
  bodies::shared_memory(*node);
  bodies::messages(*node);
  // A message sent before a computation arrives during it: nothing waits for the sender to call again.
  if (node->size() > 1) {
    float x = 1.0f;
    const Tensor t(&x, DType::f32, {1});
    node->barrier();
    if (node->rank() == 0) {
      node->send(t, 1);
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
    } else if (node->rank() == 1) {
      const auto start = std::chrono::steady_clock::now();
      node->recv(t, 0);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      if (std::getenv("MMTRAIN_SHARED_MEMORY") == nullptr) MMT_CHECK(took.count() < 0.3, "{} s", took.count());
    }
    node->barrier();
  }
  if (std::getenv("MMTRAIN_SHARED_MEMORY") == nullptr) count_between_nodes(mpi);
  if (comm.rank() == 0) std::printf("passed: %s\n", mpi.transport().c_str());
}

// 64 MiB in a shared block, as gradients are; the best of ten.
void measure(MpiWorld& mpi) {
  Communicator& comm = mpi.world();
  const std::int64_t count = 16 << 20;
  const SharedBlock block = comm.shared_alloc(static_cast<std::size_t>(count) * 4);
  std::vector<float> own(block ? 0 : static_cast<std::size_t>(count));
  const Tensor t(block ? block.data : own.data(), DType::f32, {count});
  double best = 1e9;
  double small = 1e9;
  for (int i = 0; i < 10; ++i) {
    comm.barrier();
    auto start = std::chrono::steady_clock::now();
    comm.all_reduce(t, ReduceOp::sum);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    comm.barrier();
    start = std::chrono::steady_clock::now();
    for (int k = 0; k < 100; ++k) comm.all_reduce(t.row_range(0, 2), ReduceOp::sum);
    small = std::min(small, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / 100);
  }
  if (comm.rank() == 0)
    std::printf("64 MiB: %.2f ms, 8 bytes: %.2f us (%s)\n", best * 1e3, small * 1e6, mpi.transport().c_str());
}

void run(MpiWorld& mpi, std::string_view what) {
  Communicator& comm = mpi.world();
  const bool last = comm.rank() == comm.size() - 1;
  if (what == "all") everything(mpi);
  if (what == "time") measure(mpi);
  if (what == "config" && last) throw ConfigError("model.yaml:3:5: llm.hidden: 0 is out of range");
  if (what == "die" && last) raise(SIGKILL);
  if (what == "hang" && last) std::this_thread::sleep_for(std::chrono::seconds(30));
  comm.barrier();
}

}  // namespace

int main(int argc, char* argv[]) {
  set_poisoning(true);
  const std::string_view what = argc > 1 ? argv[1] : "all";
  try {
    MpiWorld mpi(&argc, &argv);
    log::set_rank(mpi.world().rank(), mpi.world().size());
    log::set_level(log::Level::error);
    try {
      run(mpi, what);
    } catch (const ConfigError& e) {
      mpi.fail(2, e.what());
    } catch (const PeerError& e) {
      mpi.fail(5, e.what());
    } catch (const std::exception& e) {
      mpi.fail(1, e.what());
    }
  } catch (const ConfigError& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}
