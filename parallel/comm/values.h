// Small agreements between ranks in plain values. Collective: every rank calls.
#pragma once

#include "parallel/comm/communicator.h"

#include <vector>

namespace mmt::comm {

std::int64_t all_reduce(Communicator& comm, std::int64_t value, ReduceOp op);
double all_reduce(Communicator& comm, double value, ReduceOp op);
bool any_of(Communicator& comm, bool value);
bool all_of(Communicator& comm, bool value);
/// The root's text on every rank.
std::string broadcast(Communicator& comm, std::string text, int root = 0);
std::int64_t broadcast(Communicator& comm, std::int64_t value, int root = 0);
/// Every rank's text, on every rank.
std::vector<std::string> all_gather(Communicator& comm, const std::string& text);
std::vector<std::int64_t> all_gather(Communicator& comm, std::int64_t value);

/// Every rank says what went wrong with it ("" : nothing). When any did, throws on every rank Error with the texts of
/// the failed ranks, "rank R: text", so that all leave together.
void agree_on_success(Communicator& comm, const std::string& problem);

}  // namespace mmt::comm
