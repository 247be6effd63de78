// Still WebP through libwebp.
#include "core/data/media/image_codecs.h"

#include <webp/decode.h>

#include <cstring>

namespace mmt::data {
namespace {

std::string describe(VP8StatusCode status) {
  switch (status) {
    case VP8_STATUS_NOT_ENOUGH_DATA: return "the file ends early";
    case VP8_STATUS_OUT_OF_MEMORY: return "out of memory";
    case VP8_STATUS_UNSUPPORTED_FEATURE: return "unsupported feature";
    default: return "bad bitstream";
  }
}

WebPBitstreamFeatures read_features(const ImageSource& source) {
  WebPBitstreamFeatures features;
  const VP8StatusCode status = WebPGetFeatures(source.data(), source.size(), &features);
  if (status != VP8_STATUS_OK) source.fail(DataFault::corrupt_image, fmt::format("damaged WebP: {}", describe(status)));
  if (features.has_animation != 0) {
    source.fail(DataFault::unsupported_media,
                "an animated WebP, which is read as a video alone: extract the frame you mean");
  }
  check_geometry(source, features.width, features.height);
  return features;
}

/// The EXIF chunk of the extended format: a list of (name, little-endian size, payload padded to even).
int webp_orientation(std::span<const std::uint8_t> file) {
  std::size_t at = 12;
  while (at + 8 <= file.size()) {
    const std::uint8_t* p = file.data() + at;
    const std::size_t length = p[4] | (std::size_t{p[5]} << 8) | (std::size_t{p[6]} << 16) | (std::size_t{p[7]} << 24);
    if (length > file.size() - at - 8) return 1;
    if (std::memcmp(p, "EXIF", 4) == 0) return exif_orientation(file.subspan(at + 8, length));
    at += 8 + length + (length & 1);
  }
  return 1;
}

}  // namespace

ImageHeader read_webp_header(const ImageSource& source) {
  const WebPBitstreamFeatures features = read_features(source);
  return {features.width, features.height, webp_orientation({source.data(), source.size()})};
}

Image decode_webp(const ImageSource& source) {
  const WebPBitstreamFeatures features = read_features(source);
  const bool alpha = features.has_alpha != 0;
  const int pixel_bytes = alpha ? 4 : 3;
  const std::size_t num_pixels = static_cast<std::size_t>(features.width) * static_cast<std::size_t>(features.height);
  Image image{features.width, features.height, {}};
  image.rgb.resize(3 * num_pixels);
  std::vector<std::uint8_t> rgba(alpha ? 4 * num_pixels : 0);

  WebPDecoderConfig config;
  MMT_CHECK(WebPInitDecoderConfig(&config) != 0, "libwebp's headers and library differ in version");
  config.output.colorspace = alpha ? MODE_RGBA : MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA.rgba = alpha ? rgba.data() : image.rgb.data();
  config.output.u.RGBA.stride = pixel_bytes * features.width;
  config.output.u.RGBA.size = static_cast<std::size_t>(pixel_bytes) * num_pixels;
  const VP8StatusCode status = WebPDecode(source.data(), source.size(), &config);
  WebPFreeDecBuffer(&config.output);
  if (status == VP8_STATUS_OUT_OF_MEMORY) throw std::bad_alloc();
  if (status != VP8_STATUS_OK) source.fail(DataFault::corrupt_image, fmt::format("damaged WebP: {}", describe(status)));
  if (alpha) blend_over(rgba, source.options.background, image.rgb);
  return image;
}

}  // namespace mmt::data
