// Animated pictures, GIF and WebP, as their frames: 8-bit RGB of the whole canvas, composed as Pillow's `seek(i)` and
// `convert("RGB")` give them, bit for bit (a transparent pixel shows the colour that lies under its transparency).
// Every input is hostile: canvas, frames and their sum are checked before memory or time is spent on them.
//
// Where the result differs from Pillow's, on purpose:
//   * a GIF whose first frame is grey and a later one coloured has the colours (Pillow takes them for levels of grey);
//   * a file that ends early, a frame that reaches over the canvas (Pillow enlarges it) or stray bytes are errors.
#pragma once

#include "core/data/media/image.h"

#include <functional>

namespace mmt::data {

struct AnimationLimits {
  std::int64_t max_frames = 10'000;          ///< of a file
  std::int64_t max_pixels = 10'000'000'000;  ///< canvas x frames that are decoded
};

struct AnimationInfo {
  int width = 0;
  int height = 0;
  std::vector<std::int32_t> milliseconds;  ///< how long each frame stands, as the file says
  std::int64_t frames() const { return static_cast<std::int64_t>(milliseconds.size()); }
};

/// Whether these bytes are an animation's that is read here: a GIF, or an animated WebP.
bool is_animation(std::span<const std::byte> bytes);

/// Reads the structure without decoding pixels. Throws DataError: corrupt_image, image_too_large (canvas),
/// too_many_frames, empty_video.
AnimationInfo read_animation_info(std::span<const std::byte> bytes, const ImageOptions& options,
                                  const AnimationLimits& limits, std::string_view where);

/// Throws DataError(too_many_frames) where the first `frames` frames have more pixels than the limit.
void check_decoded_pixels(const AnimationInfo& info, const AnimationLimits& limits, std::int64_t frames,
                          std::string_view where);

/// Decodes as far as the last wanted frame and hands over each of `wanted` (ascending indices) when it is composed.
/// Throws as above, and too_many_frames where canvas x frames are over the limit.
void decode_animation(std::span<const std::byte> bytes, const ImageOptions& options, const AnimationLimits& limits,
                      std::span<const std::int32_t> wanted, const std::function<void(const Image&)>& use,
                      std::string_view where);

}  // namespace mmt::data
