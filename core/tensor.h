// Tensor: a typed view of memory. It owns nothing and is cheap to copy; Buffer and Arena (core/arena.h) own memory.
#pragma once

#include "core/dtype.h"
#include "core/error.h"

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace mmt {

enum class DeviceKind : std::uint8_t { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  std::int16_t index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

/// Row-major view. All dims but the first are contiguous; the first may have a stride of its own (`row_stride`, in
/// elements), so that a column range of a wider matrix is a Tensor too.
struct Tensor {
  static constexpr int kMaxRank = 5;

  void* data = nullptr;
  std::array<std::int64_t, kMaxRank> dims{};
  std::int64_t row_stride = 0;
  std::int8_t rank = 0;
  DType dtype = DType::f32;
  Device device{};

  Tensor() = default;
  Tensor(void* memory, DType type, std::initializer_list<std::int64_t> shape, Device where = {});
  Tensor(void* memory, DType type, std::span<const std::int64_t> shape, Device where = {});

  bool defined() const { return rank > 0; }  ///< A default-made Tensor stands for "absent".
  std::int64_t rows() const { return rank == 0 ? 0 : dims[0]; }
  /// Elements in a row: the product of all dims but the first.
  std::int64_t cols() const;
  std::int64_t numel() const { return rows() * cols(); }
  std::int64_t bytes() const { return numel() * size_of(dtype); }
  bool contiguous() const { return row_stride == cols() || rows() <= 1; }
  std::span<const std::int64_t> shape() const { return {dims.data(), static_cast<std::size_t>(rank)}; }

  /// Typed pointer to the first element; throws when T is not the tensor's dtype.
  template <class T> T* as() const {
    MMT_CHECK(dtype == dtype_of<T>, "{} read as {}", describe(), name_of(dtype_of<T>));
    return static_cast<T*>(data);
  }
  template <class T> T* row(std::int64_t r) const { return as<T>() + r * row_stride; }
  /// The elements of a contiguous tensor.
  template <class T> std::span<T> span() const {
    MMT_CHECK(contiguous(), "{} is not contiguous", describe());
    return {as<T>(), static_cast<std::size_t>(numel())};
  }

  /// Rows [first, first + count); columns [first, first + count) of a 2-D tensor.
  Tensor row_range(std::int64_t first, std::int64_t count) const;
  Tensor col_range(std::int64_t first, std::int64_t count) const;
  /// The same contiguous memory under another shape with as many elements.
  Tensor reshape(std::initializer_list<std::int64_t> shape) const;

  std::string describe() const;  ///< "bf16[128,64]"
};

/// Throws std::logic_error naming `what` when the shape or dtype differs.
void check_shape(const Tensor& t, std::initializer_list<std::int64_t> shape, const char* what);
void check_same_shape(const Tensor& a, const Tensor& b, const char* what);

}  // namespace mmt
