// Thousands of damaged copies of every fixture: only DataError may come out, and the header and the decoder agree.
#include "core/data/media/audio.h"
#include "core/data/media/image.h"
#include "tests/data/media_files.h"

#include <random>

// libsndfile forgets the comments of an OGG file that it cannot open.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:vorbis_info_init\n"; }

using namespace mmt;
using namespace mmt::data;
using namespace mmt::data::test;

namespace {

/// Flips, overwrites, cuts, repeats or removes parts.
Bytes mutated(Bytes bytes, std::mt19937& random) {
  const auto below = [&](std::size_t n) { return n == 0 ? 0 : random() % n; };
  const int num_changes = 1 + static_cast<int>(below(4));
  for (int i = 0; i < num_changes && !bytes.empty(); ++i) {
    // Headers matter most: half of all changes fall into the first 64 bytes.
    const std::size_t at = below(random() % 2 == 0 ? std::min<std::size_t>(64, bytes.size()) : bytes.size());
    switch (random() % 6) {
      case 0: bytes[at] ^= static_cast<std::byte>(1U << below(8)); break;
      case 1: bytes[at] = static_cast<std::byte>(random()); break;
      case 2: bytes[at] = random() % 2 == 0 ? std::byte{0xff} : std::byte{0}; break;
      case 3: bytes.resize(at); break;
      case 4: bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at)); break;
      default:
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), 1 + below(8), static_cast<std::byte>(random()));
    }
  }
  return bytes;
}

}  // namespace

TEST_CASE("image: damaged copies give a DataError or a picture of the announced size") {
  ImageOptions options;
  options.max_decode_pixels = 1'000'000;
  std::mt19937 random(7);
  int refused = 0;
  int decoded = 0;
  for (const char* file : {"rgb.png", "interlaced.png", "palette_trns.png", "grey_alpha.png", "grey16.png", "exif6.png",
                           "bit.png", "j420.jpg", "progressive.jpg", "cmyk.jpg", "jgrey.jpg", "exif6.jpg", "lossy.webp",
                           "alpha.webp", "exif8.webp", "animated.webp"}) {
    const Bytes original = media(file);
    for (int round = 0; round < 150; ++round) {
      const Bytes bytes = mutated(original, random);
      try {
        const Image image = decode_image(bytes, options, kWhere);
        const ImageInfo info = read_image_info(bytes, options, kWhere);
        REQUIRE(image.width == info.width);
        REQUIRE(image.height == info.height);
        ++decoded;
      } catch (const DataError&) {
        ++refused;
      }
    }
  }
  CHECK(refused > 1000);
  CHECK(decoded > 10);
}

TEST_CASE("audio: damaged copies give a DataError or a clip of the announced length") {
  AudioOptions options;
  options.max_seconds = 20;
  std::mt19937 random(11);
  int refused = 0;
  int decoded = 0;
  for (const char* file : {"mono8.wav", "stereo44.wav", "wide22.wav", "mono16.flac", "tone22.ogg", "tone44.mp3"}) {
    const Bytes original = media(file);
    for (int round = 0; round < 80; ++round) {
      const Bytes bytes = mutated(original, random);
      try {
        const Audio audio = decode_audio(bytes, options, kWhere);
        const AudioInfo info = read_audio_info(bytes, options, kWhere);
        REQUIRE(static_cast<std::int64_t>(audio.samples.size()) == info.samples);
        ++decoded;
      } catch (const DataError&) {
        ++refused;
      }
    }
  }
  CHECK(refused > 50);
  CHECK(decoded > 10);
}
