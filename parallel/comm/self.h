// A world of one rank.
#pragma once

#include "parallel/comm/communicator.h"

namespace mmt::comm {

/// Copies what a larger world would copy, so that the same path runs. Sends to itself are queued.
std::unique_ptr<Communicator> make_self(std::string name = "world");

}  // namespace mmt::comm
