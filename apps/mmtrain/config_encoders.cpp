// What the encoders' entries say beyond what every module's does: how pictures, videos and sounds are prepared.
#include "apps/mmtrain/config_read.h"
#include "core/data/media/preprocessor_config.h"

#include <algorithm>

namespace mmt::app {

using config::as_choice;
using config::Reader;

namespace {

/// What a published folder's files say; what is wrong with them is a mistake of `init`.
template <class F> void read_published_file(Reader& r, F&& read) {
  try {
    read();
  } catch (const ConfigError& error) {
    r.problem("init", error.what());
  }
}

void read_normalisation(Reader& r, data::ImageProcessing& image) {
  r.optional("resample",
             as_choice(image.resample, {{"bicubic", data::Resample::bicubic}, {"bilinear", data::Resample::bilinear}}));
  r.optional("mean", image.mean);
  r.optional("std", image.std);
  if (std::ranges::any_of(image.std, [](double x) { return !(x > 0.0); }))
    r.problem("std", "every value must be above 0");
}

/// As the published folder has it.
void read_preparation(Reader& r, EncoderConfig& e) {
  read_published_file(r, [&] { e.image = data::read_image_preprocessor(e.init.hf, e.image).value_or(e.image); });
}

/// Of videos through a tower whose patches span frames. Limits of pixels are resolved with those of pictures.
void read_video(Reader& r, EncoderConfig& e) {
  constexpr double kMaxPixels = 1e9, kMaxFrames = 1 << 20;
  data::VideoProcessing& video = e.video;
  video.pixels.min_pixels = video.pixels.max_pixels = 0;
  if (!e.init.hf.empty()) {
    read_published_file(r, [&] { video = data::read_video_preprocessor(e.init.hf, e.image, video).value_or(video); });
  }
  r.section("video", [&](Reader& m) {
    data::FrameSampling& s = video.sampling;
    m.optional("fps", s.fps, config::between(0, 1000));
    m.optional("min_frames", s.min_frames, config::between(1, kMaxFrames));
    m.optional("max_frames", s.max_frames, config::between(1, kMaxFrames));
    m.optional("list_fps", s.list_fps, config::between(0, 1000));
    m.optional("min_pixels", video.pixels.min_pixels, config::between(0, kMaxPixels));
    m.optional("max_pixels", video.pixels.max_pixels, config::between(0, kMaxPixels));
    m.optional("total_pixels", video.total_pixels, config::between(0, 1e12));
    if (s.max_frames < s.min_frames)
      m.problem("max_frames", fmt::format("{} is below min_frames {}", s.max_frames, s.min_frames));
  });
}

/// Of pictures of any size. Limits of pixels are resolved when all modules are known.
void read_dynamic_encoder(Reader& r, EncoderConfig& e) {
  models::EncoderSpec& s = e.spec;
  constexpr double kMaxPixels = 1e9;  // rows of an item are counted in 32 bits
  const bool published = !e.init.hf.empty();
  read_derived(r, "patch", s.patch, published);
  read_derived(r, "merge", s.merge, published);
  read_derived(r, "frames", s.frames, published);
  // A value that is refused is not counted with.
  const auto within = [&](const char* key, int& value, int most) {
    if (value >= 1 && value <= most) return;
    r.problem(key, fmt::format("{} is not between 1 and {}", value, most));
    value = 1;
  };
  within("patch", s.patch, 1024);
  within("merge", s.merge, 16);
  within("frames", s.frames, 16);
  if (published) {
    e.image.fit = data::ImageFit::dynamic;
    e.image.patch = s.patch;
    e.image.merge = s.merge;
    e.image.frames = s.frames;
    read_preparation(r, e);
    s.min_pixels = e.image.pixels.min_pixels;
    s.max_pixels = e.image.pixels.max_pixels;
  }
  r.optional("min_pixels", s.min_pixels, config::between(0, kMaxPixels));
  r.optional("max_pixels", s.max_pixels, config::between(0, kMaxPixels));
  r.optional("rope_theta", s.rope_theta, config::above(0));
  read_normalisation(r, e.image);
  read_video(r, e);
}

std::vector<data::PictureSize> sizes_of(const std::vector<std::array<int, 2>>& pinpoints) {
  std::vector<data::PictureSize> sizes;
  for (const auto& [height, width] : pinpoints) sizes.push_back({.width = width, .height = height});
  return sizes;
}

/// Pictures that are cut into tiles of the tower's size. A published tower's preparation may say so, too.
void read_anyres(Reader& r, EncoderConfig& e) {
  models::EncoderSpec& s = e.spec;
  data::ImageProcessing& image = e.image;
  constexpr double kMaxSide = 1 << 15;
  if (image.fit == data::ImageFit::tiles && s.pinpoints.empty()) {
    for (const data::PictureSize& size : image.pinpoints) s.pinpoints.push_back({size.height, size.width});
  } else if (image.fit == data::ImageFit::tiles && image.pinpoints != sizes_of(s.pinpoints)) {
    r.problem("init",
              fmt::format("{}: image_grid_pinpoints of its preprocessor are not those of its config.json", e.init.hf));
  }
  if (r.has("anyres") || !s.pinpoints.empty())
    r.section("anyres", [&](Reader& m) { m.optional("pinpoints", s.pinpoints, config::between(1, kMaxSide)); });
  if (s.pinpoints.empty()) {
    if (image.fit == data::ImageFit::tiles) image.fit = data::ImageFit::stretch;
    return;
  }
  image.fit = data::ImageFit::tiles;
  image.pinpoints = sizes_of(s.pinpoints);
  image.resize = 0;
  image.pad_to_square = false;
  for (const char* key : {"fit", "resize", "pad_to_square"}) {
    if (r.has(key)) r.problem(key, "has no meaning beside anyres");
  }
}

}  // namespace

void read_image_encoder(Reader& r, EncoderConfig& e) {
  models::EncoderSpec& s = e.spec;
  if (s.kind == "qwen2_vl") return read_dynamic_encoder(r, e);
  const bool published = !e.init.hf.empty();
  read_derived(r, "patch", s.patch, published);
  read_derived(r, "image_size", s.image_size, published);
  r.optional("class_token", s.class_token);
  r.optional("patch_bias", s.patch_bias);
  r.optional("pre_norm", s.pre_norm);
  r.optional("select", as_choice(s.select, {{"patch", std::string("patch")}, {"full", std::string("full")}}));
  data::ImageProcessing& image = e.image;
  image.fit = s.kind == "siglip" ? data::ImageFit::stretch : data::ImageFit::crop;
  if (s.kind == "siglip") image.mean = image.std = {0.5, 0.5, 0.5};
  image.height = image.width = s.image_size;
  if (published) {
    if (!s.pinpoints.empty()) {
      image.fit = data::ImageFit::tiles;
      image.pinpoints = sizes_of(s.pinpoints);
    }
    read_preparation(r, e);
    if (image.height != s.image_size || image.width != s.image_size) {
      r.problem("init", fmt::format("{}: its preprocessor makes pictures of {} x {}, the tower takes {} x {}",
                                    e.init.hf, image.height, image.width, s.image_size, s.image_size));
    }
  }
  read_anyres(r, e);
  if (image.fit != data::ImageFit::tiles) {
    r.optional("fit", as_choice(image.fit, {{"crop", data::ImageFit::crop}, {"stretch", data::ImageFit::stretch}}));
    r.optional("resize", image.resize, config::between(0, kMaxSize));
    r.optional("pad_to_square", image.pad_to_square);
  }
  read_normalisation(r, image);
  image.height = image.width = s.image_size;
  image.patch = s.patch;
}

void read_audio_encoder(Reader& r, EncoderConfig& e) {
  models::EncoderSpec& s = e.spec;
  data::AudioRowRule& rows = e.audio.rows;
  const bool published = !e.init.hf.empty();
  if (s.kind == "qwen2_audio") rows.window = data::AudioWindow::mask;
  read_derived(r, "mels", s.mels, published);
  if (s.mels < 8 || s.mels > 256) r.problem("mels", fmt::format("{} is not between 8 and 256", s.mels));
  r.optional("window", as_choice(rows.window, {{"full", data::AudioWindow::full},
                                               {"mask", data::AudioWindow::mask},
                                               {"none", data::AudioWindow::none}}));
  r.optional("over_long", as_choice(rows.over_long, {{"chunk", data::OverLong::chunk},
                                                     {"truncate", data::OverLong::truncate},
                                                     {"skip", data::OverLong::skip}}));
  read_derived(r, "max_positions", s.max_positions, published);
  if (s.max_positions < 1 || s.max_positions > 100000)
    r.problem("max_positions", fmt::format("{} is not between 1 and 100000", s.max_positions));
  r.optional("train_positions", s.train_positions);
  r.optional("pool", s.pool, config::between(1, 16));
  e.audio.num_mel_bins = s.mels;
  rows.max_frames = std::int64_t{2} * s.max_positions;
  rows.pool = s.pool;
  if (published) read_published_file(r, [&] { data::check_audio_preprocessor_of(e.init.hf, e.audio); });
}

}  // namespace mmt::app
