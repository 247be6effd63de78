// What every communicator must do, as functions that run on each rank of it: the thread and MPI tests share them.
#pragma once

#include "parallel/comm/communicator.h"

namespace mmt::comm::bodies {

void reductions(Communicator& comm);
void gathers_and_scatters(Communicator& comm);
void broadcasts(Communicator& comm);
void all_to_all(Communicator& comm);
void messages(Communicator& comm);
void splits(Communicator& comm);
void shared_memory(Communicator& comm);
void values(Communicator& comm);

/// Bits of a rank-ordered sum of random numbers: equal for every implementation with as many ranks.
std::uint64_t fingerprint(Communicator& comm);

}  // namespace mmt::comm::bodies
