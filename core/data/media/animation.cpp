#include "core/data/media/animation.h"

#include "core/data/media/animation_codecs.h"
#include "core/data/media/media_kind.h"

namespace mmt::data {

bool is_animation(std::span<const std::byte> bytes) {
  const MediaKind kind = guess_media(bytes).kind;
  return kind == MediaKind::gif || (kind == MediaKind::webp && is_animated_webp(bytes));
}

void check_frame_count(const ImageSource& source, const AnimationLimits& limits, std::int64_t frames) {
  if (frames > limits.max_frames) {
    source.fail(DataFault::too_many_frames,
                fmt::format("{} frames or more, over the {} that are accepted", frames, limits.max_frames));
  }
}

void check_decoded_pixels(const AnimationInfo& info, const AnimationLimits& limits, std::int64_t frames,
                          std::string_view where) {
  if (frames <= limits.max_pixels / (std::int64_t{info.width} * info.height)) return;
  throw DataError(DataFault::too_many_frames, std::string(where),
                  fmt::format("{} frames of {} x {} to be decoded have more than {} pixels", frames, info.width,
                              info.height, limits.max_pixels));
}

AnimationInfo read_animation_info(std::span<const std::byte> bytes, const ImageOptions& options,
                                  const AnimationLimits& limits, std::string_view where) {
  const ImageSource source{bytes, options, where};
  MMT_CHECK(is_animation(bytes), "{}: no animation", where);
  AnimationInfo info = guess_media(bytes).kind == MediaKind::gif ? read_gif_info(source, limits)
                                                                 : read_webp_animation_info(source, limits);
  if (info.frames() == 0) source.fail(DataFault::empty_video, "an animation without frames");
  return info;
}

void decode_animation(std::span<const std::byte> bytes, const ImageOptions& options, const AnimationLimits& limits,
                      std::span<const std::int32_t> wanted, const std::function<void(const Image&)>& use,
                      std::string_view where) {
  if (wanted.empty()) return;
  const AnimationInfo info = read_animation_info(bytes, options, limits, where);
  const ImageSource source{bytes, options, where};
  MMT_CHECK(wanted.front() >= 0 && wanted.back() < info.frames(), "{}: frames {} to {} of {}", where, wanted.front(),
            wanted.back(), info.frames());
  check_decoded_pixels(info, limits, wanted.back() + 1, where);
  std::size_t next = 0;
  const FrameSink sink = [&](std::int64_t index, const Image& frame) {
    for (; next < wanted.size() && wanted[next] == index; ++next) use(frame);
    return next < wanted.size();
  };
  if (guess_media(bytes).kind == MediaKind::gif) {
    decode_gif(source, sink);
  } else {
    decode_webp_animation(source, sink);
  }
  MMT_CHECK(next == wanted.size(), "{}: {} of {} frames", where, next, wanted.size());
}

}  // namespace mmt::data
