#include "apps/mmtrain/signals.h"

#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <thread>

namespace mmt::app {
namespace {

std::atomic<bool> requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);

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
  // Stop requests go to a thread that waits for them and to no other: dnnl_sgemm (2.6) uses memory below its stack
  // pointer, which the frame of a handler overwrites: heap corruption in one of ten runs. Threads inherit the mask.
  sigset_t stops;
  sigemptyset(&stops);
  sigaddset(&stops, SIGUSR1);
  if (under_srun) sigaddset(&stops, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &stops, nullptr);
  std::thread([stops] {
    while (true) {
      int number = 0;
      if (sigwait(&stops, &number) == 0) request_stop();
    }
  }).detach();
  if (!under_srun) install(SIGTERM, on_kill);
  install(SIGINT, on_kill);
  install(SIGPIPE, SIG_IGN);
}

const std::atomic<bool>& stop_requested() { return requested; }
void request_stop() { requested = true; }

}  // namespace mmt::app
