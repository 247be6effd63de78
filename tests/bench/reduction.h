// Rows that need several ranks. The program starts itself under mpirun for them; started under mpirun with as many
// ranks, it measures them at once.
#pragma once

#include <string>
#include <vector>

namespace mmt::bench {

/// For a process that mpirun or a like launcher started as one of several: measures those of `names` that are for so
/// many ranks and writes a JSON object a row from rank 0. Returns the exit code; on failure ends the whole job.
int run_as_rank(int* argc, char*** argv, const std::vector<std::string>& names, int repeats);

}  // namespace mmt::bench
