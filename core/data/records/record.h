// A training sample as its file states it: turns of a dialogue with media slots, and the media files.
#pragma once

#include "core/data/media/media_source.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace mmt::data {

enum class Modality : std::uint8_t { image, audio, video };
inline constexpr int kNumModalities = 3;
std::string_view name_of(Modality modality);

enum class Role : std::uint8_t { system, user, assistant, tool };
std::string_view name_of(Role role);

/// A stretch of text, or (media >= 0) the slot of `Record::media[media]`. Text is data: it never makes a slot.
struct Part {
  std::string text;
  std::int32_t media = -1;
};

struct Turn {
  Role role = Role::user;
  std::vector<Part> parts;
  bool loss = true;  ///< false: an assistant turn that is not supervised (`"loss": false` in the file)
};

struct MediaFile {
  Modality modality = Modality::image;
  /// As written in the record: relative to the set's media root; the name of a member; a data URI. Of a video that is a
  /// list of pictures it is empty.
  std::string path;
  MediaSource source{};  ///< where its bytes are; empty until `find_media` or the set's own reader fills it
  std::vector<std::string> frames{};  ///< of such a video, likewise
};

struct Record {
  std::string id;  ///< the record's own id, or empty
  std::vector<Turn> turns;
  std::vector<MediaFile> media;  ///< in the order of their slots; each has exactly one slot
};

/// `place` with the record's id, where it has one: "train.json:17: sample 16 (id a-3)".
std::string with_id(const std::string& place, const std::string& id);

/// Joins a record's media path to the media root. Throws DataError(unsafe_path) for absolute paths, `..`, URLs, data
/// URIs, NUL bytes and names that leave the root; symbolic links inside the root are the user's own and are followed.
std::filesystem::path media_path(const std::filesystem::path& root, std::string_view relative,
                                 const std::string& where);

/// Fills the source of every medium, and of every frame of a video: what `find` says of its path, or the bytes of a
/// data URI, whose text is then shortened. Throws DataError(bad_record) for a data URI that is none.
using FindMedium = std::function<MediaSource(const std::string& path)>;
void find_media(Record& record, const FindMedium& find, const std::string& where);

/// The same with files below the media root. Throws DataError(unsafe_path) as above, DataError(bad_record) for a data
/// URI that is none.
void find_media(Record& record, const std::filesystem::path& root, const std::string& where);

}  // namespace mmt::data
