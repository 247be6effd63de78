// The packed clips of a 1-D convolution, checked.
#pragma once

#include "kernels/conv.h"

#include "core/error.h"

namespace mmt::cpu {

struct Clip {
  std::int32_t first, rows;
};

inline const Clip* clips_of(const Tensor& clips) { return reinterpret_cast<const Clip*>(clips.as<std::int32_t>()); }

/// Clips lie inside `rows` input rows in ascending order and give exactly `output_rows`.
inline void check_clips(const Tensor& clips, std::int64_t rows, std::int64_t output_rows, int stride) {
  std::int64_t end = 0, output = 0;
  for (std::int64_t i = 0; i < clips.rows(); ++i) {
    const Clip clip = clips_of(clips)[i];
    MMT_CHECK(clip.first >= end && clip.rows >= 0 && std::int64_t{clip.first} + clip.rows <= rows,
              "conv: clip {} is rows [{}, +{}) of {}, the one before ends at {}", i, clip.first, clip.rows, rows, end);
    end = std::int64_t{clip.first} + clip.rows;
    output += ops::conv_output_rows(clip.rows, stride);
  }
  MMT_CHECK(output == output_rows, "conv: the clips give {} rows, the columns have {}", output, output_rows);
}

}  // namespace mmt::cpu
