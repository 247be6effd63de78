#include "apps/mmtrain/commands.h"
#include "apps/mmtrain/job.h"
#include "core/files.h"
#include "core/metrics/metrics.h"
#include "kernels/backend.h"

#include <omp.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <iostream>

namespace mmt::app {

int run_version(Job& job, const Arguments&) {
  if (job.rank() == 0) std::cout << "mmtrain " << MMTRAIN_VERSION << "\n";
  return kDone;
}

int run_env(Job& job, const Arguments& a) {
  if (job.rank() != 0) return kDone;
  const files::Space shm = files::space("/dev/shm");
  std::vector<std::pair<std::string, std::string>> rows = {
      {"version", MMTRAIN_VERSION},
      {"instruction set", name_of(cpu_isa())},
      {"instruction sets of the machine", name_of(detect_isa())},
      {"cores", std::to_string(sysconf(_SC_NPROCESSORS_ONLN))},
      {"cores of this rank", std::to_string(cores_available())},
      {"threads a rank", std::to_string(omp_get_max_threads())},
      {"ranks", std::to_string(job.size())},
      {"device", "cpu (this build has no GPU backend)"},
      {"/dev/shm", fmt::format("{} of {} free", format_value(static_cast<double>(shm.available), Unit::bytes),
                               format_value(static_cast<double>(shm.total), Unit::bytes))}};
  const auto kernels = describe_cpu_kernels();
  rows.insert(rows.begin() + 3, kernels.begin(), kernels.end());
  for (const char* name :
       {"OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMPI_MCA_mpi_yield_when_idle", "OMPI_COMM_WORLD_SIZE",
        "SLURM_JOB_ID", "SLURM_NTASKS", "MMTRAIN_ISA", "MMTRAIN_NODES", "MMTRAIN_SHARED_MEMORY", "MMTRAIN_COMM_TIMEOUT",
        "MMTRAIN_POISON", "HDF5_USE_FILE_LOCKING", "TMPDIR", "NO_COLOR"}) {
    if (const char* value = std::getenv(name)) rows.emplace_back(name, value);
  }
  if (a.json) {
    nlohmann::json out;
    for (const auto& [key, value] : rows) out[key] = value;
    std::cout << out.dump(2) << "\n";
    return kDone;
  }
  for (const auto& [key, value] : rows) std::cout << fmt::format("{:<32} {}\n", key, value);
  return kDone;
}

}  // namespace mmt::app
