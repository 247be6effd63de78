#include "core/arena.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace mmt {
namespace {

constexpr std::size_t kAlign = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kHugeFrom = std::size_t{4} << 20;
constexpr unsigned char kGuardByte = 0xA5;
#ifdef NDEBUG
constexpr std::size_t kGuardBytes = 0;
#else
constexpr std::size_t kGuardBytes = 64;
#endif

std::atomic<bool> poisoning_on{false};

constexpr std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

class HeapMemory final : public MemoryProvider {
 public:
  void* allocate(std::size_t bytes) override {
    const bool huge = bytes >= kHugeFrom;
    const std::size_t align = huge ? kHugePage : kAlign;
    void* memory = std::aligned_alloc(align, round_up(bytes, align));
    if (memory == nullptr) throw std::bad_alloc();
    if (huge) {
      ::madvise(memory, round_up(bytes, align), MADV_HUGEPAGE);
      for (std::size_t at = 0; at < bytes; at += 4096) static_cast<volatile char*>(memory)[at] = 0;
    }
    return memory;
  }
  void release(void* memory, std::size_t) noexcept override { std::free(memory); }
  Device device() const override { return {}; }
};

std::size_t bytes_of(DType dtype, std::span<const std::int64_t> shape) {
  std::size_t n = static_cast<std::size_t>(size_of(dtype));
  for (const std::int64_t d : shape) n *= static_cast<std::size_t>(d);
  return n;
}

}  // namespace

MemoryProvider& heap_memory() {
  static HeapMemory heap;
  return heap;
}

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
  MMT_CHECK(used_ + need <= capacity(), "arena {}: {} bytes asked for, {} of {} used", name_, need, used_, capacity());
  char* memory = static_cast<char*>(buffer_.data()) + used_;
  used_ += need;
  if (used_ > peak_) peak_ = used_;
  if constexpr (kGuardBytes > 0) {
    if (buffer_.device().kind == DeviceKind::cpu) std::memset(memory + need - kGuardBytes, kGuardByte, kGuardBytes);
  }
  return Tensor(memory, dtype, shape, buffer_.device());
}

Tensor Arena::take(DType dtype, std::initializer_list<std::int64_t> shape) {
  return take(dtype, std::span<const std::int64_t>(shape.begin(), shape.size()));
}

void Arena::release_to(std::size_t mark) {
  MMT_CHECK(mark <= used_, "arena {}: release to {} but only {} bytes are used", name_, mark, used_);
  if (buffer_.device().kind == DeviceKind::cpu && mark < used_)
    poison(static_cast<char*>(buffer_.data()) + mark, used_ - mark);
  used_ = mark;
}

}  // namespace mmt
