// What both versions of dropout make of a probability.
#pragma once

#include <cstdint>

namespace mmt::cpu {

/// An element is dropped when its 32 bits are below it.
inline std::uint32_t dropout_threshold(double probability) { return static_cast<std::uint32_t>(probability * 0x1p32); }
inline float dropout_factor(double probability) { return static_cast<float>(1.0 / (1.0 - probability)); }

}  // namespace mmt::cpu
