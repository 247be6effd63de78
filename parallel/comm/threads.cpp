#include "parallel/comm/threads.h"

#include "core/log.h"
#include "core/philox.h"
#include "parallel/comm/pairwise.h"
#include "parallel/comm/self.h"
#include "parallel/comm/shm.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <thread>

namespace mmt::comm {

namespace {

/// Where the threads of a group hand each other values while they set up; after that they meet in shared memory.
class Hub {
 public:
  explicit Hub(int ranks) : items_(static_cast<std::size_t>(ranks)) {}

  using Item = std::shared_ptr<const void>;

  /// Every rank's item, when all have come.
  std::vector<Item> exchange(const World& world, int rank, Item item) {
    std::unique_lock lock(mutex_);
    items_[static_cast<std::size_t>(rank)] = std::move(item);
    const std::uint64_t round = round_;
    if (++arrived_ == static_cast<int>(items_.size())) {
      arrived_ = 0;
      ++round_;
      result_ = items_;
      changed_.notify_all();
      return result_;
    }
    const auto start = std::chrono::steady_clock::now();
    while (round_ == round) {
      changed_.wait_for(lock, std::chrono::milliseconds(2));
      if (round_ != round) break;
      world.check_abort();
      world.poll();
      if (std::chrono::steady_clock::now() - start > std::chrono::duration<double>(world.timeout_seconds)) {
        throw PeerError(fmt::format("no answer for {:g} s: rank {} waits for the others to make a communicator",
                                    world.timeout_seconds, world.rank));
      }
    }
    return result_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Item> items_;
  std::vector<Item> result_;
  int arrived_ = 0;
  std::uint64_t round_ = 0;
};

class ThreadGroup final : public ShmGroup {
 public:
  ThreadGroup(std::shared_ptr<World> world, std::shared_ptr<Hub> hub, int rank, std::vector<int> world_ranks)
      : world_(std::move(world)), hub_(std::move(hub)), rank_(rank), world_ranks_(std::move(world_ranks)) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(world_ranks_.size()); }
  World& world() override { return *world_; }
  int world_rank(int r) const override { return world_ranks_[static_cast<std::size_t>(r)]; }
  bool one_address_space() const override { return true; }

  ShmPieces allocate(std::size_t bytes) override {
    constexpr std::align_val_t kAlign{64};
    const std::size_t padded = (std::max<std::size_t>(bytes, 1) + 63) / 64 * 64;
    const std::shared_ptr<char> mine(static_cast<char*>(::operator new(padded, kAlign)),
                                     [](char* p) { ::operator delete(p, kAlign); });
    std::memset(mine.get(), 0, padded);
    const auto all = gather(mine);
    ShmPieces pieces;
    for (const auto& piece : all) pieces.bases.push_back(piece.get());
    pieces.owner = std::make_shared<std::vector<std::shared_ptr<char>>>(all);
    return pieces;
  }

  std::shared_ptr<ShmGroup> split(int color, int key) override {
    struct Wish {
      int color, key;
    };
    const auto wishes = gather(Wish{color, key});
    std::vector<int> members;
    for (int r = 0; r < size(); ++r) {
      if (wishes[static_cast<std::size_t>(r)].color == color) members.push_back(r);
    }
    std::ranges::stable_sort(members, {}, [&](int r) { return wishes[static_cast<std::size_t>(r)].key; });
    std::shared_ptr<Hub> hub;
    if (color >= 0 && members[0] == rank_) hub = std::make_shared<Hub>(static_cast<int>(members.size()));
    const auto hubs = gather(hub);
    if (color < 0) return nullptr;
    const auto me = std::ranges::find(members, rank_) - members.begin();
    const auto leader = static_cast<std::size_t>(members[0]);
    for (int& r : members) r = world_rank(r);
    return std::make_shared<ThreadGroup>(world_, hubs[leader], static_cast<int>(me), std::move(members));
  }

