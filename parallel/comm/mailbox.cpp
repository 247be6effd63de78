#include "parallel/comm/mailbox.h"

#include "core/log.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace mmt::comm {

namespace {

constexpr std::uint64_t kDepth = 16;    // pieces of one (from, to, lane) that may be under way
constexpr std::size_t kHeader = 64;     // before every piece in an outbox: whether the receiver still needs it
constexpr std::size_t kSlot = 4 << 10;  // of one (receiver, lane), used while the ring is full
constexpr std::size_t kMinOutbox = 4 << 10;

std::size_t round_up(std::size_t n) { return (n + 63) / 64 * 64; }

std::atomic<std::uint32_t>& busy_flag(char* block) { return *reinterpret_cast<std::atomic<std::uint32_t>*>(block); }

}  // namespace

struct Mailbox::Entry {
  std::uint64_t offset;  // of the piece in the sender's outbox
  std::uint64_t bytes;   // of the piece
  std::uint64_t total;   // of the whole message; 0 for a piece that continues one
};

// Lies in the receiver's piece; one sender, one receiver.
struct alignas(64) Mailbox::Fifo {
  std::atomic<std::uint64_t> sent;
  alignas(64) std::atomic<std::uint64_t> taken;
  alignas(64) Entry entries[kDepth];
};

Mailbox::Mailbox(ShmGroup& group, std::size_t outbox_bytes)
    : group_(group), waiting_(static_cast<std::size_t>(group.size()) * kLanes) {
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);
  control_ = group_.allocate(sizeof(Fifo) * static_cast<std::size_t>(group_.size()) * kLanes);
  if (!control_.bases.empty()) reserve(outbox_bytes);
  group_.world().progress.push_back(this);
}

Mailbox::~Mailbox() { std::erase(group_.world().progress, static_cast<Progress*>(this)); }

Mailbox::Fifo& Mailbox::fifo(int from, int to, Lane lane) const {
  char* base = control_.bases[static_cast<std::size_t>(to)];
  return reinterpret_cast<Fifo*>(base)[from * kLanes + static_cast<int>(lane)];
}

void Mailbox::reserve(std::size_t outbox_bytes) {
  outbox_bytes = round_up(std::max(outbox_bytes, kMinOutbox));
  group_.world().wait_until(
      [&] {
        poll();
        free_front();
        return blocks_.empty() && num_waiting_ == 0;
      },
      [] { return "room for sends cannot grow while sent messages wait to be received"; });
  if (ShmPieces pieces = group_.allocate(num_channels() * (kHeader + kSlot) + outbox_bytes); !pieces.bases.empty()) {
    outbox_ = std::move(pieces);
    ring_bytes_ = outbox_bytes;
  }
}

void Mailbox::free_front() {
  while (!blocks_.empty() && busy_flag(own_outbox() + blocks_.front().offset).load(std::memory_order_acquire) == 0) {
    blocks_.pop_front();
  }
}

// Room for a piece of that size in the ring, or null.
char* Mailbox::ring_space(std::size_t bytes) {
  free_front();
  const std::size_t ring = num_channels() * (kHeader + kSlot);
  const std::size_t need = kHeader + round_up(bytes);
  std::size_t offset = ring;
  if (!blocks_.empty()) {
    const std::size_t first = blocks_.front().offset;
    const std::size_t end = blocks_.back().offset + blocks_.back().bytes;
    const bool wrapped = blocks_.back().offset < first;
    if (end + need <= (wrapped ? first : ring + ring_bytes_)) {
      offset = end;
    } else if (wrapped || ring + need > first) {
      return nullptr;
    }
  }
  blocks_.push_back({offset, need});
  return own_outbox() + offset;
}

