#include "parallel/comm/shm.h"

#include "core/at.h"
#include "core/log.h"
#include "parallel/comm/reduce.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>

namespace mmt::comm {

namespace {

constexpr std::uint32_t kStaged = 0;   // block 0: not addressable by others
constexpr std::uint32_t kPointer = 1;  // block 1: offset is the pointer itself
constexpr std::uint32_t kFirstBlock = 2;
// Below this a rank reduces everything itself and saves the phase that hands slices round.
constexpr std::size_t kSmall = 4096;

std::uint32_t detail_of(ReduceOp op, DType dtype) {
  return static_cast<std::uint32_t>(op) * 16 + static_cast<std::uint32_t>(dtype) + 1;
}

// The part of `count` elements that rank r of n works on: whole cache lines.
std::pair<std::int64_t, std::int64_t> slice(std::int64_t count, int r, int n, std::int64_t element) {
  const std::int64_t line = 64 / element;
  const std::int64_t lines = (count + line - 1) / line;
  const std::int64_t first = std::min(count, lines * r / n * line);
  const std::int64_t last = std::min(count, lines * (r + 1) / n * line);
  return {first, last - first};
}

}  // namespace

// Two calls, since a rank may write its next one while another still reads the last. Relaxed atomics: what others need
// is ordered by `arrivals`, what a timed-out rank prints need not be.
struct alignas(64) ShmCommunicator::Slot {
  std::atomic<std::uint64_t> arrivals;
  std::atomic<bool> reading, left;
  struct {
    std::atomic<std::uint32_t> op, detail, block;
    std::atomic<std::uint64_t> number, bytes, part, offset;
  } calls[2];
};

ShmCommunicator::ShmCommunicator(std::string name, std::shared_ptr<ShmGroup> group, const ShmOptions& options)
    : Communicator(std::move(name)),
      group_(std::move(group)),
      options_(options),
      mailbox_(*group_, options.outbox_bytes) {
  slots_ = group_->allocate(sizeof(Slot));
  const std::size_t least = 64 * usize(size());
  options_.staging_bytes = std::max(options.staging_bytes / 128 * 128, 2 * least);
  staging_ = group_->allocate(options_.staging_bytes);
}

// The last chance of messages that found no room: their receivers may still come.
ShmCommunicator::~ShmCommunicator() {
  if (mailbox_.idle() || std::uncaught_exceptions() > 0) return;
  try {
    group_->world().wait_until([&] { return mailbox_.idle(); },
                               [&] {
                                 return fmt::format("{}: rank {} has sent messages that nobody receives", name(),
                                                    group_->world().rank);
                               });
  } catch (const std::exception& e) {
    log::warning("{}", e.what());
  }
}

ShmCommunicator::Slot& ShmCommunicator::slot(int r) const { return *reinterpret_cast<Slot*>(slots_.bases[usize(r)]); }

SharedBlock ShmCommunicator::shared_alloc(std::size_t bytes) {
  ShmPieces pieces = group_->allocate(bytes);
  if (pieces.bases.empty()) {
    if (rank() == 0) {
      log::warning("{}: {} MiB a rank cannot be shared, reductions copy them: {}", name(), bytes >> 20,
                   group_->problem());
    }
    return {};
  }
  SharedBlock block{pieces.owner, pieces.bases[usize(rank())], bytes};
  blocks_.push_back({std::move(pieces), bytes});
  return block;
}

ShmCommunicator::Place ShmCommunicator::place_of(const void* data, std::size_t bytes) const {
  if (bytes == 0) return {kStaged, 0};
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  if (group_->one_address_space()) {
    return options_.direct ? Place{kPointer, address} : Place{kStaged, 0};
  }
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const auto base = reinterpret_cast<std::uintptr_t>(blocks_[i].pieces.bases[usize(rank())]);
    if (address >= base && address + bytes <= base + blocks_[i].bytes) {
      return {static_cast<std::uint32_t>(i) + kFirstBlock, address - base};
    }
  }
  return {kStaged, 0};
}

char* ShmCommunicator::block_of(int r, const Place& place) const {
  if (place.block == kStaged) return nullptr;
  if (place.block == kPointer) return reinterpret_cast<char*>(place.offset);
  return blocks_[place.block - kFirstBlock].pieces.bases[usize(r)] + place.offset;
}

char* ShmCommunicator::half(int r) const { return staging_.bases[usize(r)] + (chunk_ % 2) * half_bytes(); }

