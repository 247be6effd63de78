// preprocessor_config.json of a published vision tower: how its pictures were prepared. The spellings of transformers 4
// and 5 (a processor_config.json holds the same object under "image_processor").
#pragma once

#include "core/data/media/preprocess.h"

#include <optional>
#include <string>
#include <string_view>

namespace mmt::data {

/// `base`: what the file leaves open, and whether pictures have any size (ImageFit::dynamic). Throws ConfigError naming
/// the file and the key (steps that are not made here: other scales than 1 / 255, no normalisation, ...).
ImageProcessing parse_image_preprocessor(std::string_view json, const std::string& path, const ImageProcessing& base);

/// The file of a folder; nothing where there is none that holds an image processor.
std::optional<ImageProcessing> read_image_preprocessor(const std::string& folder, const ImageProcessing& base);

}  // namespace mmt::data
