// Files, handled so that hostile names and crashes do no harm. Errors throw mmt::Error with the path and the cause.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mmt::files {

/// The whole content. Refuses what is no regular file and what has more than `max_bytes`.
std::string read(const std::string& path, std::uint64_t max_bytes);

/// Replaces `path` so that a crash at any moment leaves the old or the new content: temporary file beside it, fsync,
/// rename, fsync of the folder. The mode of an existing file is kept.
void write_atomic(const std::string& path, std::string_view content);

/// fsync of a folder (after files were made or renamed in it) or of a file.
void sync(const std::string& path);

/// `root` / `relative`, where `relative` comes from a data file: refuses absolute paths, `..`, NUL bytes, empty names,
/// and, for what exists, symbolic links that lead out of `root`. Links inside the root are followed.
std::string join_inside(const std::string& root, std::string_view relative);

struct Space {
  std::uint64_t total = 0;
  std::uint64_t available = 0;  ///< to this user, bytes
  std::string filesystem;       ///< "ext4", "tmpfs", "nfs", "lustre", ..., or the magic number in hexadecimal
  bool shared = false;          ///< a network file system: locks and mtimes are not to be relied on
};
/// Of the file system that holds `path` (or its nearest existing parent).
Space space(const std::string& path);

}  // namespace mmt::files
