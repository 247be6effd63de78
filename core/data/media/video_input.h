// Videos through a picture encoder whose patches span frames (Qwen2-VL): the same tower, the same rows.
#pragma once

#include "core/data/media/encoder_input.h"
#include "core/data/media/video.h"

namespace mmt::data {

struct VideoProcessing {
  FrameSampling sampling;
  PixelRule pixels;               ///< of a frame
  std::int64_t total_pixels = 0;  ///< of all resized frames together; 0: no limit
};

/// The rule for a frame of a video of `frames` frames: with a limit for all of them, each gets its share, but at least
/// 1.05 x min_pixels (as Qwen's own code and transformers' cap_pixels_per_frame do).
PixelRule frame_pixels(const VideoProcessing& video, std::int64_t frames, int frames_of_patch);

/// Lets an encoder of pictures take videos, too. `picture` says how a frame is prepared, but for its pixels. A video of
/// t frames, filled up with its last to whole patches, becomes an item of t / frames x rows x columns patches.
void take_videos(EncoderInput& input, const ImageOptions& options, const AnimationLimits& limits,
                 const ImageProcessing& picture, const VideoProcessing& video);

}  // namespace mmt::data
