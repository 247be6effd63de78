#include "core/arena.h"

#include "core/log.h"

#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace mmt {
namespace {

constexpr std::size_t kAlign = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kMaxBytes = std::size_t{1} << 50;  // beyond any address space
constexpr std::size_t kHugeFrom = std::size_t{4} << 20;
constexpr std::size_t kTouchedTogetherFrom = std::size_t{64} << 20;

// A guard zone: a run of kGuardByte, the record of the tensor before it, another run. Writes behind the tensor and
// before the next one hit a run first. The record lies in the zone, so that taking a tensor allocates nothing.
constexpr unsigned char kGuardByte = 0xA5;
constexpr std::size_t kGuardRun = 32;

struct alignas(kAlign) GuardRecord {
  std::uint64_t start = 0;  // offset of the tensor in the arena
  std::uint64_t bytes = 0;
  std::array<std::int64_t, Tensor::kMaxRank> dims{};
  std::int32_t rank = 0;
  std::int32_t dtype = 0;
  std::uint64_t seal = 0;

  std::uint64_t expected_seal() const {
    std::uint64_t h = 0x6d6d745f61726e61ull;
    const auto add = [&](std::uint64_t v) { h = (h ^ v) * 0x100000001b3ull; };
    add(start);
    add(bytes);
    for (const std::int64_t d : dims) add(static_cast<std::uint64_t>(d));
    add(static_cast<std::uint64_t>(rank));
    add(static_cast<std::uint64_t>(dtype));
    return h;
  }
};
static_assert(sizeof(GuardRecord) % kAlign == 0);

#ifdef NDEBUG
constexpr std::size_t kGuardBytes = 0;
#else
constexpr std::size_t kGuardBytes = 2 * kGuardRun + sizeof(GuardRecord);
#endif

std::atomic<bool> poisoning_on{false};
std::atomic<std::int64_t> pieces_taken{0};

constexpr std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

/// The system clears a page when it is first written: by all threads, where that takes long enough to start them.
void touch(volatile char* memory, std::size_t bytes) {
  const auto pages = static_cast<std::int64_t>((bytes + kHugePage - 1) / kHugePage);
#pragma omp parallel for schedule(static) if (bytes >= kTouchedTogetherFrom && omp_in_parallel() == 0)
  for (std::int64_t page = 0; page < pages; ++page) {
    const std::size_t first = static_cast<std::size_t>(page) * kHugePage, end = std::min(bytes, first + kHugePage);
    for (std::size_t at = first; at < end; at += 4096) memory[at] = 0;
  }
}

class HeapMemory final : public MemoryProvider {
 public:
  void* allocate(std::size_t bytes) override {
    const bool huge = bytes >= kHugeFrom;
    const std::size_t align = huge ? kHugePage : kAlign;
    void* memory = bytes > kMaxBytes ? nullptr : std::aligned_alloc(align, round_up(bytes, align));
    if (memory == nullptr) throw OutOfMemoryError(fmt::format("out of host memory: {} bytes asked for", bytes));
    ++pieces_taken;
    if (huge) {
      ::madvise(memory, round_up(bytes, align), MADV_HUGEPAGE);
      touch(static_cast<volatile char*>(memory), bytes);
    }
    return memory;
  }
  void release(void* memory, std::size_t) noexcept override { std::free(memory); }
  Device device() const override { return {}; }
};

std::size_t bytes_of(DType dtype, std::span<const std::int64_t> shape) {
  // A Tensor without memory checks the rank, the signs and the overflow of the product.
  return static_cast<std::size_t>(Tensor(nullptr, dtype, shape).bytes());
}

}  // namespace

MemoryProvider& heap_memory() {
  static HeapMemory heap;
  return heap;
}

std::int64_t heap_pieces_taken() { return pieces_taken; }

void set_poisoning(bool on) { poisoning_on = on; }
bool poisoning() { return poisoning_on; }
void poison(void* memory, std::size_t bytes) {
  if (poisoning() && memory != nullptr) std::memset(memory, 0xFF, bytes);
}

