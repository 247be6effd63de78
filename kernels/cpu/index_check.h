// Checks of index data, done before any thread starts: an exception cannot leave a parallel region.
#pragma once

#include "core/error.h"
#include "core/tensor.h"

namespace mmt::cpu {

/// Every element of the i32 vector lies in [low, high).
inline void check_indices(const Tensor& index, std::int64_t low, std::int64_t high, const char* what) {
  const auto* values = index.as<std::int32_t>();
  for (std::int64_t i = 0; i < index.rows(); ++i)
    MMT_CHECK(values[i] >= low && values[i] < high, "{}: element {} is {}, outside [{}, {})", what, i, values[i], low,
              high);
}

}  // namespace mmt::cpu
