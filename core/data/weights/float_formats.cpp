#include "core/data/weights/float_formats.h"

#include "core/at.h"
#include "core/dtype.h"
#include "core/error.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace mmt::data {
namespace {

template <class To, class Make> void encode(std::span<const float> values, std::span<std::byte> out, const Make& make) {
  MMT_CHECK(out.size() == values.size() * sizeof(To), "{} bytes for {} values", out.size(), values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const To x = make(values[i]);
    std::memcpy(out.data() + i * sizeof(To), &x, sizeof(To));
  }
}

}  // namespace

float half_to_float(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16;
  const std::uint32_t exponent = (h >> 10) & 0x1fu, mantissa = h & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;  // subnormals and zero, exact
  return sign != 0 ? -magnitude : magnitude;
}

std::uint16_t float_to_half(float value) {
  const auto u = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((u >> 16) & 0x8000u);
  const std::uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65520 and more round to infinity
  if (magnitude < 0x38800000u) {  // below 2^-14: counts of 2^-24, which the conversion to whole numbers rounds to even
    return static_cast<std::uint16_t>(
        sign | static_cast<std::uint16_t>(std::lrint(std::bit_cast<float>(magnitude) * 0x1p24F)));
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
}

void encode_floats(std::span<const float> values, std::string_view dtype, std::span<std::byte> out) {
  if (dtype == "F32") return encode<float>(values, out, [](float x) { return x; });
  if (dtype == "F64") return encode<double>(values, out, [](float x) { return static_cast<double>(x); });
  if (dtype == "BF16") return encode<bf16>(values, out, [](float x) { return bf16(x); });
  if (dtype == "F16") return encode<std::uint16_t>(values, out, [](float x) { return float_to_half(x); });
  throw Error(fmt::format("{} is no dtype that weights can be written in", dtype));
}

}  // namespace mmt::data
