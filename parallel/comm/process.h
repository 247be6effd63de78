// Whether a process still lives, on this machine.
#pragma once

#include <cstdint>

namespace mmt::comm {

/// Tells one process from any other, also after its number was given to a new one. Plain bytes: may be sent and stored.
struct ProcessId {
  std::int64_t pid = 0;
  std::uint64_t machine = 0;  ///< host, boot, and the space of process numbers (containers have their own)
  std::uint64_t start = 0;    ///< start time, ticks since boot
  char host[64] = {};
};

ProcessId this_process();
/// Only of processes whose `machine` is this one's: gone, a zombie, or its number is another's now.
bool is_dead(const ProcessId& process);

}  // namespace mmt::comm
