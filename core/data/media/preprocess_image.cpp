#include "core/data/media/preprocess.h"
#include "core/data/media/resize.h"
#include "core/error.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <string>
#include <utility>

namespace mmt::data {
namespace {

/// One side of the crop: of `size` positions the middle `wanted` are taken, or all lie in the middle of `wanted` zeros.
struct Span {
  std::int64_t first;   // position taken first
  std::int64_t count;   // positions taken
  std::int64_t offset;  // where they go

  Span(std::int64_t size, std::int64_t wanted) : count(std::min(size, wanted)) {
    const std::int64_t start = floor_div(size - wanted, 2);
    first = std::max<std::int64_t>(start, 0);
    offset = std::max<std::int64_t>(-start, 0);
  }
};

Image on_square(const Image& image, const ImageProcessing& o, std::string_view where) {
  const std::int64_t side = std::max(image.width, image.height);
  if (side > o.max_canvas_pixels / side) {
    throw DataError(DataFault::image_too_large, std::string(where),
                    fmt::format("a picture of {} x {} padded to a square has more than {} pixels", image.width,
                                image.height, o.max_canvas_pixels));
  }
  Image square{static_cast<int>(side), static_cast<int>(side), {}};
  square.rgb.resize(static_cast<std::size_t>(3 * side * side));
  std::array<std::uint8_t, 3> color{};
  for (std::size_t c = 0; c < 3; ++c) color[c] = static_cast<std::uint8_t>(std::clamp(255 * o.mean[c], 0.0, 255.0));
  for (std::size_t i = 0; i < square.rgb.size(); i += 3) std::copy(color.begin(), color.end(), &square.rgb[i]);
  const std::int64_t left = (side - image.width) / 2;
  const std::int64_t top = (side - image.height) / 2;
  const std::int64_t row_bytes = std::int64_t{3} * image.width;
  for (std::int64_t y = 0; y < image.height; ++y) {
    std::memcpy(square.rgb.data() + 3 * ((top + y) * side + left), image.rgb.data() + y * row_bytes,
                static_cast<std::size_t>(row_bytes));
  }
  return square;
}

}  // namespace

struct ImageProcessor::State {
  std::array<std::array<float, 256>, 3> normalised{};  // by channel and 8-bit value
  std::list<ResizeTaps> taps;                          // last used first
  std::vector<std::uint8_t> scratch;
  std::vector<std::uint8_t> window;

  explicit State(const ImageProcessing& o) {
    for (std::size_t c = 0; c < 3; ++c) {
      const auto mean = static_cast<float>(o.mean[c]);
      const auto std = static_cast<float>(o.std[c]);
      for (int v = 0; v < 256; ++v) {
        normalised[c][static_cast<std::size_t>(v)] = (static_cast<float>(v * (1.0 / 255.0)) - mean) / std;
      }
    }
  }

  /// Data sets have few sizes: the tables of the last ones are kept.
  const ResizeTaps& taps_for(Resample kind, std::int64_t in, std::int64_t out, const Span& span) {
    constexpr std::size_t kMaxKept = 16;
    for (auto it = taps.begin(); it != taps.end(); ++it) {
      if (it->in_size == in && it->out_size == out && it->first == span.first && it->count == span.count) {
        taps.splice(taps.begin(), taps, it);
        return taps.front();
      }
    }
    if (taps.size() >= kMaxKept) taps.pop_back();
    taps.push_front(resize_taps(kind, in, out, span.first, span.count));
    return taps.front();
  }

