// Pictures and sounds.
#include <cmath>
#include <numeric>
#include <span>
#include <stdexcept>

#include "core/data/media/animation.h"
#include "core/data/media/audio.h"
#include "core/data/media/image.h"
#include "core/error.h"
#include "tests/fuzz/checksums.h"
#include "tests/fuzz/target.h"

namespace mmt::fuzz {
namespace {

/// What the header promises is what decoding gives.
int decode_picture(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  data::ImageOptions options;
  options.max_decode_pixels = 1 << 18;
  try {
    const data::ImageInfo info = data::read_image_info(bytes, options, "fuzz");
    const data::Image image = data::decode_image(bytes, options, "fuzz");
    if (image.width != info.width || image.height != info.height ||
        image.rgb.size() !=
            std::size_t{3} * static_cast<std::size_t>(info.width) * static_cast<std::size_t>(info.height)) {
      throw std::logic_error("a picture of another size than its header says");
    }
    accepted();
  } catch (const DataError&) {
  }
  return 0;
}

int decode_sound(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  data::AudioOptions options;
  options.max_seconds = 20;
  try {
    const data::AudioInfo info = data::read_audio_info(bytes, options, "fuzz");
    const data::Audio audio = data::decode_audio(bytes, options, "fuzz");
    if (static_cast<std::int64_t>(audio.samples.size()) != info.samples) {
      throw std::logic_error("a sound of another length than its header says");
    }
    for (const float v : audio.samples) {
      if (!std::isfinite(v)) throw std::logic_error("a sample that is not finite");
    }
    accepted();
  } catch (const DataError&) {
  }
  return 0;
}

}  // namespace

namespace png {
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) { return decode_picture(data, size); }
const Registration kRegistered({"png",
                                LLVMFuzzerTestOneInput,
                                {"data/media/*.png"},
                                {"IHDR", "PLTE", "IDAT", "IEND", "tRNS", "eXIf", "iCCP", "gAMA", "acTL", "sBIT",
                                 "Exif\0\0"},
                                mend_png});
}  // namespace png

namespace jpeg {
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) { return decode_picture(data, size); }
const Registration kRegistered({"jpeg",
                                LLVMFuzzerTestOneInput,
                                {"data/media/*.jpg"},
                                {"\xff\xd8", "\xff\xd9", "\xff\xc0", "\xff\xc2", "\xff\xc4", "\xff\xda", "\xff\xdb",
                                 "\xff\xdd", "\xff\xe1", "\xff\xee", "Exif", "MM", "II", "Adobe", "\x01\x12"}});
}  // namespace jpeg

namespace webp {
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) { return decode_picture(data, size); }
const Registration kRegistered({"webp",
                                LLVMFuzzerTestOneInput,
                                {"data/media/*.webp"},
                                {"RIFF", "WEBP", "VP8 ", "VP8L", "VP8X", "ALPH", "ANIM", "ANMF", "EXIF", "ICCP"}});
}  // namespace webp

namespace animation {
/// The structure's frames are those that decoding gives.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  data::ImageOptions options;
  options.max_decode_pixels = 1 << 16;
  const data::AnimationLimits limits{.max_frames = 64, .max_pixels = 1 << 21};
  if (!data::is_animation(bytes)) return 0;
  try {
    const data::AnimationInfo info = data::read_animation_info(bytes, options, limits, "fuzz");
    std::vector<std::int32_t> wanted(static_cast<std::size_t>(info.frames()));
    std::iota(wanted.begin(), wanted.end(), 0);
    data::decode_animation(
        bytes, options, limits, wanted,
        [&](const data::Image& frame) {
          if (frame.width != info.width || frame.height != info.height)
            throw std::logic_error("a frame of another size");
        },
        "fuzz");
    accepted();
  } catch (const DataError&) {
  }
  return 0;
}
const Registration kRegistered({"animation",
                                LLVMFuzzerTestOneInput,
                                {"data/media/animations/*.gif", "data/media/animations/*.webp"},
                                {"GIF87a", "GIF89a", std::string("!\xf9\x04"), std::string("!\xff\x0bNETSCAPE2.0"),
                                 "!\xfe", "RIFF", "WEBP", "VP8 ", "VP8L", "VP8X", "ALPH", "ANIM", "ANMF"}});
}  // namespace animation

namespace wav {
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) { return decode_sound(data, size); }
const Registration kRegistered({"wav",
                                LLVMFuzzerTestOneInput,
                                {"data/media/*.wav"},
                                {"RIFF", "RIFX", "RF64", "WAVE", "fmt ", "data", "fact", "LIST", "ds64", "\xfe\xff"}});
}  // namespace wav

namespace flac {
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) { return decode_sound(data, size); }
const Registration kRegistered(
    {"flac", LLVMFuzzerTestOneInput, {"data/media/*.flac"}, {"fLaC", "\xff\xf8", "\xff\xf9"}});
}  // namespace flac

}  // namespace mmt::fuzz
