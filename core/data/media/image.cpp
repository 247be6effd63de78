#include "core/data/media/image.h"

#include "core/data/media/image_codecs.h"
#include "core/data/media/media_kind.h"

#include <algorithm>
#include <utility>

namespace mmt::data {
namespace {

ImageFormat format_of(const ImageSource& source) {
  const MediaGuess guess = guess_media(source.bytes);
  switch (guess.kind) {
    case MediaKind::png: return ImageFormat::png;
    case MediaKind::jpeg: return ImageFormat::jpeg;
    case MediaKind::webp: return ImageFormat::webp;
    default: break;
  }
  if (guess.kind == MediaKind::gif) {
    source.fail(DataFault::unsupported_media,
                "this is a GIF picture, which is read as a video alone; convert it to PNG, JPEG or WebP");
  }
  if (is_image(guess.kind)) {
    source.fail(DataFault::unsupported_media,
                fmt::format("this is {}; convert it to PNG, JPEG or WebP, which are read", guess.name));
  }
  source.fail(DataFault::not_an_image, fmt::format("not a picture: this looks like {}", guess.name));
}

ImageHeader read_header(ImageFormat format, const ImageSource& source) {
  switch (format) {
    case ImageFormat::png: return read_png_header(source);
    case ImageFormat::jpeg: return read_jpeg_header(source);
    case ImageFormat::webp: return read_webp_header(source);
  }
  throw std::logic_error("unknown image format");
}

Image decode(ImageFormat format, const ImageSource& source) {
  switch (format) {
    case ImageFormat::png: return decode_png(source);
    case ImageFormat::jpeg: return decode_jpeg(source);
    case ImageFormat::webp: return decode_webp(source);
  }
  throw std::logic_error("unknown image format");
}

}  // namespace

// A single row of a longer picture takes gigabytes in the decoders; libpng's own default.
constexpr std::int64_t kMaxSide = 1'000'000;

void check_geometry(const ImageSource& source, std::int64_t width, std::int64_t height) {
  if (width <= 0 || height <= 0 || width > INT32_MAX || height > INT32_MAX) {
    source.fail(DataFault::corrupt_image, fmt::format("the header says {} x {} pixels", width, height));
  }
  if (std::max(width, height) > kMaxSide) {
    source.fail(DataFault::image_too_large, fmt::format("{} x {} pixels: a side over {}", width, height, kMaxSide));
  }
  if (width > source.options.max_decode_pixels / height) {
    source.fail(DataFault::image_too_large, fmt::format("{} x {} pixels are more than max_decode_pixels = {}", width,
                                                        height, source.options.max_decode_pixels));
  }
}

void blend_over(std::span<const std::uint8_t> rgba, const std::array<std::uint8_t, 3>& background,
                std::span<std::uint8_t> rgb) {
  const std::size_t num_pixels = rgb.size() / 3;
  for (std::size_t i = 0; i < num_pixels; ++i) {
    const std::uint32_t alpha = rgba[4 * i + 3];
    for (std::size_t c = 0; c < 3; ++c) {
      // Rounded division by 255 without a division: exact for every product of two bytes.
      const std::uint32_t sum = rgba[4 * i + c] * alpha + background[c] * (255 - alpha) + 128;
      rgb[3 * i + c] = static_cast<std::uint8_t>((sum + (sum >> 8)) >> 8);
    }
  }
}

ImageInfo read_image_info(std::span<const std::byte> bytes, const ImageOptions& options, std::string_view where) {
  const ImageSource source{bytes, options, where};
  ImageInfo info;
  info.format = format_of(source);
  const ImageHeader header = read_header(info.format, source);
  info.orientation = options.apply_exif ? header.orientation : 1;
  info.width = info.orientation >= 5 ? header.height : header.width;
  info.height = info.orientation >= 5 ? header.width : header.height;
  return info;
}

Image decode_image(std::span<const std::byte> bytes, const ImageOptions& options, std::string_view where) {
  const ImageInfo info = read_image_info(bytes, options, where);
  Image image = oriented(decode(info.format, {bytes, options, where}), info.orientation);
  MMT_CHECK(image.width == info.width && image.height == info.height, "{}: header {} x {}, decoded {} x {}", where,
            info.width, info.height, image.width, image.height);
  return image;
}

}  // namespace mmt::data
