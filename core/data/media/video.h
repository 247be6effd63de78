// Videos: an animated GIF or WebP, a folder of pictures, or a list of them; a single picture is a video of one frame.
// Frames are handed over one by one: memory holds one of them decoded, however long the video is.
#pragma once

#include "core/data/media/animation.h"
#include "core/data/media/frame_sampling.h"
#include "core/data/media/media_source.h"

#include <functional>
#include <string>
#include <vector>

namespace mmt::data {

struct VideoOptions {
  ImageOptions image;      ///< of frames that are pictures of their own, and the largest canvas of an animation
  AnimationLimits limits;  ///< of animations; max_frames also of lists and folders
  FrameSampling sampling;
  int step = 2;  ///< frames that a patch spans
};

/// A video with the frames that are taken of it.
class Video {
 public:
  /// Reads the headers of all that will be decoded. `source` and `options` must outlive the value. Throws DataError:
  /// empty_video, too_many_frames, frame_size (frames that differ in size), not_a_video, unsupported_media, and those
  /// of pictures.
  Video(const MediaSource& source, const VideoOptions& options, const std::string& where);

  int width() const { return width_; }
  int height() const { return height_; }
  std::int64_t frames() const { return static_cast<std::int64_t>(wanted_.size()); }
  const std::vector<std::int32_t>& wanted() const { return wanted_; }  ///< their indices in the video, ascending

  /// Decodes the frames in their order. Throws DataError.
  void decode(const std::function<void(const Image&)>& use) const;

 private:
  void open_list(const MediaSource& source);
  void open_file(const MediaSource& source);
  void check_size(int width, int height, const std::string& place) const;

  const VideoOptions& options_;
  std::string where_, place_;  // of the sample, and with the video
  int width_ = 0, height_ = 0;
  std::vector<std::int32_t> wanted_;
  std::vector<MediaSource> pictures_;  // those that are taken, of a list
  std::vector<std::byte> bytes_;       // else the file
  bool animated_ = false;
};

}  // namespace mmt::data
