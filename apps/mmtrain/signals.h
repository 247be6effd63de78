// Stop requests from outside. A thread waits for them and sets a flag; the flag is polled at step boundaries and in
// every long wait.
#pragma once

#include <atomic>

namespace mmt::app {

/// SIGUSR1 always asks for a save and an end with exit code 75. SIGTERM does so under srun; under mpirun it means that
/// the job is being killed already (SIGKILL follows in about a second): the process ends at once with 143. Called
/// before any other thread is started.
void install_signal_handlers();
const std::atomic<bool>& stop_requested();
void request_stop();  ///< what a signal does; for tests

}  // namespace mmt::app
