#include "apps/mmtrain/signals.h"

#include <unistd.h>

#include <csignal>
#include <cstdlib>

namespace mmt::app {
namespace {

std::atomic<bool> requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);

extern "C" void on_stop(int) { requested.store(true, std::memory_order_relaxed); }
extern "C" void on_kill(int number) { ::_exit(128 + number); }

void install(int number, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(number, &action, nullptr);
}

}  // namespace

void install_signal_handlers() {
  const bool under_srun = std::getenv("SLURM_PROCID") != nullptr && std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr;
  install(SIGUSR1, on_stop);
  install(SIGTERM, under_srun ? on_stop : on_kill);
  install(SIGINT, on_kill);
  install(SIGPIPE, SIG_IGN);
}

const std::atomic<bool>& stop_requested() { return requested; }
void request_stop() { requested = true; }

}  // namespace mmt::app