// Posts as much as there is room for and returns how much that was; `started`: the message's first piece is posted.
std::size_t Mailbox::post_pieces(int to, Lane lane, const char* data, std::size_t bytes, std::size_t total,
                                 bool& started) {
  Fifo& f = fifo(group_.rank(), to, lane);
  std::size_t done = 0;
  while (!started || done < bytes) {
    const std::uint64_t sent = f.sent.load(std::memory_order_relaxed);
    if (sent - f.taken.load(std::memory_order_acquire) == kDepth) break;
    Entry entry{0, std::min(ring_bytes_ / 4 - kHeader, bytes - done), started ? 0 : total};
    if (entry.bytes > 0) {
      char* space = ring_space(entry.bytes);
      if (space == nullptr) {
        space = own_outbox() + slot(to, lane) * (kHeader + kSlot);
        if (busy_flag(space).load(std::memory_order_acquire) != 0) break;
        entry.bytes = std::min(kSlot, bytes - done);
      }
      busy_flag(space).store(1, std::memory_order_relaxed);
      std::memcpy(space + kHeader, data + done, entry.bytes);
      entry.offset = static_cast<std::uint64_t>(space - own_outbox());
    }
    f.entries[sent % kDepth] = entry;
    f.sent.store(sent + 1, std::memory_order_release);
    started = true;
    done += entry.bytes;
  }
  return done;
}

void Mailbox::post(int to, Lane lane, const void* data, std::size_t bytes) {
  poll();
  const char* p = static_cast<const char*>(data);
  std::size_t done = 0;
  bool started = false;
  auto& queue = waiting_[slot(to, lane)];
  if (queue.empty()) {
    done = post_pieces(to, lane, p, bytes, bytes, started);
    if (started && done == bytes) return;
  }
  if (!told_ && lane == kUser) {  // in a collective the sender stays until all is received
    told_ = true;
    log::warning(
        "a message of {} bytes to rank {} does not fit into the outbox of {} bytes: the rest waits until this rank "
        "communicates again; reserve more room for sends",
        bytes, group_.world_rank(to), ring_bytes_);
  }
  queue.push_back({std::vector<char>(p + done, p + bytes), 0, bytes, started});
  ++num_waiting_;
}

void Mailbox::poll() {
  if (num_waiting_ == 0) return;
  for (int to = 0; to < group_.size(); ++to) {
    for (const Lane lane : {kUser, kCollective}) {
      auto& queue = waiting_[slot(to, lane)];
      while (!queue.empty()) {
        Waiting& w = queue.front();
        w.done += post_pieces(to, lane, w.data.data() + w.done, w.data.size() - w.done, w.total, w.started);
        if (!w.started || w.done < w.data.size()) break;
        queue.pop_front();
        --num_waiting_;
      }
    }
  }
}

void Mailbox::take(int from, Lane lane, void* data, std::size_t bytes, std::string_view comm_name) {
  Fifo& f = fifo(from, group_.rank(), lane);
  char* p = static_cast<char*>(data);
  std::size_t done = 0;
  bool started = false;
  while (!started || done < bytes) {
    const std::uint64_t taken = f.taken.load(std::memory_order_relaxed);
    group_.world().wait_until([&] { return f.sent.load(std::memory_order_acquire) > taken; },
                              [&] {
                                return fmt::format(
                                    "{}: rank {} waits for a message of {} bytes ({} have come) from rank {}",
                                    comm_name, group_.world().rank, bytes, done, group_.world_rank(from));
                              });
    const Entry entry = f.entries[taken % kDepth];
    if (!started && entry.total != bytes) {
      throw std::logic_error(fmt::format("{}: rank {} receives {} bytes, but rank {} sent {}", comm_name,
                                         group_.world().rank, bytes, group_.world_rank(from), entry.total));
    }
    if (entry.bytes > 0) {
      char* source = outbox_.bases[static_cast<std::size_t>(from)] + entry.offset;
      std::memcpy(p + done, source + kHeader, entry.bytes);
      busy_flag(source).store(0, std::memory_order_release);
    }
    f.taken.store(taken + 1, std::memory_order_release);
    started = true;
    done += entry.bytes;
  }
}

}  // namespace mmt::comm
