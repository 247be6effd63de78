// What a file is, by its first bytes: media are never trusted by their name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace mmt::data {

enum class MediaKind : std::uint8_t {
  // pictures that are read
  png,
  jpeg,
  webp,
  // pictures that are not
  gif,
  bmp,
  tiff,
  heif,
  other_image,
  // sounds that are read
  wav,
  flac,
  ogg,
  mp3,
  // sounds that are not
  other_audio,
  other,
};

struct MediaGuess {
  MediaKind kind = MediaKind::other;
  std::string_view name;  ///< with its article: "a GIF picture", "an HTML page", "an empty file"
};

/// Reads at most some hundred bytes. Never throws.
MediaGuess guess_media(std::span<const std::byte> bytes);

bool is_image(MediaKind kind);
bool is_audio(MediaKind kind);

}  // namespace mmt::data
