// Floats as files store them: f16, and any of the float dtypes of safetensors from f32 values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace mmt::data {

float half_to_float(std::uint16_t bits);
/// To nearest even; values beyond the range become infinite, NaN stays NaN.
std::uint16_t float_to_half(float value);

/// `values` as F64, F32, BF16 or F16 into `out`, which has their bytes. Rounds to nearest even.
void encode_floats(std::span<const float> values, std::string_view dtype, std::span<std::byte> out);

}  // namespace mmt::data
