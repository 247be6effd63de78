// Where the bytes of a medium lie: a file, a stretch of a file (a member of a tar shard), memory (a data URI), or a
// list of these.
#pragma once

#include "core/error.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace mmt::data {

/// A file open for reading by many threads at once; closed with its last holder.
class OpenFile {
 public:
  /// A regular file. Throws DataError(missing_file).
  static std::shared_ptr<const OpenFile> open(const std::filesystem::path& path, const std::string& where);
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  std::int64_t size() const { return size_; }
  /// Up to `length` bytes from `offset` on; fewer only at the end of the file. Throws DataError(missing_file) when the
  /// file cannot be read.
  std::vector<std::byte> read(std::int64_t offset, std::int64_t length, const std::string& where) const;

 private:
  OpenFile(int descriptor, std::int64_t size) : descriptor_(descriptor), size_(size) {}
  int descriptor_;
  std::int64_t size_;
};

/// A value, cheap to copy: what it points to is shared. Reading is thread-safe.
class MediaSource {
 public:
  MediaSource() = default;
  MediaSource(std::filesystem::path file);  // NOLINT(google-explicit-constructor): a path is a source
  static MediaSource stretch(std::shared_ptr<const OpenFile> file, std::int64_t offset, std::int64_t length,
                             std::string name);
  static MediaSource memory(std::vector<std::byte> bytes, std::string name);

  /// Pictures in their order, which are the frames of one video.
  static MediaSource list(std::vector<MediaSource> pictures, std::string name);

  /// Such a list, or a folder: then it has pictures, and no bytes of its own.
  bool is_list() const;
  /// Of a folder: its files that are called jpg, jpeg, png or webp, in natural order; hidden ones are passed over.
  /// Throws DataError(unsupported_media) for pictures and films of other formats, missing_file for a folder that cannot
  /// be read.
  std::vector<MediaSource> pictures(const std::string& where) const;

  /// For messages: the file, "shard.tar: member", or the head of a data URI.
  const std::string& name() const { return name_; }
  /// "set.json: sample 7: a.png": a medium of what `where` names.
  std::string place(const std::string& where) const { return where + ": " + name_; }
  /// The bytes, or the first `prefix` of them (0: all). Throws DataError(missing_file) when they are not there,
  /// DataError(too_large) when the medium has more than `max_bytes`.
  std::vector<std::byte> read(const std::string& where, std::int64_t max_bytes, DataFault too_large,
                              std::int64_t prefix = 0) const;

 private:
  std::string name_;
  std::filesystem::path path_;                            // opened at every reading, unless one of these is there
  std::shared_ptr<const OpenFile> file_;                  // from offset_, length_ bytes
  std::shared_ptr<const std::vector<std::byte>> memory_;  // all of them
  std::int64_t offset_ = 0, length_ = 0;
  std::shared_ptr<const std::vector<MediaSource>> list_;
};

/// Largest text of a data URI.
inline constexpr std::int64_t kMaxDataUri = std::int64_t{32} << 20;
bool is_data_uri(std::string_view text);
/// `data:image/png;base64,...`: only base64 is read; the declared type is not believed. Throws DataError(bad_record).
MediaSource data_uri_source(std::string_view uri, const std::string& where);

}  // namespace mmt::data