Buffer::Buffer(std::size_t bytes, MemoryProvider& provider)
    : data_(bytes == 0 ? nullptr : provider.allocate(bytes)), bytes_(bytes), provider_(&provider) {
  if (provider.device().kind == DeviceKind::cpu) poison(data_, bytes_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      provider_(std::exchange(other.provider_, nullptr)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(provider_, other.provider_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  if (provider_->device().kind == DeviceKind::cpu) poison(data_, bytes_);
  provider_->release(data_, bytes_);
}

OwnedTensor::OwnedTensor(DType dtype, std::span<const std::int64_t> shape, MemoryProvider& provider)
    : buffer_(bytes_of(dtype, shape), provider), view_(buffer_.data(), dtype, shape, provider.device()) {}

OwnedTensor::OwnedTensor(DType dtype, std::initializer_list<std::int64_t> shape, MemoryProvider& provider)
    : OwnedTensor(dtype, std::span<const std::int64_t>(shape.begin(), shape.size()), provider) {}

Arena::Arena(std::string name, std::size_t capacity, MemoryProvider& provider)
    : name_(std::move(name)), buffer_(capacity, provider) {}

std::size_t Arena::footprint(std::size_t bytes) { return round_up(bytes, kAlign) + kGuardBytes; }

Tensor Arena::take(DType dtype, std::span<const std::int64_t> shape) {
  const std::size_t bytes = bytes_of(dtype, shape);
  const std::size_t need = footprint(bytes);
  MMT_CHECK(need <= capacity() - used_, "arena {}: {} bytes asked for, {} of {} used", name_, need, used_, capacity());
  char* memory = static_cast<char*>(buffer_.data()) + used_;
  used_ += need;
  if (used_ > peak_) peak_ = used_;
  const Tensor t(memory, dtype, shape, buffer_.device());
  if (kGuardBytes > 0 && buffer_.device().kind == DeviceKind::cpu) {
    std::memset(memory + bytes, kGuardByte, need - bytes);
    GuardRecord record{.start = used_ - need,
                       .bytes = bytes,
                       .dims = t.dims,
                       .rank = t.rank,
                       .dtype = static_cast<std::int32_t>(dtype)};
    record.seal = record.expected_seal();
    std::memcpy(memory + need - kGuardRun - sizeof record, &record, sizeof record);
  }
  return t;
}

Tensor Arena::take(DType dtype, std::initializer_list<std::int64_t> shape) {
  return take(dtype, std::span<const std::int64_t>(shape.begin(), shape.size()));
}

void Arena::check_guards(std::size_t from) const {
  if (kGuardBytes == 0 || buffer_.device().kind != DeviceKind::cpu) return;
  const auto* base = static_cast<const unsigned char*>(buffer_.data());
  for (std::size_t end = used_; end > from;) {
    GuardRecord record;
    std::memcpy(&record, base + end - kGuardRun - sizeof record, sizeof record);
    MMT_CHECK(record.seal == record.expected_seal() && record.start < end,
              "arena {}: the guard zone that ends at offset {} was overwritten as a whole, by a write beyond the "
              "tensor before it "
              "or before the tensor behind it",
              name_, end);
    const auto tensor = [&] {
      const std::span<const std::int64_t> shape(record.dims.data(), static_cast<std::size_t>(record.rank));
      return Tensor(nullptr, static_cast<DType>(record.dtype), shape).describe();
    };
    const std::size_t behind = record.start + record.bytes;
    for (std::size_t at = behind; at < end - kGuardRun - sizeof record; ++at) {
      MMT_CHECK(base[at] == kGuardByte, "arena {}: a write beyond {} at offset {}: {} bytes behind its end", name_,
                tensor(), record.start, at - behind);
    }
    for (std::size_t at = end; at-- > end - kGuardRun;) {
      MMT_CHECK(base[at] == kGuardByte,
                "arena {}: a write {} bytes before the tensor at offset {} (behind {} at offset {})", name_, end - at,
                end, tensor(), record.start);
    }
    end = record.start;
  }
}

void Arena::drop_to(std::size_t mark) {
  if (buffer_.device().kind == DeviceKind::cpu && mark < used_) {
    poison(static_cast<char*>(buffer_.data()) + mark, used_ - mark);
  }
  used_ = mark;
}

void Arena::release_to(std::size_t mark) {
  MMT_CHECK(mark <= used_, "arena {}: release to {} but only {} bytes are used", name_, mark, used_);
  check_guards(mark);
  drop_to(mark);
}

ArenaScope::~ArenaScope() noexcept(false) {
  if (std::uncaught_exceptions() == exceptions_) {
    arena_.release_to(mark_);
    return;
  }
  try {
    arena_.release_to(mark_);
  } catch (const std::logic_error& e) {
    log::error("{}", e.what());
    arena_.drop_to(mark_);
  }
}

}  // namespace mmt
