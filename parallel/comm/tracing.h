// A decorator that writes down what goes through a communicator: order and bytes, for tests ("ZeRO-1 moves X bytes a
// step", "executed events equal the planned ones").
#pragma once

#include "parallel/comm/communicator.h"

#include <vector>

namespace mmt::comm {

struct CommEvent {
  std::string op;    ///< "all_reduce", "send", ...
  std::string comm;  ///< the communicator's name
  /// all_reduce, broadcast, send, recv: the tensor. reduce_scatter: all inputs. all_gather: all outputs.
  /// all_to_all: all sends, this rank's own included. barrier: 0.
  std::int64_t bytes = 0;
  int peer = -1;  ///< send, recv, broadcast (the root); else -1
  friend bool operator==(const CommEvent&, const CommEvent&) = default;
};

struct CommTrace {
  std::vector<CommEvent> events;
  std::int64_t bytes(std::string_view op, std::string_view comm = {}) const;  ///< an empty comm: all
};

/// Both outlive the result; communicators split from it write into the same trace.
std::unique_ptr<Communicator> make_tracing(Communicator& inner, CommTrace& trace);

}  // namespace mmt::comm
