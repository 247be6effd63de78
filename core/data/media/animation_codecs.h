// Inside of core/data/media/animation: one decoder per format. Use core/data/media/animation.h.
#pragma once

#include "core/data/media/animation.h"
#include "core/data/media/image_codecs.h"

namespace mmt::data {

/// Takes frame after frame from the first on; false: no more are wanted.
using FrameSink = std::function<bool(std::int64_t index, const Image& frame)>;

/// Throws too_many_frames.
void check_frame_count(const ImageSource& source, const AnimationLimits& limits, std::int64_t frames);

AnimationInfo read_gif_info(const ImageSource& source, const AnimationLimits& limits);
void decode_gif(const ImageSource& source, const FrameSink& sink);

bool is_animated_webp(std::span<const std::byte> bytes);
AnimationInfo read_webp_animation_info(const ImageSource& source, const AnimationLimits& limits);
void decode_webp_animation(const ImageSource& source, const FrameSink& sink);

}  // namespace mmt::data
