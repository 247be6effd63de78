// EXIF orientation: the one tag that changes which pixel is where (TIFF 6.0 sections 2 and 8, tag 0x0112).
#include "core/data/media/image_codecs.h"

#include <algorithm>
#include <utility>

namespace mmt::data {
namespace {

constexpr int kOrientationTag = 0x0112;
constexpr int kShort = 3;

/// Numbers of a TIFF block; reads past the end are zero, which no caller takes for a valid value.
struct TiffReader {
  std::span<const std::uint8_t> data;
  bool little = false;

  std::uint32_t byte(std::size_t at) const { return at < data.size() ? data[at] : 0U; }
  std::uint32_t u16(std::size_t at) const {
    return little ? byte(at) | (byte(at + 1) << 8) : (byte(at) << 8) | byte(at + 1);
  }
  std::uint32_t u32(std::size_t at) const {
    return little ? u16(at) | (u16(at + 2) << 16) : (u16(at) << 16) | u16(at + 2);
  }
};

}  // namespace

int exif_orientation(std::span<const std::uint8_t> block) {
  constexpr std::uint8_t kPrefix[] = {'E', 'x', 'i', 'f', 0, 0};
  if (block.size() >= 6 && std::equal(std::begin(kPrefix), std::end(kPrefix), block.begin())) block = block.subspan(6);
  if (block.size() < 8) return 1;
  TiffReader tiff{block};
  if (block[0] == 'I' && block[1] == 'I') {
    tiff.little = true;
  } else if (block[0] != 'M' || block[1] != 'M') {
    return 1;
  }
  if (tiff.u16(2) != 42) return 1;
  const std::size_t directory = tiff.u32(4);
  const std::size_t num_entries = tiff.u16(directory);
  for (std::size_t i = 0; i < num_entries; ++i) {
    const std::size_t entry = directory + 2 + 12 * i;
    if (entry + 12 > block.size()) return 1;
    if (tiff.u16(entry) != kOrientationTag) continue;
    const std::uint32_t value = tiff.u16(entry + 8);
    const bool valid = tiff.u16(entry + 2) == kShort && tiff.u32(entry + 4) == 1 && value >= 1 && value <= 8;
    return valid ? static_cast<int>(value) : 1;
  }
  return 1;
}

Image oriented(Image image, int orientation) {
  if (orientation <= 1 || orientation > 8) return image;
  const std::int64_t w = image.width;
  const std::int64_t h = image.height;
  // The source of result pixel (x, y) is origin + x * step_x + y * step_y, in pixels.
  const std::int64_t right = w - 1;
  const std::int64_t bottom = (h - 1) * w;
  std::int64_t origin = 0;
  std::int64_t step_x = 1;
  std::int64_t step_y = w;
  switch (orientation) {
    case 2: origin = right, step_x = -1; break;                        // mirrored left to right
    case 3: origin = right + bottom, step_x = -1, step_y = -w; break;  // half a turn
    case 4: origin = bottom, step_y = -w; break;                       // mirrored top to bottom
    case 5: step_x = w, step_y = 1; break;                             // transposed
    case 6: origin = bottom, step_x = -w, step_y = 1; break;           // quarter turn clockwise
    case 7: origin = right + bottom, step_x = -w, step_y = -1; break;  // transposed over the other diagonal
    case 8: origin = right, step_x = w, step_y = -1; break;            // quarter turn anticlockwise
    default: break;
  }
  Image out;
  out.width = orientation >= 5 ? image.height : image.width;
  out.height = orientation >= 5 ? image.width : image.height;
  out.rgb.resize(image.rgb.size());
  std::uint8_t* to = out.rgb.data();
  for (std::int64_t y = 0; y < out.height; ++y) {
    for (std::int64_t x = 0; x < out.width; ++x, to += 3) {
      const std::uint8_t* from = image.rgb.data() + 3 * (origin + x * step_x + y * step_y);
      to[0] = from[0], to[1] = from[1], to[2] = from[2];
    }
  }
  return out;
}

}  // namespace mmt::data