std::string ShmCommunicator::describe(const Call& call) const {
  constexpr const char* names[] = {"nothing", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier"};
  constexpr const char* ops[] = {"sum", "max", "min"};
  std::string text = names[static_cast<std::uint32_t>(call.op)];
  if (call.op == Op::all_reduce || call.op == Op::reduce_scatter) {
    const std::uint32_t d = call.detail - 1;
    text += fmt::format(" ({} of {})", ops[d / 16], name_of(static_cast<DType>(d % 16)));
  }
  if (call.op == Op::broadcast)
    text += fmt::format(" (from rank {})", group_->world_rank(static_cast<int>(call.detail)));
  if (call.op != Op::none && call.op != Op::barrier) text += fmt::format(" of {} bytes", call.bytes);
  return text;
}

ShmCommunicator::Call ShmCommunicator::call_of(int r) const {
  const auto& c = slot(r).calls[phases_ % 2];
  constexpr auto relaxed = std::memory_order_relaxed;
  return {static_cast<Op>(c.op.load(relaxed)),
          c.detail.load(relaxed),
          c.bytes.load(relaxed),
          c.part.load(relaxed),
          {c.block.load(relaxed), c.offset.load(relaxed)}};
}

std::string ShmCommunicator::missing() const {
  std::string text;
  for (int r = 0; r < size(); ++r) {
    if (slot(r).arrivals.load(std::memory_order_acquire) >= phases_) continue;
    text += fmt::format("{}rank {}", text.empty() ? "" : ", ", group_->world_rank(r));
    const auto& c = slot(r).calls[(phases_ + 1) % 2];
    text += fmt::format(" (its last call: number {}, {})", c.number.load(),
                        describe({static_cast<Op>(c.op.load()), c.detail.load(), c.bytes.load(), 0, {}}));
  }
  return text;
}

void ShmCommunicator::begin_reading() {
  slot(rank()).reading.store(true);
  for (int r = 0; r < size(); ++r) {
    if (!slot(r).left.load()) continue;
    slot(rank()).reading.store(false);
    leave();
    group_->world().check_abort();
    throw PeerError(fmt::format("{}: rank {} left call number {}", name(), group_->world_rank(r), calls_));
  }
}

void ShmCommunicator::end_reading() { slot(rank()).reading.store(false); }

void ShmCommunicator::leave() noexcept {
  slot(rank()).left.store(true);
  for (int r = 0; r < size(); ++r) {
    while (slot(r).reading.load()) std::this_thread::yield();
  }
}

void ShmCommunicator::phase(const Call& call) try {
  constexpr auto relaxed = std::memory_order_relaxed;
  ++phases_;
  Slot& mine = slot(rank());
  auto& c = mine.calls[phases_ % 2];
  c.op.store(static_cast<std::uint32_t>(call.op), relaxed);
  c.detail.store(call.detail, relaxed);
  c.block.store(call.place.block, relaxed);
  c.number.store(calls_, relaxed);
  c.bytes.store(call.bytes, relaxed);
  c.part.store(call.part, relaxed);
  c.offset.store(call.place.offset, relaxed);
  mine.arrivals.store(phases_, std::memory_order_release);
  int next = 0;
  group_->world().wait_until(
      [&] {
        while (next < size() && slot(next).arrivals.load(std::memory_order_acquire) >= phases_) ++next;
        return next == size();
      },
      [&] {
        return fmt::format("{}: rank {} waits in call number {}, {}, for {}", name(), group_->world().rank, calls_,
                           describe(call), missing());
      });
} catch (...) {
  leave();
  throw;
}

void ShmCommunicator::compare(const Call& mine) {
  for (int r = 0; r < size(); ++r) {
    const Call other = call_of(r);
    if (other.op == mine.op && other.detail == mine.detail && other.bytes == mine.bytes) continue;
    leave();
    throw std::logic_error(
        fmt::format("{}: the ranks have come apart at call number {}: rank {} calls {}, rank {} calls {}", name(),
                    calls_, group_->world().rank, describe(mine), group_->world_rank(r), describe(other)));
  }
}

void ShmCommunicator::begin(const Call& call) {
  ++calls_;
  phase(call);
  compare(call);
}

void ShmCommunicator::do_barrier() {
  if (group_->world().before_operation) group_->world().before_operation();
  begin({Op::barrier, 0, 0, 0, {}});
}

void ShmCommunicator::do_all_reduce(const Tensor& data, ReduceOp op, const Stream&) {
  if (group_->world().before_operation) group_->world().before_operation();
  const int n = size();
  const std::size_t bytes = usize(data.bytes());
  const std::int64_t element = size_of(data.dtype);
  const bool small = bytes <= std::min(kSmall, half_bytes());
  const Place place = small ? Place{} : place_of(data.data, bytes);
  const Call call{Op::all_reduce, detail_of(op, data.dtype), bytes, bytes, place};
  std::size_t chunk = std::min(bytes, half_bytes() / 64 * 64);
  char* mine = static_cast<char*>(data.data);
  const bool staged = place.block == kStaged;
  if (staged && bytes > 0) std::memcpy(half(rank()), mine, chunk);
  begin(call);
  if (bytes == 0) return;

  std::vector<char*> home(usize(n));  // of each rank's tensor; null where staged
  bool all_direct = true;
  for (int r = 0; r < n; ++r) {
    home[usize(r)] = block_of(r, call_of(r).place);
    all_direct = all_direct && home[usize(r)] != nullptr;
  }
  std::vector<const void*> sources(usize(n));
  std::vector<void*> destinations(usize(n));
  if (small) {
    for (int r = 0; r < n; ++r) sources[usize(r)] = half(r);
    void* const to_me[] = {mine};
    reduce_in_rank_order(op, data.dtype, sources, to_me, data.numel());
    next_half();
    return;
  }
  if (all_direct) chunk = bytes;
  for (std::size_t done = 0; done < bytes; done += chunk) {
    const std::size_t now = std::min(chunk, bytes - done);
    if (done > 0) {
      if (staged) std::memcpy(half(rank()), mine + done, now);
      phase(call);
    }
    const auto [first, count] = slice(static_cast<std::int64_t>(now) / element, rank(), n, element);
    for (int r = 0; r < n; ++r) {
      char* base = home[usize(r)] != nullptr ? home[usize(r)] + done : half(r);
      sources[usize(r)] = destinations[usize(r)] = base + first * element;
    }
    begin_reading();
    reduce_in_rank_order(op, data.dtype, sources, destinations, count);
    end_reading();
    phase(call);
    if (staged) std::memcpy(mine + done, half(rank()), now);
    next_half();
  }
}

void ShmCommunicator::visit_parts(std::span<const Tensor> inputs, ReduceOp op, int ranks, const Visit& visit) {
  if (group_->world().before_operation) group_->world().before_operation();
  const int n = size();
  DType dtype = DType::f32;
  std::int64_t total = 0;
  std::int64_t longest = 0;
  for (const Tensor& t : inputs) {
    if (t.numel() > 0) dtype = t.dtype;
    total += t.numel();
    longest = std::max(longest, t.numel());
  }
  const std::int64_t part = inputs[usize(rank())].numel();
  const std::int64_t element = size_of(dtype);
  // Each chunk brings `step` elements of every rank's part: staged as n runs.
  const std::int64_t step = std::max<std::int64_t>(1, static_cast<std::int64_t>(half_bytes()) / ranks / element);
  const Call call{Op::reduce_scatter, detail_of(op, dtype), usize(total * element), usize(part * element), {}};
  std::vector<const void*> sources(usize(n));
  if (longest == 0) return begin(call);
  for (std::int64_t done = 0; done < longest; done += step) {
    for (int r = 0; r < n; ++r) {
      const Tensor& t = inputs[usize(r)];
      const std::int64_t now = std::clamp<std::int64_t>(t.numel() - done, 0, step);
      if (now == 0) continue;
      std::memcpy(half(rank()) + r * step * element, static_cast<const char*>(t.data) + done * element,
                  usize(now * element));
    }
    if (done == 0) {
      begin(call);
    } else {
      phase(call);
    }
    for (int r = 0; r < n; ++r) sources[usize(r)] = half(r) + rank() * step * element;
    if (const auto mine = std::clamp<std::int64_t>(part - done, 0, step); mine > 0) visit(sources, done, mine);
    next_half();
  }
}

void ShmCommunicator::do_reduce_scatter_v(std::span<const Tensor> inputs, const Tensor& output, ReduceOp op,
                                          const Stream&) {
  visit_parts(inputs, op, size(), [&](std::span<const void* const> sources, std::int64_t first, std::int64_t count) {
    void* const to_me[] = {static_cast<char*>(output.data) + first * size_of(output.dtype)};
    reduce_in_rank_order(op, output.dtype, sources, to_me, count);
  });
}

void ShmCommunicator::do_all_gather_v(const Tensor& input, std::span<const Tensor> outputs, const Stream&) {
  if (group_->world().before_operation) group_->world().before_operation();
  std::int64_t total = 0;
  std::int64_t longest = 0;
  for (const Tensor& t : outputs) {
    total += t.bytes();
    longest = std::max(longest, t.bytes());
  }
  const Call call{Op::all_gather, 0, usize(total), usize(input.bytes()), {}};
  if (longest == 0) return begin(call);
  const char* mine = static_cast<const char*>(input.data);
  const std::int64_t step = static_cast<std::int64_t>(half_bytes());
  for (std::int64_t done = 0; done < longest; done += step) {
    if (const auto now = std::clamp<std::int64_t>(input.bytes() - done, 0, step); now > 0) {
      std::memcpy(half(rank()), mine + done, usize(now));
    }
    if (done == 0) {
      begin(call);
      for (int r = 0; r < size(); ++r) {
        MMT_CHECK(call_of(r).part == usize(outputs[usize(r)].bytes()),
                  "{}: all_gather of {} bytes from rank {} into {}", name(), call_of(r).part, group_->world_rank(r),
                  outputs[usize(r)].describe());
      }
    } else {
      phase(call);
    }
    for (int r = 0; r < size(); ++r) {
      const Tensor& t = outputs[usize(r)];
      const auto now = std::clamp<std::int64_t>(t.bytes() - done, 0, step);
      if (now > 0 && !(r == rank() && t.data == input.data)) {
        std::memcpy(static_cast<char*>(t.data) + done, half(r), usize(now));
      }
    }
    next_half();
  }
}

void ShmCommunicator::do_broadcast(const Tensor& data, int root, const Stream&) {
  if (group_->world().before_operation) group_->world().before_operation();
  const std::size_t bytes = usize(data.bytes());
  const Call call{Op::broadcast, static_cast<std::uint32_t>(root), bytes, bytes, {}};
  if (bytes == 0) return begin(call);
  char* mine = static_cast<char*>(data.data);
  for (std::size_t done = 0; done < bytes; done += half_bytes()) {
    const std::size_t now = std::min(half_bytes(), bytes - done);
    if (rank() == root) std::memcpy(half(root), mine + done, now);
    if (done == 0) {
      begin(call);
    } else {
      phase(call);
    }
    if (rank() != root) std::memcpy(mine + done, half(root), now);
    next_half();
  }
}

void ShmCommunicator::do_all_to_all_v(std::span<const Tensor> sends, std::span<const Tensor> recvs, const Stream&) {
  if (group_->world().before_operation) group_->world().before_operation();
  const int n = size();
  const Tensor& own = sends[usize(rank())];
  if (own.bytes() > 0) std::memcpy(recvs[usize(rank())].data, own.data, usize(own.bytes()));
  for (int i = 1; i < n; ++i) {
    const int to = (rank() + i) % n;
    mailbox_.post(to, Mailbox::kCollective, sends[usize(to)].data, usize(sends[usize(to)].bytes()));
  }
  for (int i = 1; i < n; ++i) {
    const int from = (rank() + n - i) % n;
    mailbox_.take(from, Mailbox::kCollective, recvs[usize(from)].data, usize(recvs[usize(from)].bytes()), name());
  }
}

void ShmCommunicator::do_send(const Tensor& data, int to, const Stream&) {
  if (group_->world().before_operation) group_->world().before_operation();
  group_->world().check_abort();
  mailbox_.post(to, Mailbox::kUser, data.data, usize(data.bytes()));
}

void ShmCommunicator::do_recv(const Tensor& data, int from, const Stream&) {
  if (group_->world().before_operation) group_->world().before_operation();
  mailbox_.take(from, Mailbox::kUser, data.data, usize(data.bytes()), name());
}

std::unique_ptr<Communicator> ShmCommunicator::do_split(int color, int key, std::string name) {
  std::shared_ptr<ShmGroup> part = group_->split(color, key);
  if (part == nullptr) return nullptr;
  auto comm = std::make_unique<ShmCommunicator>(name, part, options_);
  if (!comm->usable()) {
    // A small shared file system (containers often have 64 MiB): smaller buffers serve, more slowly.
    ShmOptions small = options_;
    small.staging_bytes = std::max<std::size_t>(options_.staging_bytes / 8, 32 << 10);
    small.outbox_bytes = std::max<std::size_t>(options_.outbox_bytes / 8, 32 << 10);
    if (comm->rank() == 0) log::warning("{}: smaller buffers, since {}", name, part->problem());
    comm = std::make_unique<ShmCommunicator>(name, part, small);
  }
  if (!comm->usable())
    throw Error(fmt::format("{}: no shared memory for a communicator: {}; or set MMTRAIN_SHARED_MEMORY=off", name,
                            part->problem()));
  return comm;
}

}  // namespace mmt::comm
