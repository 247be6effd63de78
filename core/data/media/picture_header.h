// The header of a picture wherever it lies, without reading more of it than is needed.
#pragma once

#include "core/data/media/image.h"
#include "core/data/media/media_source.h"

#include <cstdint>
#include <string>

namespace mmt::data {

inline constexpr std::int64_t kMaxPictureBytes = std::int64_t{2} << 30;  ///< of a file

/// As read_image_info. `where` begins the message and names the file.
ImageInfo read_picture_header(const MediaSource& source, const ImageOptions& options, const std::string& where);

}  // namespace mmt::data
