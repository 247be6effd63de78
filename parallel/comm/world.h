// What all communicators of one rank share: the abort flag, the patience of every wait, hooks for tests.
#pragma once

#include "core/error.h"

#include <sched.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace mmt::comm {

/// Lies in memory that all ranks (of a node) share, zeroed. The first cause stays.
struct AbortFlag {
  static constexpr std::size_t kMaxCause = 4000;
  std::atomic<int> state{0};  ///< 0 none, 1 being written, 2 set
  int rank = -1;
  char cause[kMaxCause] = {};

  bool set() const { return state.load(std::memory_order_acquire) == 2; }
  /// False when another cause was there first.
  bool raise(int from_rank, std::string_view text) noexcept;
  [[noreturn]] void throw_error() const;
};

/// Something whose sends move only while its rank calls.
class Progress {
 public:
  virtual void poll() = 0;

 protected:
  ~Progress() = default;
};

/// One rank's view of its world.
struct World {
  int rank = 0;
  int size = 1;
  double timeout_seconds = 60;
  AbortFlag* abort = nullptr;
  std::function<void()> before_operation;  ///< tests: seeded delays and failures
  std::function<std::string()>
      find_dead_rank;                  ///< names a rank that no longer runs, or returns ""; asked in long waits
  std::function<std::string()> doing;  ///< what this rank is busy with, for messages

  std::vector<Progress*> progress;  ///< of all communicators: a wait in one moves the sends of the others

  void poll() const {
    for (Progress* p : progress) p->poll();
  }
  std::string while_doing() const { return doing ? fmt::format(" (in {})", doing()) : ""; }
  void check_abort() const {
    if (abort->set()) abort->throw_error();
  }
  /// Waits until ready() holds: spins shortly, then yields, then sleeps, so that a waiting rank costs the computing
  /// ones nothing. Throws PeerError after an abort, when a rank died, or after the timeout, with what().
  template <class Ready, class What> void wait_until(Ready&& ready, What&& what) const {
    for (int spins = 0; spins < 100; ++spins) {
      if (ready()) return;
    }
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(2)) {
      if (ready()) return;
      check_abort();
      poll();
      sched_yield();
    }
    auto next_look = start + std::chrono::milliseconds(200);
    while (!ready()) {
      check_abort();
      poll();
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      const auto now = std::chrono::steady_clock::now();
      if (now < next_look) continue;
      next_look = now + std::chrono::milliseconds(200);
      if (find_dead_rank) {
        if (const std::string dead = find_dead_rank(); !dead.empty()) throw PeerError(dead + while_doing());
      }
      if (now - start > std::chrono::duration<double>(timeout_seconds)) {
        throw PeerError(fmt::format("no answer for {:g} s: {}", timeout_seconds, what()) + while_doing());
      }
    }
  }
};

}  // namespace mmt::comm
