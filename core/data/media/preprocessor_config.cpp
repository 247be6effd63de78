#include "core/data/media/preprocessor_config.h"

#include "core/data/json_guard.h"
#include "core/error.h"
#include "core/files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace mmt::data {
namespace {

constexpr std::uint64_t kMaxBytes = std::uint64_t{4} << 20;
constexpr int kMaxDepth = 32;
constexpr int kMaxSide = 1 << 15;

class Preprocessor {
 public:
  Preprocessor(const nlohmann::json& object, const std::string& path) : object_(object), path_(path) {}

  bool has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }
  const nlohmann::json& operator[](const char* key) const { return object_[key]; }

  bool flag(const char* key, bool fallback) const {
    if (!has(key)) return fallback;
    if (!object_[key].is_boolean()) refuse(key, "expected true or false");
    return object_[key].get<bool>();
  }
  int side(const char* key, const nlohmann::json& value) const {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() < 1 || value.get<std::uint64_t>() > kMaxSide)
      refuse(key, fmt::format("expected lengths from 1 to {}", kMaxSide));
    return static_cast<int>(value.get<std::uint64_t>());
  }
  void number(const char* key, double& value, double low, double high) const {
    if (!has(key)) return;
    const nlohmann::json& v = object_[key];
    if (!v.is_number() || !(v.get<double>() >= low && v.get<double>() <= high))
      refuse(key, fmt::format("expected a number from {} to {}", low, high));
    value = v.get<double>();
  }
  std::array<double, 3> color(const char* key, const std::array<double, 3>& fallback) const {
    if (!has(key)) return fallback;
    std::array<double, 3> values{};
    const nlohmann::json& list = object_[key];
    if (!list.is_array() || list.size() != 3) refuse(key, "expected three numbers");
    for (std::size_t i = 0; i < 3; ++i) {
      if (!list[i].is_number() || !std::isfinite(list[i].get<double>())) refuse(key, "expected three numbers");
      values[i] = list[i].get<double>();
    }
    return values;
  }
  /// A number (both sides), or {"height", "width"}.
  void box(const char* key, int& height, int& width) const {
    const nlohmann::json& v = object_[key];
    if (v.is_number()) {
      height = width = side(key, v);
    } else if (v.is_object() && v.contains("height") && v.contains("width")) {
      height = side(key, v["height"]);
      width = side(key, v["width"]);
    } else {
      refuse(key, "expected a number or height and width");
    }
  }
  [[noreturn]] void refuse(const char* key, const std::string& what) const {
    throw ConfigError(fmt::format("{}: {}: {}", path_, key, what));
  }

 private:
  const nlohmann::json& object_;
  const std::string& path_;
};

/// Of pictures of any size: limits of pixels, in two spellings.
void read_dynamic_sizes(const Preprocessor& p, ImageProcessing& o) {
  constexpr std::int64_t kMaxPixels = 1'000'000'000;
  const auto pixels = [&](const char* key, const nlohmann::json& v, std::int64_t& limit) {
    if (!v.is_number_unsigned() || v.get<std::uint64_t>() < 1 || v.get<std::uint64_t>() > kMaxPixels)
      p.refuse(key, fmt::format("expected numbers of pixels from 1 to {}", kMaxPixels));
    limit = static_cast<std::int64_t>(v.get<std::uint64_t>());
  };
  if (p.has("size") && p["size"].is_object()) {
    if (p["size"].contains("shortest_edge")) pixels("size", p["size"]["shortest_edge"], o.pixels.min_pixels);
    if (p["size"].contains("longest_edge")) pixels("size", p["size"]["longest_edge"], o.pixels.max_pixels);
  }
  if (p.has("min_pixels")) pixels("min_pixels", p["min_pixels"], o.pixels.min_pixels);
  if (p.has("max_pixels")) pixels("max_pixels", p["max_pixels"], o.pixels.max_pixels);
  for (const auto& [key, value] : {std::pair("patch_size", o.patch), std::pair("merge_size", o.merge),
                                   std::pair("temporal_patch_size", o.frames)}) {
    if (p.has(key) && p[key] != value) p.refuse(key, fmt::format("the tower has {}", value));
  }
}

/// Of pictures that are cut into tiles (LLaVA-NeXT): a tile's side, and the sizes that are cut.
void read_tiles(const Preprocessor& p, ImageProcessing& o) {
  constexpr std::size_t kMostSizes = 256;
  o.fit = ImageFit::tiles;
  o.resize = 0;
  o.pad_to_square = false;  // do_pad means another padding here
  if (p.has("crop_size")) p.box("crop_size", o.height, o.width);
  if (p.has("size")) {
    int height = 0, width = 0;
    if (p["size"].is_object() && p["size"].contains("shortest_edge"))
      height = width = p.side("size", p["size"]["shortest_edge"]);
    else
      p.box("size", height, width);
    if (!p.has("crop_size")) o.height = o.width = height;
    if (height != o.height || width != o.width) p.refuse("size", "differs from crop_size: a tile has one size");
  }
  if (o.height != o.width) p.refuse("crop_size", "tiles must be squares");
  if (!p.has("image_grid_pinpoints")) return;
  const char* const key = "image_grid_pinpoints";
  const nlohmann::json& list = p[key];
  if (!list.is_array() || list.empty() || list.size() > kMostSizes)
    p.refuse(key, fmt::format("expected 1 to {} pairs of height and width", kMostSizes));
  o.pinpoints.clear();
  for (const nlohmann::json& pair : list) {
    if (!pair.is_array() || pair.size() != 2) p.refuse(key, "expected pairs of height and width");
    o.pinpoints.push_back({.width = p.side(key, pair[1]), .height = p.side(key, pair[0])});
  }
}

