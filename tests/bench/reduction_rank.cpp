// One rank of the rows reduction/...: the sum of gradients as training makes it (in the window that the ranks of a node
// share) against MPI_Allreduce on the same amount, in turn, in the same run.
#include "bench/reduction.h"

#include "bench/bench.h"
#include "core/error.h"
#include "kernels/backend.h"
#include "parallel/comm/mpi/world.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#define OMPI_SKIP_MPICXX 1  // no C++ bindings of old
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

namespace mmt::bench {
namespace {

constexpr std::int64_t kBytes = std::int64_t{64} << 20;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// Seconds of each call from the moment that all ranks are there until the last has its result.
template <class F> double seconds_of(comm::Communicator& world, F&& call) {
  world.barrier();
  const double start = now();
  call();
  double seconds = now() - start;
  world.all_reduce(Tensor(&seconds, DType::f64, {1}), comm::ReduceOp::max);
  return seconds;
}

Row measure(comm::Communicator& world, const std::string& name, int repeats) {
  constexpr std::int64_t kFloats = kBytes / 4;
  const comm::SharedBlock shared = world.shared_alloc(kBytes);
  OwnedTensor own;
  if (!shared) own = OwnedTensor(DType::f32, {kFloats});
  const Tensor data(shared ? shared.data : own->data, DType::f32, {kFloats});
  const OwnedTensor plain(DType::f32, {kFloats});
  const Stream stream = cpu_stream();
  std::vector<double> ours, theirs;
  for (int i = -1; i < repeats; ++i) {  // the first warms up
    ops::fill(stream, data, 1.0);
    ops::fill(stream, plain, 1.0);
    const double a = seconds_of(world, [&] { world.all_reduce(data, comm::ReduceOp::sum, stream); });
    const double b = seconds_of(world, [&] {
      const int code =
          MPI_Allreduce(MPI_IN_PLACE, plain->data, static_cast<int>(kFloats), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      MMT_CHECK(code == MPI_SUCCESS, "MPI_Allreduce gives {}", code);
    });
    for (const Tensor& sums : {data, plain.view()}) {
      for (const float sum : sums.span<float>())
        if (sum != static_cast<float>(world.size()))
          throw Error(fmt::format("{}: a sum of {} ones is {}", name, world.size(), sum));
    }
    if (i < 0) continue;
    ours.push_back(a);
    theirs.push_back(b);
  }
  std::ranges::sort(ours);
  std::ranges::sort(theirs);
  const auto rate = [](double seconds) { return static_cast<double>(kBytes) / seconds / unit_scale("GB/s"); };
  return {name, "GB/s", rate(ours.front()), rate(ours[ours.size() / 2]), "MPI_Allreduce", rate(theirs.front())};
}

}  // namespace

int run_as_rank(int* argc, char*** argv, const std::vector<std::string>& names, int repeats) {
  comm::MpiWorld mpi(argc, argv);
  try {
    comm::Communicator& world = mpi.world();
    bool any = false;
    for (const std::string& name : names) {
      if (name != fmt::format("reduction/64MiB/{}ranks", world.size())) continue;
      any = true;
      const Row row = measure(world, name, repeats);
      if (world.rank() == 0) print_json(row);
    }
    if (!any)
      throw ConfigError(
          fmt::format("under a launcher with {0} ranks only reduction/64MiB/{0}ranks can be measured, if "
                      "there is such a row; start the program without mpirun for the others",
                      world.size()));
    return 0;
  } catch (const std::exception& e) {
    mpi.fail(1, fmt::format("mmtrain-bench: {}", e.what()));
  }
}

}  // namespace mmt::bench
