// What tests of prepared pictures compare with: the levels and sums of a processor's rows, which make_media.py wrote.
#pragma once

#include "core/data/media/preprocess.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <cstdint>
#include <vector>

namespace mmt::data::test {

/// FNV-1a of the 8-bit values behind normalised rows, channel by channel as they lie there.
inline std::uint64_t hash_of_levels(const std::vector<float>& rows, const ImageProcessing& o) {
  std::uint64_t h = 0xcbf29ce484222325U;
  const auto plane = static_cast<std::size_t>(o.cols() / 3);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t c = i / plane % 3;
    const auto level = static_cast<std::uint8_t>(std::lround((double{rows[i]} * o.std[c] + o.mean[c]) * 255));
    h = (h ^ level) * 0x100000001b3U;
  }
  return h;
}

inline void check_sums(const std::vector<float>& rows, double sum, double squares) {
  double own = 0.0, own_squares = 0.0;
  for (const float x : rows) {
    own += x;
    own_squares += double{x} * x;
  }
  // At most an ulp (2.4e-7) of every value, which is below 2.7; of its square 2 x 2.7 as much.
  CHECK(std::abs(own - sum) <= 2.4e-7 * static_cast<double>(rows.size()));
  CHECK(std::abs(own_squares - squares) <= 1.3e-6 * static_cast<double>(rows.size()));
}

}  // namespace mmt::data::test
