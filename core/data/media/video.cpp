#include "core/data/media/video.h"

#include "core/data/media/media_kind.h"
#include "core/data/media/picture_header.h"
#include "core/error.h"

#include <fmt/format.h>

namespace mmt::data {

Video::Video(const MediaSource& source, const VideoOptions& options, const std::string& where)
    : options_(options), where_(where), place_(source.place(where)) {
  if (source.is_list())
    open_list(source);
  else
    open_file(source);
}

void Video::check_size(int width, int height, const std::string& place) const {
  if (width == width_ && height == height_) return;
  throw DataError(DataFault::frame_size, place,
                  fmt::format("a frame of {} x {} in a video whose first has {} x {}: all must be of one size", width,
                              height, width_, height_));
}

void Video::open_list(const MediaSource& source) {
  const std::int64_t most = options_.limits.max_frames;
  const std::vector<MediaSource> all = source.pictures(place_);
  const auto count = static_cast<std::int64_t>(all.size());
  if (count == 0) throw DataError(DataFault::empty_video, place_, "no picture (jpg, png, webp) to be a frame");
  if (count > most) {
    throw DataError(DataFault::too_many_frames, place_,
                    fmt::format("{} frames, over the {} that are accepted", count, most));
  }
  wanted_ = sample_frames(options_.sampling, count, options_.sampling.list_fps, options_.step);
  for (const std::int32_t i : wanted_) {
    const MediaSource& picture = pictures_.emplace_back(all[static_cast<std::size_t>(i)]);
    const std::string place = picture.place(where_);
    const ImageInfo frame = read_picture_header(picture, options_.image, place);
    if (width_ == 0) {
      width_ = frame.width;
      height_ = frame.height;
    }
    check_size(frame.width, frame.height, place);
  }
}

void Video::open_file(const MediaSource& source) {
  bytes_ = source.read(place_, kMaxPictureBytes, DataFault::image_too_large);
  animated_ = is_animation(bytes_);
  if (animated_) {
    const AnimationInfo info = read_animation_info(bytes_, options_.image, options_.limits, place_);
    width_ = info.width;
    height_ = info.height;
    wanted_ = sample_frames(options_.sampling, info.frames(), frame_rate(info.milliseconds), options_.step);
    check_decoded_pixels(info, options_.limits, std::int64_t{wanted_.back()} + 1, place_);
    return;
  }
  const MediaGuess guess = guess_media(bytes_);
  if (is_film(guess.kind)) {
    throw DataError(DataFault::unsupported_media, place_,
                    fmt::format("this is {}; videos are read as GIF, animated WebP, folders or lists of pictures: "
                                "`ffmpeg -i FILE -vf fps=2 FOLDER/%05d.jpg` makes a folder of it",
                                guess.name));
  }
  if (!is_image(guess.kind))
    throw DataError(DataFault::not_a_video, place_, fmt::format("not a video: this looks like {}", guess.name));
  const ImageInfo picture = read_image_info(bytes_, options_.image, place_);
  width_ = picture.width;
  height_ = picture.height;
  wanted_ = {0};
}

void Video::decode(const std::function<void(const Image&)>& use) const {
  if (animated_) return decode_animation(bytes_, options_.image, options_.limits, wanted_, use, place_);
  if (pictures_.empty()) return use(decode_image(bytes_, options_.image, place_));
  for (const MediaSource& picture : pictures_) {
    const std::string place = picture.place(where_);
    const Image image =
        decode_image(picture.read(place, kMaxPictureBytes, DataFault::image_too_large), options_.image, place);
    check_size(image.width, image.height, place);
    use(image);
  }
}

}  // namespace mmt::data
