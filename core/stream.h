// Stream and Event: the handles through which everything above kernels/ orders device work.
// A CPU stream executes at the call and its events are counters; the backend's table fills in the rest.
#pragma once

#include "core/tensor.h"

#include <cstdint>

namespace mmt {

struct KernelTable;  // kernels/backend.h

struct Stream {
  Device device{};
  const KernelTable* kernels = nullptr;  ///< which backend runs the ops issued on this stream
  void* handle = nullptr;                ///< the device runtime's stream; null on the CPU
};

struct Event {
  std::uint64_t ticket = 0;  ///< CPU: the value of the counter at the record
  void* handle = nullptr;    ///< the device runtime's event; null on the CPU
};

}  // namespace mmt
