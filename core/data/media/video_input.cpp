#include "core/data/media/video_input.h"

#include "core/data/media/processor_pool.h"
#include "core/error.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <limits>
#include <memory>

namespace mmt::data {
namespace {

/// Of a video whose frames have this size. Throws DataError(too_long) for more rows than can be counted.
ItemShape video_shape(const ImageProcessing& processing, std::int64_t frames, PictureSize size,
                      const std::string& where) {
  const PatchGrid grid = processing.grid(size);
  const std::int64_t steps = ceil_div(frames, processing.frames), patches = steps * grid.count();
  if (patches > std::numeric_limits<std::int32_t>::max())
    throw DataError(DataFault::too_long, where, fmt::format("{} frames become {} patches", frames, patches));
  const auto narrow = [](std::int64_t n) { return static_cast<std::int32_t>(n); };
  const std::int64_t square = std::int64_t{processing.merge} * processing.merge;
  return {narrow(patches / square),
          narrow(patches),
          narrow(patches),
          narrow(processing.cols()),
          {narrow(steps), narrow(grid.rows), narrow(grid.cols)}};
}

}  // namespace

PixelRule frame_pixels(const VideoProcessing& video, std::int64_t frames, int frames_of_patch) {
  PixelRule rule = video.pixels;
  if (video.total_pixels == 0) return rule;
  const auto least = static_cast<std::int64_t>(static_cast<double>(rule.min_pixels) * 1.05);
  const std::int64_t share = floor_div(video.total_pixels * frames_of_patch, frames);
  rule.max_pixels = std::max(std::min(rule.max_pixels, share), least);
  return rule;
}

void take_videos(EncoderInput& input, const ImageOptions& image, const AnimationLimits& limits,
                 const ImageProcessing& picture, const VideoProcessing& video) {
  MMT_CHECK(picture.fit == ImageFit::dynamic && input.modality == Modality::image, "{}: videos", input.module);
  const VideoOptions options{image, limits, video.sampling, picture.frames};
  const FrameSampling& s = video.sampling;
  const std::string all =
      fmt::format("{:016x} video {} {} {} {} {} {} {} {} {} {}", input.key, s.fps, s.min_frames, s.max_frames,
                  s.list_fps, video.pixels.factor, video.pixels.min_pixels, video.pixels.max_pixels, video.total_pixels,
                  limits.max_frames, limits.max_pixels);
  input.key = XXH3_64bits(all.data(), all.size());
  const auto processing_of = [picture, video](const Video& opened) {
    ImageProcessing processing = picture;
    processing.pixels = frame_pixels(video, opened.frames(), picture.frames);
    return processing;
  };
  const auto shape_of = [processing_of](const Video& opened, const std::string& place) {
    const ImageProcessing processing = processing_of(opened);
    return video_shape(processing, opened.frames(), processing.size_of(opened.width(), opened.height(), place), place);
  };
  input.measure_video = [options, shape_of](const MediaSource& source, const std::string& where) {
    return std::vector<ItemShape>{shape_of(Video(source, options, where), source.place(where))};
  };
  auto pool = std::make_shared<ProcessorPool<ImageProcessor, ImageProcessing>>(picture);
  input.load_video = [options, processing_of, shape_of, pool](const MediaSource& source, const std::string& where,
                                                              const ItemShape& planned, int part,
                                                              std::span<float> out) {
    MMT_CHECK(part == 0, "part {} of a video", part);
    const std::string place = source.place(where);
    const Video opened(source, options, where);
    if (shape_of(opened, place) != planned) {
      throw DataError(DataFault::frame_size, place,
                      "the video has another length or size than the index says; has it changed?");
    }
    const ImageProcessing processing = processing_of(opened);
    const PictureSize size = processing.size_of(opened.width(), opened.height(), place);
    const auto step = out.size() / static_cast<std::size_t>(planned.grid[0]);
    pool->use([&](ImageProcessor& p) {
      std::int64_t number = 0;
      opened.decode([&](const Image& frame) {
        const Image resized = p.resized(frame, size, place);
        do {  // the last frame also stands for those that its patch lacks
          const auto [at, of_patch] =
              std::pair(number / processing.frames, static_cast<int>(number % processing.frames));
          p.frame_patches(resized, of_patch, out.subspan(static_cast<std::size_t>(at) * step, step));
          ++number;
        } while (number >= opened.frames() && number % processing.frames != 0);
      });
    });
  };
}

}  // namespace mmt::data
