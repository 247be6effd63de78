// The data report of a run: what was seen, left out and changed. A value that adds up over ranks.
#pragma once

#include "core/error.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace mmt::data {

struct DataReport {
  std::int64_t samples = 0;    ///< drawn and trained on
  std::int64_t repeated = 0;   ///< of these, seen before in this run (drawn in a later pass over the set)
  std::int64_t truncated = 0;  ///< of these, with text cut off
  std::int64_t failed = 0;     ///< of these, failed after planning (weight 0)
  std::int64_t text_rows = 0, image_rows = 0, audio_rows = 0;  ///< LLM rows; image: of pictures and videos
  std::int64_t supervised = 0;                                 ///< supervised tokens
  std::array<std::int64_t, kNumDataFaults> skipped{};          ///< what failed after planning, by reason

  DataReport& operator+=(const DataReport& other);
  /// All counts in a fixed order, for a sum over ranks, and back.
  std::vector<std::int64_t> values() const;
  static DataReport from_values(const std::vector<std::int64_t>& values);
  /// A few lines for people; reasons with count 0 are left out.
  std::string text() const;
};

}  // namespace mmt::data
