// Inside of image.cpp: one decoder per format. Use image.h.
#pragma once

#include "core/data/media/image.h"
#include "core/error.h"

#include <span>
#include <string>
#include <string_view>

namespace mmt::data {

struct ImageSource {
  std::span<const std::byte> bytes;
  const ImageOptions& options;
  std::string_view where;

  const std::uint8_t* data() const { return reinterpret_cast<const std::uint8_t*>(bytes.data()); }
  std::size_t size() const { return bytes.size(); }
  [[noreturn]] void fail(DataFault fault, const std::string& message) const {
    throw DataError(fault, std::string(where), message);
  }
};

/// As stored: before the orientation is applied.
struct ImageHeader {
  int width = 0;
  int height = 0;
  int orientation = 1;
};

/// Throws image_too_large or corrupt_image; to be called before memory for the pixels is taken.
void check_geometry(const ImageSource& source, std::int64_t width, std::int64_t height);

ImageHeader read_png_header(const ImageSource& source);
ImageHeader read_jpeg_header(const ImageSource& source);
ImageHeader read_webp_header(const ImageSource& source);

/// 8-bit RGB as stored, without orientation.
Image decode_png(const ImageSource& source);
Image decode_jpeg(const ImageSource& source);
Image decode_webp(const ImageSource& source);

/// Lays RGBA (not premultiplied) over `background`; rounded to nearest.
void blend_over(std::span<const std::uint8_t> rgba, const std::array<std::uint8_t, 3>& background,
                std::span<std::uint8_t> rgb);

/// Orientation (1-8) of an EXIF block, with or without the leading "Exif\0\0"; 1 when there is none or it makes no
/// sense.
int exif_orientation(std::span<const std::uint8_t> block);

/// Turns and mirrors a picture as EXIF orientation 1-8 says.
Image oriented(Image image, int orientation);

}  // namespace mmt::data
