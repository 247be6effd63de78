#include "core/data/media/picture_header.h"

#include "core/error.h"

namespace mmt::data {

ImageInfo read_picture_header(const MediaSource& source, const ImageOptions& options, const std::string& where) {
  constexpr std::int64_t kHeaderBytes = std::int64_t{256} << 10;
  std::vector<std::byte> bytes = source.read(where, kMaxPictureBytes, DataFault::image_too_large, kHeaderBytes);
  if (static_cast<std::int64_t>(bytes.size()) == kHeaderBytes) {  // there may be more
    // A JPEG has all that matters in front; others may keep their orientation behind the pixels.
    if (bytes[0] == std::byte{0xFF} && bytes[1] == std::byte{0xD8}) {
      try {
        return read_image_info(bytes, options, where);
      } catch (const DataError&) {  // the header is longer than usual
      }
    }
    bytes = source.read(where, kMaxPictureBytes, DataFault::image_too_large);
  }
  return read_image_info(bytes, options, where);
}

}  // namespace mmt::data