  /// Resizes and crops into `out` (size.height x size.width x 3). Only what the crop needs is computed, so that a strip
  /// of 1 x 30000 costs no more than its crop.
  void fit(const Image& image, const ImageProcessing& o, PictureSize size, std::span<std::uint8_t> out) {
    std::int64_t width = size.width;
    std::int64_t height = size.height;
    if (o.fit == ImageFit::crop) {
      const std::int64_t edge = o.resize > 0 ? o.resize : std::min(size.width, size.height);
      // The long side is cut to an integer: edge * long / short.
      width = image.width <= image.height ? edge : edge * image.width / image.height;
      height = image.width <= image.height ? edge * image.height / image.width : edge;
    }
    const Span across(width, size.width);
    const Span down(height, size.height);
    const ResizeTaps& horizontal = taps_for(o.resample, image.width, width, across);
    const ResizeTaps& vertical = taps_for(o.resample, image.height, height, down);
    if (across.count == size.width && down.count == size.height) {
      resize_window(image, horizontal, vertical, o.order, scratch, out);
      return;
    }
    window.resize(static_cast<std::size_t>(3 * across.count * down.count));
    resize_window(image, horizontal, vertical, o.order, scratch, window);
    std::fill(out.begin(), out.end(), std::uint8_t{0});
    for (std::int64_t y = 0; y < down.count; ++y) {
      std::memcpy(out.data() + 3 * ((down.offset + y) * size.width + across.offset),
                  window.data() + 3 * y * across.count, static_cast<std::size_t>(3 * across.count));
    }
  }
};

ImageProcessor::ImageProcessor(const ImageProcessing& options) : options_(options) {
  const ImageProcessing& o = options_;
  MMT_CHECK(o.height > 0 && o.width > 0 && o.resize >= 0 && o.patch > 0 && o.merge > 0 && o.frames > 0,
            "{} x {}, resize {}, patch {}, merge {}, frames {}", o.height, o.width, o.resize, o.patch, o.merge,
            o.frames);
  const std::int64_t unit = std::int64_t{o.patch} * o.merge;
  if (o.fit == ImageFit::tiles) {
    MMT_CHECK(o.height == o.width && o.merge == 1 && o.frames == 1 && !o.pad_to_square && !o.pinpoints.empty(),
              "tiles of {} x {}, merge {}, frames {}, {} sizes", o.height, o.width, o.merge, o.frames,
              o.pinpoints.size());
  }
  if (o.fit == ImageFit::dynamic) {
    MMT_CHECK(o.pixels.factor > 0 && o.pixels.factor % unit == 0, "factor {} for {} patches of {}", o.pixels.factor,
              o.merge, o.patch);
  } else {
    const PatchGrid grid = o.grid({o.width, o.height});
    MMT_CHECK(grid.count() > 0, "no patch of {} fits into {} x {}", o.patch, o.height, o.width);
    MMT_CHECK(grid.rows % o.merge == 0 && grid.cols % o.merge == 0, "{} x {} patches in squares of {}", grid.rows,
              grid.cols, o.merge);
  }
  for (const double s : o.std) MMT_CHECK(s > 0, "standard deviation {}", s);
  state_ = std::make_unique<State>(options_);
}
ImageProcessor::~ImageProcessor() = default;
ImageProcessor::ImageProcessor(const ImageProcessor& other) : ImageProcessor(other.options_) {}
ImageProcessor& ImageProcessor::operator=(const ImageProcessor& other) { return *this = ImageProcessor(other); }
ImageProcessor::ImageProcessor(ImageProcessor&&) noexcept = default;
ImageProcessor& ImageProcessor::operator=(ImageProcessor&&) noexcept = default;

Image ImageProcessor::pixels(const Image& image, std::string_view where) {
  MMT_CHECK(image.width > 0 && image.height > 0 &&
                image.rgb.size() ==
                    std::size_t{3} * static_cast<std::size_t>(image.width) * static_cast<std::size_t>(image.height),
            "picture {} x {} with {} bytes", image.width, image.height, image.rgb.size());
  return resized(image, options_.size_of(image.width, image.height, where), where);
}

Image ImageProcessor::resized(const Image& image, PictureSize size, std::string_view where) {
  Image out{size.width, size.height, {}};
  out.rgb.resize(static_cast<std::size_t>(3) * static_cast<std::size_t>(out.width) *
                 static_cast<std::size_t>(out.height));
  if (options_.pad_to_square && image.width != image.height) {
    state_->fit(on_square(image, options_, where), options_, size, out.rgb);
  } else {
    state_->fit(image, options_, size, out.rgb);
  }
  return out;
}

Image ImageProcessor::on_canvas(const Image& image) {
  const PictureSize size = best_tiled_size(options_.pinpoints, image.width, image.height);
  const PictureSize own = fitted_into(size, image.width, image.height);
  std::vector<std::uint8_t> fitted(static_cast<std::size_t>(std::int64_t{3} * own.width * own.height));
  state_->fit(image, options_, own, fitted);
  Image canvas{size.width, size.height, {}};
  canvas.rgb.assign(static_cast<std::size_t>(std::int64_t{3} * size.width * size.height), std::uint8_t{0});
  const std::int64_t left = (size.width - own.width) / 2, top = (size.height - own.height) / 2;
  for (std::int64_t y = 0; y < own.height; ++y) {
    std::memcpy(canvas.rgb.data() + 3 * ((top + y) * size.width + left), fitted.data() + 3 * y * own.width,
                static_cast<std::size_t>(3 * own.width));
  }
  return canvas;
}

void ImageProcessor::patches(const Image& image, std::span<float> out, std::string_view where) {
  const Image picture = pixels(image, where);
  const PatchGrid grid = options_.grid({picture.width, picture.height});
  const bool tiles = options_.fit == ImageFit::tiles;
  const Image canvas = tiles ? on_canvas(image) : Image();
  const std::int64_t count = tiles ? options_.tiling(image.width, image.height).count() : 1;
  MMT_CHECK(static_cast<std::int64_t>(out.size()) == count * grid.count() * options_.cols(),
            "{} elements for {} rows of {}", out.size(), count * grid.count(), options_.cols());
  float* to = write_patches(picture, 0, 0, grid, out.data());
  for (int top = 0; top < canvas.height; top += options_.height) {
    for (int left = 0; left < canvas.width; left += options_.width) to = write_patches(canvas, left, top, grid, to);
  }
  // A still picture is its own second frame.
  const auto plane = static_cast<std::ptrdiff_t>(options_.patch) * options_.patch;
  if (options_.frames == 1) return;
  for (auto first = out.begin(); first != out.end(); first += options_.frames * plane) {
    for (int frame = 1; frame < options_.frames; ++frame) std::copy_n(first, plane, first + frame * plane);
  }
}

void ImageProcessor::frame_patches(const Image& picture, int frame, std::span<float> out) {
  const PatchGrid grid = options_.grid({picture.width, picture.height});
  MMT_CHECK(
      frame >= 0 && frame < options_.frames && static_cast<std::int64_t>(out.size()) == grid.count() * options_.cols(),
      "frame {} of {}: {} elements for {} rows of {}", frame, options_.frames, out.size(), grid.count(),
      options_.cols());
  write_patches(picture, 0, 0, grid, out.data() + std::ptrdiff_t{frame} * options_.patch * options_.patch);
}

float* ImageProcessor::write_patches(const Image& picture, int left, int top, PatchGrid grid, float* to) const {
  const std::int64_t patch = options_.patch, merge = options_.merge;
  const std::int64_t stride = std::int64_t{3} * picture.width;
  const std::int64_t plane = patch * patch;
  const auto write_patch = [&](std::int64_t row, std::int64_t col) {
    const std::uint8_t* corner = picture.rgb.data() + (top + row * patch) * stride + (left + col * patch) * 3;
    for (std::size_t c = 0; c < 3; ++c) {
      const std::array<float, 256>& table = state_->normalised[c];
      for (std::int64_t y = 0; y < patch; ++y) {
        const std::uint8_t* from = corner + y * stride + c;
        for (std::int64_t x = 0; x < patch; ++x) *to++ = table[from[3 * x]];
      }
      to += (options_.frames - 1) * plane;
    }
  };
  for (std::int64_t row = 0; row < grid.rows; row += merge) {
    for (std::int64_t col = 0; col < grid.cols; col += merge) {
      for (std::int64_t i = 0; i < merge * merge; ++i) write_patch(row + i / merge, col + i % merge);
    }
  }
  return to;
}

}  // namespace mmt::data
