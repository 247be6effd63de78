// Stop requests from outside. A handler only sets a flag; the flag is polled at step boundaries and in every long wait.
#pragma once

#include <atomic>

namespace mmt::app {

/// SIGUSR1 always asks for a save and an end with exit code 75. SIGTERM does so under srun; under mpirun it means that
/// the job is being killed already (SIGKILL follows in about a second): the process ends at once with 143.
void install_signal_handlers();
const std::atomic<bool>& stop_requested();
void request_stop();  ///< what the handler does; for tests

}  // namespace mmt::app
