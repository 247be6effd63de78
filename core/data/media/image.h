// Pictures: PNG, JPEG and still WebP from memory to 8-bit RGB. Every input is treated as hostile: geometry is read and
// checked before anything is allocated for the pixels.
//
// Where the result differs from Pillow's `Image.open(...).convert("RGB")`, on purpose:
//   * EXIF orientation is applied (JPEG APP1, PNG eXIf, WebP EXIF);      key apply_exif
//   * transparency is laid over a background instead of being dropped;   key background
//   * 16-bit PNG is scaled to 8 bit, not clipped or cut;                 key scale_16_bit
//   * a JPEG with damaged or missing data is an error, never filled up with grey.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace mmt::data {

/// 8-bit RGB, row by row: pixel (x, y) is rgb[3 * (y * width + x) + channel].
struct Image {
  int width = 0;
  int height = 0;
  std::vector<std::uint8_t> rgb;
};

struct ImageOptions {
  /// Turn and mirror the picture as its EXIF orientation (1-8) says. Off for boxes that were drawn on raw pixels.
  bool apply_exif = true;
  /// What shows through transparent pixels.
  std::array<std::uint8_t, 3> background{255, 255, 255};
  /// Pictures with more pixels are refused from their header.
  std::int64_t max_decode_pixels = 100'000'000;
  /// 16-bit PNG: v * 255 / 65535, rounded. Off: as Pillow does, grey clipped at 255 and colour cut to its high byte.
  bool scale_16_bit = true;
};

enum class ImageFormat : std::uint8_t { png, jpeg, webp };

/// What the header says. `width` and `height` are those of the decoded picture (after EXIF, when it is applied).
struct ImageInfo {
  int width = 0;
  int height = 0;
  ImageFormat format = ImageFormat::png;
  int orientation = 1;  ///< EXIF value, 1 when absent, invalid or not applied
};

/// Reads the header alone. `where` starts the message of an error (the sample or the file).
/// Throws DataError: not_an_image (saying what the bytes look like), unsupported_media (GIF, animation, 12-bit
/// JPEG...), corrupt_image, image_too_large.
ImageInfo read_image_info(std::span<const std::byte> bytes, const ImageOptions& options, std::string_view where);

/// Decodes the whole picture; same errors. The result has the geometry that read_image_info gives.
/// JPEG: accurate integer DCT and smooth chroma upsampling (Pillow's path); CMYK and YCCK by the Adobe marker.
Image decode_image(std::span<const std::byte> bytes, const ImageOptions& options, std::string_view where);

}  // namespace mmt::data
