// Pseudo-random values that follow from a name: the value() of tests/data/models/make_goldens.py, so that weights,
// inputs and probes need not be stored.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mmt::test {

/// `count` values in (-scale, scale): FNV-1a of the name, then a 32-bit finalizer of each index.
inline std::vector<double> named_values(const std::string& name, std::int64_t count, double scale = 1.0) {
  std::uint32_t h = 2166136261U;
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 16777619U;
  std::vector<double> v(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < v.size(); ++i) {
    std::uint32_t x = static_cast<std::uint32_t>(i) * 2654435761U + h;
    x = (x ^ (x >> 16)) * 0x7FEB352DU;
    x = (x ^ (x >> 15)) * 0x846CA68BU;
    x ^= x >> 16;
    v[i] = (static_cast<double>(x >> 8) / 8388608.0 - 1.0) * scale;
  }
  return v;
}

}  // namespace mmt::test
