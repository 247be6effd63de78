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
  gif,  // as a video alone
  // pictures that are not
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
  // films in containers, which are not read
  film,
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
bool is_film(MediaKind kind);

/// Endings of names, in small letters and without the dot: of pictures (all but GIF) and sounds that are read, and of
/// pictures, sounds and films of formats that are not, which must not be passed over without a word.
bool is_picture_ending(std::string_view ending);
bool is_sound_ending(std::string_view ending);
bool is_unread_ending(std::string_view ending);

}  // namespace mmt::data
