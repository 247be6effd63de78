// Data files of dialogues: LLaVA JSON (one array) and messages / ShareGPT / OpenAI-style JSONL. Either container (array
// or one object a line) may hold either spelling of records:
//   {"id", "system", "image"|"images", "audio"|"audios", "video"|"videos": file | [file] | null,
//    "conversations": [{"from", "value"}]}
//   {"messages": [{"role", "content": string | [{"type": "text"|"image"|"image_url"|"audio"|"input_audio"|"video",
//   ...}],
//                  "loss": bool}]}
// A file is a path below the media root, a data URI, or {"path"} or {"url"} of one. A video may also be a list of
// files, its frames: `"video": [frame, ...]`, `"videos": [[frame, ...], file, ...]`.
// `<image>`, `<audio>` and `<video>` in the text of user, system and tool turns are the slots of the listed files, in
// order. A record without the key (or with null) has no slots of that modality and the word is plain text; so it is in
// assistant turns.
#pragma once

#include "core/data/records/record_source.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace mmt::data {

/// Caps that a hostile file meets before it costs memory or stack.
inline constexpr int kMaxJsonDepth = 64;
inline constexpr std::int64_t kMaxRecordBytes = std::int64_t{64} << 20;

/// Names of pictures, sounds and videos for a record that lists none itself; those that it names are not implied.
struct ImpliedMedia {
  std::vector<std::string> images{}, audios{}, videos{};
  /// The one of these names that a path in the record means; empty: paths are these names.
  std::function<std::string(const std::string& path)> name_of{};
};

/// Parses one record. `where` names data set and sample in errors. Throws DataError: bad_record for JSON or structure,
/// placeholder_count where the slots of a listed modality do not match its files.
Record parse_record(std::string_view json, const std::string& where, const ImpliedMedia& implied = {});

/// Random access to the records of a file. Opening reads the file once, in pieces, and keeps a byte offset per record;
/// records are parsed one by one, so the size of the file does not matter. Reading is thread-safe.
class RecordFile final : public RecordSource {
 public:
  /// Throws ConfigError when the file is missing, empty or not such a file at all (`path:line:col: ...`).
  static RecordFile open(const std::filesystem::path& path, const std::filesystem::path& media_root = {});
  ~RecordFile() override;
  RecordFile(RecordFile&&) noexcept;
  RecordFile& operator=(RecordFile&&) noexcept;

  std::int64_t size() const override { return static_cast<std::int64_t>(offsets_.size()); }
  std::int64_t offset(std::int64_t i) const override { return offsets_[static_cast<std::size_t>(i)]; }
  std::uint64_t stamp() const override;

  /// The JSON text of record `i`. Throws DataError(bad_record) when the file shrank or cannot be read any more.
  std::string text(std::int64_t i) const;
  /// Parsed; throws as parse_record does. Errors say `file:line: sample i`.
  Record read(std::int64_t i) const override;
  std::string where(std::int64_t i) const override;

 private:
  RecordFile() = default;
  std::filesystem::path path_, media_root_;
  int descriptor_ = -1;
  std::int64_t bytes_ = 0, modified_ns_ = 0;
  std::vector<std::int64_t> offsets_;  // first byte of each record
  std::vector<std::int32_t> lengths_;  // its bytes
  std::vector<std::int32_t> lines_;    // its first line, from 1
};

}  // namespace mmt::data
