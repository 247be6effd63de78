// The anti-aliased resize of Pillow (`Image.resize` with bilinear or bicubic), bit for bit: separable,
// fixed-point weights of 22 bits, clipped to 8 bits after each pass; a pass whose size does not
// change is left out. The order of the passes is that of the Pillow release (PassOrder).
#pragma once

#include "core/data/media/image.h"
#include "core/data/media/preprocess.h"

#include <cstdint>
#include <span>
#include <vector>

namespace mmt::data {

/// Weights of one direction for output positions [first, first + count) of `out_size`. Position i reads `length[i]`
/// inputs from `start[i]` on, with weights[i * width ...].
struct ResizeTaps {
  std::int64_t in_size = 0;
  std::int64_t out_size = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t width = 0;
  std::vector<std::int32_t> start;
  std::vector<std::int32_t> length;
  std::vector<std::int32_t> weights;

  bool identity() const { return in_size == out_size; }
  std::int64_t first_input() const;  ///< inputs that are read: [first_input, end_input)
  std::int64_t end_input() const;
};

/// A kernel as wide as max(1, in / out) times its support, so that nothing is skipped when the picture shrinks.
/// 0 <= first, first + count <= out_size, count > 0.
ResizeTaps resize_taps(Resample kind, std::int64_t in_size, std::int64_t out_size, std::int64_t first,
                       std::int64_t count);

/// The window of the resized picture that the taps describe: horizontal.count x vertical.count pixels into `out`
/// (3 bytes each). `scratch` keeps memory between calls.
void resize_window(const Image& image, const ResizeTaps& horizontal, const ResizeTaps& vertical, PassOrder order,
                   std::vector<std::uint8_t>& scratch, std::span<std::uint8_t> out);

}  // namespace mmt::data