 private:
  template <class T> std::vector<T> gather(const T& mine) {
    std::vector<T> all;
    for (const Hub::Item& item : hub_->exchange(*world_, rank_, std::make_shared<const T>(mine))) {
      all.push_back(*static_cast<const T*>(item.get()));
    }
    return all;
  }

  std::shared_ptr<World> world_;
  std::shared_ptr<Hub> hub_;
  int rank_;
  std::vector<int> world_ranks_;
};

std::function<void()> test_hook(int rank, const ThreadOptions& options) {
  if (options.seed == 0 && options.fail_rank != rank) return {};
  return [rank, options, number = 0]() mutable {
    const int now = number++;
    if (options.fail_rank == rank && options.fail_at == now) {
      throw Error(fmt::format("injected failure in operation {}", now));
    }
    if (options.seed == 0) return;
    const std::uint64_t bits =
        hash64(options.seed, hash64(static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(now)));
    if (bits % 2 == 1) std::this_thread::sleep_for(std::chrono::microseconds((bits >> 8) % 300));
  };
}

// Throws an error of the same type whose message names the rank.
[[noreturn]] void rethrow(const std::exception_ptr& error, int rank) {
  const std::string prefix = fmt::format("rank {}: ", rank);
  try {
    std::rethrow_exception(error);
  } catch (const DataError&) {
    throw;
  } catch (const ConfigError& e) {
    throw ConfigError(prefix + e.what());
  } catch (const NonFiniteError& e) {
    throw NonFiniteError(prefix + e.what());
  } catch (const PeerError& e) {
    throw PeerError(prefix + e.what());
  } catch (const Error& e) {
    throw Error(prefix + e.what());
  } catch (const std::logic_error& e) {
    throw std::logic_error(prefix + e.what());
  } catch (const std::exception& e) {
    throw std::runtime_error(prefix + e.what());
  }
}

std::unique_ptr<Communicator> make_communicator(std::string name, std::shared_ptr<ShmGroup> group,
                                                const ThreadOptions& options) {
  const ShmOptions shm{options.staging_bytes, options.outbox_bytes, options.direct};
  auto comm = std::make_unique<ShmCommunicator>(name, std::move(group), shm);
  if (options.pairwise) {
    return std::make_unique<PairwiseCommunicator>(std::move(name),
                                                  std::make_unique<ShmPost>(std::move(comm), options.nodes));
  }
  return comm;
}

}  // namespace

void run_threads(int ranks, const std::function<void(Communicator&)>& body, const ThreadOptions& options) {
  MMT_CHECK(ranks >= 1, "{} thread ranks", ranks);
  AbortFlag abort;
  const auto hub = std::make_shared<Hub>(ranks);
  std::vector<int> all;
  for (int r = 0; r < ranks; ++r) all.push_back(r);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));

  const auto run_rank = [&](int rank) {
    log::set_rank(rank, ranks);
    const auto world = std::make_shared<World>();
    world->rank = rank;
    world->size = ranks;
    world->timeout_seconds = options.timeout_seconds;
    world->abort = &abort;
    try {
      const auto comm = make_communicator("world", std::make_shared<ThreadGroup>(world, hub, rank, all), options);
      world->before_operation = test_hook(rank, options);
      body(*comm);
    } catch (const std::exception& e) {
      errors[static_cast<std::size_t>(rank)] = std::current_exception();
      abort.raise(rank, e.what());
    }
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) threads.emplace_back(run_rank, r);
  for (std::thread& t : threads) t.join();

  if (!abort.set()) return;
  const auto& first = errors[static_cast<std::size_t>(abort.rank)];
  if (first == nullptr) abort.throw_error();
  rethrow(first, abort.rank);
}

std::unique_ptr<Communicator> make_self(std::string name) {
  struct SelfWorld : World {
    AbortFlag flag;
  };
  const auto world = std::make_shared<SelfWorld>();
  world->abort = &world->flag;
  return std::make_unique<ShmCommunicator>(
      std::move(name), std::make_shared<ThreadGroup>(world, std::make_shared<Hub>(1), 0, std::vector<int>{0}),
      ShmOptions{});
}

}  // namespace mmt::comm
