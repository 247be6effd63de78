#include "core/data/media/media_kind.h"

#include <algorithm>
#include <initializer_list>
#include <string>

namespace mmt::data {
namespace {

constexpr std::size_t kHead = 512;

struct Signature {
  std::string_view magic;
  MediaKind kind;
  std::string_view name;
};

using namespace std::string_view_literals;

constexpr Signature kSignatures[] = {
    {"\x89PNG\r\n\x1a\n"sv, MediaKind::png, "a PNG picture"},
    {"\xff\xd8\xff"sv, MediaKind::jpeg, "a JPEG picture"},
    {"GIF87a"sv, MediaKind::gif, "a GIF picture"},
    {"GIF89a"sv, MediaKind::gif, "a GIF picture"},
    {"BM"sv, MediaKind::bmp, "a BMP picture"},
    {"II*\0"sv, MediaKind::tiff, "a TIFF picture"},
    {"MM\0*"sv, MediaKind::tiff, "a TIFF picture"},
    {"\0\0\0\x0cjP  "sv, MediaKind::other_image, "a JPEG 2000 picture"},
    {"\xff\x0a"sv, MediaKind::other_image, "a JPEG XL picture"},
    {"8BPS"sv, MediaKind::other_image, "a Photoshop file"},
    {"fLaC"sv, MediaKind::flac, "a FLAC sound"},
    {"OggS"sv, MediaKind::ogg, "an OGG sound"},
    {"ID3"sv, MediaKind::mp3, "an MP3 sound"},
    {"caff"sv, MediaKind::other_audio, "a CAF sound"},
    {"riff\x2e\x91"sv, MediaKind::other_audio, "a Wave64 sound"},
    {".snd"sv, MediaKind::other_audio, "an AU sound"},
    {"#!AMR"sv, MediaKind::other_audio, "an AMR sound"},
    {"%PDF"sv, MediaKind::other, "a PDF document"},
    {"PK\x03\x04"sv, MediaKind::other, "a ZIP archive"},
    {"\x1f\x8b"sv, MediaKind::other, "gzip-compressed data"},
    {"(\xb5/\xfd"sv, MediaKind::other, "zstd-compressed data"},
    {"version https://git-lfs"sv, MediaKind::other, "a Git LFS pointer (the file itself was not fetched)"},
    {"\x1a\x45\xdf\xa3"sv, MediaKind::film, "a Matroska or WebM film"},
};

bool starts_with_no_case(std::string_view text, std::string_view lower) {
  if (text.size() < lower.size()) return false;
  return std::equal(lower.begin(), lower.end(), text.begin(),
                    [](char l, char t) { return l == (t >= 'A' && t <= 'Z' ? static_cast<char>(t - 'A' + 'a') : t); });
}

/// UTF-8 without control characters; the last character may be cut.
bool is_text(std::string_view head) {
  for (std::size_t i = 0; i < head.size(); ++i) {
    const auto lead = static_cast<unsigned char>(head[i]);
    if (lead < 0x20 ? lead != '\n' && lead != '\r' && lead != '\t' : lead == 0x7f) return false;
    if (lead < 0x80) continue;
    if (lead < 0xc2 || lead > 0xf4) return false;
    for (int rest = lead >= 0xf0 ? 3 : (lead >= 0xe0 ? 2 : 1); rest > 0 && i + 1 < head.size(); --rest) {
      if ((static_cast<unsigned char>(head[++i]) & 0xc0) != 0x80) return false;
    }
  }
  return true;
}

bool one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

MediaGuess guess_text(std::string_view head) {
  if (head.starts_with("\xef\xbb\xbf")) head.remove_prefix(3);
  if (!is_text(head)) return {MediaKind::other, "unknown data"};
  const std::size_t first = head.find_first_not_of(" \t\r\n");
  head.remove_prefix(first == std::string_view::npos ? head.size() : first);
  if (starts_with_no_case(head, "<!doctype html") || starts_with_no_case(head, "<html") ||
      starts_with_no_case(head, "<head")) {
    return {MediaKind::other, "an HTML page (an error page saved in place of the file?)"};
  }
  if (starts_with_no_case(head, "<svg")) return {MediaKind::other_image, "an SVG drawing"};
  if (starts_with_no_case(head, "<?xml")) return {MediaKind::other, "an XML text"};
  if (head.starts_with('{') || head.starts_with('[')) return {MediaKind::other, "a JSON text"};
  return {MediaKind::other, "a text"};
}

}  // namespace

MediaGuess guess_media(std::span<const std::byte> bytes) {
  if (bytes.empty()) return {MediaKind::other, "an empty file"};
  std::string text;
  for (const std::byte b : bytes.first(std::min(bytes.size(), kHead))) text.push_back(static_cast<char>(b));
  const std::string_view head = text;
  for (const Signature& s : kSignatures) {
    if (head.starts_with(s.magic)) return {s.kind, s.name};
  }
  if (head.size() >= 12) {
    const std::string_view form = head.substr(8, 4);
    const bool riff = head.starts_with("RIFF") || head.starts_with("RIFX") || head.starts_with("RF64");
    if (riff && form == "WAVE") return {MediaKind::wav, "a WAV sound"};
    if (riff && form == "WEBP") return {MediaKind::webp, "a WebP picture"};
    if (riff && form == "AVI ") return {MediaKind::film, "an AVI film"};
    if (head.starts_with("FORM") && form.starts_with("AIF")) return {MediaKind::other_audio, "an AIFF sound"};
    if (head.substr(4, 4) == "ftyp") {
      if (form.starts_with("avif") || form.starts_with("avis")) return {MediaKind::heif, "an AVIF picture"};
      if (form.starts_with("hei") || form.starts_with("hev") || form.starts_with("mif1")) {
        return {MediaKind::heif, "a HEIF picture"};
      }
      if (form == "M4A ") return {MediaKind::other_audio, "an M4A (AAC) sound"};
      return {MediaKind::film, "an MP4 or QuickTime film"};
    }
  }
  if (head.size() >= 2 && head[0] == '\xff') {
    const int second = static_cast<unsigned char>(head[1]);
    const int layer = (second >> 1) & 3;
    if ((second & 0xe0) == 0xe0 && layer != 0) return {MediaKind::mp3, "an MP3 sound"};
    if ((second & 0xf6) == 0xf0) return {MediaKind::other_audio, "an AAC sound"};
  }
  return guess_text(head);
}

bool is_image(MediaKind kind) { return kind <= MediaKind::other_image; }
bool is_audio(MediaKind kind) { return kind >= MediaKind::wav && kind <= MediaKind::other_audio; }
bool is_film(MediaKind kind) { return kind == MediaKind::film; }

bool is_picture_ending(std::string_view ending) { return one_of(ending, {"jpg", "jpeg", "png", "webp"}); }
bool is_sound_ending(std::string_view ending) { return one_of(ending, {"wav", "flac", "mp3", "ogg"}); }
bool is_unread_ending(std::string_view ending) {
  return one_of(ending, {"bmp", "tif", "tiff", "heic", "heif", "avif", "jp2", "svg", "ppm", "m4a", "aac",
                         "wma", "aif", "aiff", "opus", "mp4",  "webm", "avi", "mov", "mkv", "mpg", "mpeg"});
}

}  // namespace mmt::data
