// preprocessor_config.json of a published vision tower: how its pictures were prepared. The spellings of transformers 4
// and 5 (a processor_config.json holds the same object under "image_processor").
#pragma once

#include "core/data/media/video_input.h"

#include <optional>
#include <string>
#include <string_view>

namespace mmt::data {

/// `base`: what the file leaves open, and whether pictures have any size (ImageFit::dynamic). Throws ConfigError naming
/// the file and the key (steps that are not made here: other scales than 1 / 255, no normalisation, ...).
ImageProcessing parse_image_preprocessor(std::string_view json, const std::string& path, const ImageProcessing& base);

/// The file of a folder; nothing where there is none that holds an image processor.
std::optional<ImageProcessing> read_image_preprocessor(const std::string& folder, const ImageProcessing& base);

/// How a folder's videos were prepared, as transformers finds it: "video_processor" of processor_config.json, else
/// video_preprocessor_config.json, else preprocessor_config.json (whose limits of pixels then count for frames, too).
/// `picture`: how its pictures are; colours and patches of frames must be the same. Nothing where there is no such
/// file.
std::optional<VideoProcessing> read_video_preprocessor(const std::string& folder, const ImageProcessing& picture,
                                                       const VideoProcessing& base);
VideoProcessing parse_video_preprocessor(std::string_view json, const std::string& path, const ImageProcessing& picture,
                                         const VideoProcessing& base);

/// The same of a published tower of sound. Its file leaves nothing to choose: throws ConfigError naming the file and
/// the key where it wants other frames than `made` says.
void check_audio_preprocessor(std::string_view json, const std::string& path, const AudioProcessing& made);
/// The file of a folder, where there is one that holds such a processor.
void check_audio_preprocessor_of(const std::string& folder, const AudioProcessing& made);

}  // namespace mmt::data
