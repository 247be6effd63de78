// Owners of tensor memory. All of it is 64-byte aligned; large pieces use huge pages and are touched once when made,
// so that no page fault falls into a training step.
#pragma once

#include "core/tensor.h"

#include <cstddef>
#include <exception>
#include <string>

namespace mmt {

/// Where memory comes from: virtual because heap, pinned, device and shared-window memory differ only here.
class MemoryProvider {
 public:
  virtual ~MemoryProvider() = default;
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory, std::size_t bytes) noexcept = 0;
  virtual Device device() const = 0;
};

/// Throws OutOfMemoryError. 64-byte aligned; pieces of 4 MiB and more are 2 MiB aligned, huge-page advised and
/// pre-faulted.
MemoryProvider& heap_memory();
/// Pieces that it has given out since the start of the process: a steady training step takes none.
std::int64_t heap_pieces_taken();

/// Fills fresh and released memory with signalling NaN patterns (0xFF bytes: NaN in every float type). On in every
/// test, off in `train`. Applies to host memory.
void set_poisoning(bool on);
bool poisoning();
void poison(void* memory, std::size_t bytes);

/// One block of memory with one owner.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t bytes, MemoryProvider& provider = heap_memory());
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return provider_ ? provider_->device() : Device{}; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  MemoryProvider* provider_ = nullptr;
};

/// A Buffer with a shape.
class OwnedTensor {
 public:
  OwnedTensor() = default;
  OwnedTensor(DType dtype, std::initializer_list<std::int64_t> shape, MemoryProvider& provider = heap_memory());
  OwnedTensor(DType dtype, std::span<const std::int64_t> shape, MemoryProvider& provider = heap_memory());
  const Tensor& view() const { return view_; }
  operator const Tensor&() const { return view_; }
  const Tensor* operator->() const { return &view_; }

 private:
  Buffer buffer_;
  Tensor view_;
};

/// A stack of tensors inside one block of fixed capacity: `take` moves the top up, `release_to` moves it down again.
/// Nothing is allocated after construction. Debug builds keep a guard zone behind every tensor of host memory and check
/// it on release: a write beyond a tensor throws std::logic_error that names the arena, the tensor and the place.
class Arena {
 public:
  Arena() = default;
  Arena(std::string name, std::size_t capacity, MemoryProvider& provider = heap_memory());

  /// Throws std::logic_error naming the arena, the request and the capacity when it does not fit.
  Tensor take(DType dtype, std::initializer_list<std::int64_t> shape);
  Tensor take(DType dtype, std::span<const std::int64_t> shape);
  /// Bytes that one tensor of `bytes` occupies (alignment and guard zone included): what a capacity is summed from.
  static std::size_t footprint(std::size_t bytes);

  std::size_t mark() const { return used_; }
  /// Checks the guard zones of what it gives back, then poisons it.
  void release_to(std::size_t mark);
  std::size_t capacity() const { return buffer_.bytes(); }
  std::size_t peak() const { return peak_; }
  const std::string& name() const { return name_; }

 private:
  friend class ArenaScope;
  void check_guards(std::size_t from) const;
  void drop_to(std::size_t mark);  ///< release_to without the check

  std::string name_;
  Buffer buffer_;
  std::size_t used_ = 0;
  std::size_t peak_ = 0;
};

/// Returns the arena to where it was when the scope was entered. Throws as release_to does, except while another
/// exception passes: then a damaged guard zone is logged.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()), exceptions_(std::uncaught_exceptions()) {}
  ~ArenaScope() noexcept(false);
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  std::size_t mark_;
  int exceptions_;
};

}  // namespace mmt