void read_sizes(const Preprocessor& p, ImageProcessing& o) {
  if (o.fit == ImageFit::tiles || p.has("image_grid_pinpoints")) return read_tiles(p, o);
  if (o.fit == ImageFit::dynamic) return read_dynamic_sizes(p, o);
  const bool crop = p.flag("do_center_crop", p.has("crop_size"));
  if (crop) {
    o.fit = ImageFit::crop;
    if (p.has("crop_size")) p.box("crop_size", o.height, o.width);
    if (!p.has("size")) return;
    const nlohmann::json& size = p["size"];
    if (size.is_number())
      o.resize = p.side("size", size);
    else if (size.is_object() && size.contains("shortest_edge"))
      o.resize = p.side("size", size["shortest_edge"]);
    else
      p.refuse("size", "expected shortest_edge before a crop");
    return;
  }
  o.fit = ImageFit::stretch;
  o.resize = 0;
  if (p.has("size")) p.box("size", o.height, o.width);
}

/// The part of the file that speaks of these media, or all of it.
const nlohmann::json& part_of(const nlohmann::json& root, const char* processor) {
  return root.contains(processor) && root[processor].is_object() ? root[processor] : root;
}

ImageProcessing read_picture(const Preprocessor& p, const ImageProcessing& base) {
  ImageProcessing o = base;
  for (const char* step : {"do_resize", "do_rescale", "do_normalize"}) {
    if (!p.flag(step, true)) p.refuse(step, "false is not supported");
  }
  if (p.has("rescale_factor")) {
    const nlohmann::json& factor = p["rescale_factor"];
    if (!factor.is_number() || std::abs(factor.get<double>() - 1.0 / 255) > 1e-9)
      p.refuse("rescale_factor", "only 1/255 is supported");
  }
  if (p.has("resample")) {
    const nlohmann::json& resample = p["resample"];
    if (resample == 2)
      o.resample = Resample::bilinear;
    else if (resample == 3)
      o.resample = Resample::bicubic;
    else
      p.refuse("resample", "only 2 (bilinear) and 3 (bicubic) are supported");
  }
  if (p.flag("do_pad", false)) o.pad_to_square = true;  // LLaVA's own
  o.mean = p.color("image_mean", o.mean);
  o.std = p.color("image_std", o.std);
  for (const double s : o.std) {
    if (!(s > 0)) p.refuse("image_std", "every value must be above 0");
  }
  read_sizes(p, o);
  return o;
}

}  // namespace

ImageProcessing parse_image_preprocessor(std::string_view json, const std::string& path, const ImageProcessing& base) {
  const nlohmann::json root = parse_json_object(json, kMaxDepth, path, "preprocessor file");
  return read_picture(Preprocessor(part_of(root, "image_processor"), path), base);
}

VideoProcessing parse_video_preprocessor(std::string_view json, const std::string& path, const ImageProcessing& picture,
                                         const VideoProcessing& base) {
  const nlohmann::json root = parse_json_object(json, kMaxDepth, path, "preprocessor file");
  const Preprocessor p(part_of(root, "video_processor"), path);
  ImageProcessing frame = picture;
  frame.pixels = base.pixels;
  frame = read_picture(p, frame);
  if (frame.mean != picture.mean) p.refuse("image_mean", "frames of another mean than pictures are not supported");
  if (frame.std != picture.std) p.refuse("image_std", "frames of another deviation than pictures are not supported");
  if (frame.resample != picture.resample)
    p.refuse("resample", "frames resized in another way than pictures are not supported");
  VideoProcessing video = base;
  video.pixels = frame.pixels;
  p.number("fps", video.sampling.fps, 0, 1000);
  double low = static_cast<double>(video.sampling.min_frames), high = static_cast<double>(video.sampling.max_frames);
  p.number("min_frames", low, 1, 1 << 20);
  p.number("max_frames", high, low, 1 << 20);
  video.sampling.min_frames = static_cast<std::int64_t>(low);
  video.sampling.max_frames = static_cast<std::int64_t>(high);
  if (p.has("num_frames")) p.refuse("num_frames", "a fixed number of frames is not supported: write fps");
  return video;
}

namespace {

/// Empty where there is no such file.
std::string text_of_file(const std::string& path) {
  std::error_code none;
  if (!std::filesystem::exists(path, none)) return {};
  try {
    return files::read(path, kMaxBytes);
  } catch (const Error& e) {
    throw ConfigError(e.what());
  }
}

}  // namespace

std::optional<ImageProcessing> read_image_preprocessor(const std::string& folder, const ImageProcessing& base) {
  for (const char* name : {"preprocessor_config.json", "processor_config.json"}) {
    const std::string path = (std::filesystem::path(folder) / name).string();
    const std::string text = text_of_file(path);
    // Files of this name also belong to tokenizers and to sound.
    if (std::ranges::none_of(std::array{"\"image_mean\"", "\"image_processor_type\"", "\"crop_size\"", "\"do_resize\""},
                             [&](const char* key) { return text.find(key) != std::string::npos; }))
      continue;
    return parse_image_preprocessor(text, path, base);
  }
  return std::nullopt;
}

std::optional<VideoProcessing> read_video_preprocessor(const std::string& folder, const ImageProcessing& picture,
                                                       const VideoProcessing& base) {
  for (const auto& [name, mark] :
       {std::pair("processor_config.json", "\"video_processor\""), std::pair("video_preprocessor_config.json", ""),
        std::pair("preprocessor_config.json", "\"image_")}) {
    const std::string path = (std::filesystem::path(folder) / name).string();
    const std::string text = text_of_file(path);
    if (!text.empty() && text.find(mark) != std::string::npos)
      return parse_video_preprocessor(text, path, picture, base);
  }
  return std::nullopt;
}

}  // namespace mmt::data
