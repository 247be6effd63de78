// Element types and the bf16 value type.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

namespace mmt {

/// f64 exists on the CPU only, for gradient checks.
enum class DType : std::uint8_t { f32, bf16, f64, i32, i64, u64, u8 };

/// Brain float: the upper half of an f32. Conversion from f32 rounds to nearest even; NaN stays NaN.
struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  explicit constexpr bf16(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = nan ? static_cast<std::uint16_t>((u >> 16) | 0x40u)
               : static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  explicit constexpr bf16(double value) : bf16(static_cast<float>(value)) {}
  constexpr operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};
static_assert(sizeof(bf16) == 2);

constexpr std::int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
    case DType::u64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16: return 2;
    case DType::u8: return 1;
  }
  return 0;
}

constexpr std::string_view name_of(DType dtype) {
  constexpr std::string_view names[] = {"f32", "bf16", "f64", "i32", "i64", "u64", "u8"};
  return names[static_cast<int>(dtype)];
}

std::optional<DType> parse_dtype(std::string_view name);

constexpr bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f64; }

template <class T> inline constexpr DType dtype_of = DType::u8;
template <> inline constexpr DType dtype_of<float> = DType::f32;
template <> inline constexpr DType dtype_of<bf16> = DType::bf16;
template <> inline constexpr DType dtype_of<double> = DType::f64;
template <> inline constexpr DType dtype_of<std::int32_t> = DType::i32;
template <> inline constexpr DType dtype_of<std::int64_t> = DType::i64;
template <> inline constexpr DType dtype_of<std::uint64_t> = DType::u64;

/// The type in which a reference kernel accumulates and in which a gradient check computes: f64 for f64, else f32.
/// The master type of a parameter: what its gradient, moments and master copy are kept in.
constexpr DType master_of(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

[[noreturn]] void throw_not_float(DType dtype);

/// Calls `f.template operator()<T>()` with T = float, bf16 or double.
template <class F> decltype(auto) visit_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32: return std::forward<F>(f).template operator()<float>();
    case DType::bf16: return std::forward<F>(f).template operator()<bf16>();
    case DType::f64: return std::forward<F>(f).template operator()<double>();
    default: throw_not_float(dtype);
  }
}

}  // namespace mmt
