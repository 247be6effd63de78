#include "core/data/records/tar_shard.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <map>
#include <memory>

#include "core/error.h"

namespace mmt::data {
namespace {

constexpr std::size_t kMaxMemberName = 4096;

struct CloseDescriptor {
  int fd;
  explicit CloseDescriptor(int f) : fd(f) {}
  CloseDescriptor(const CloseDescriptor&) = delete;
  CloseDescriptor& operator=(const CloseDescriptor&) = delete;
  ~CloseDescriptor() {
    if (fd >= 0) ::close(fd);
  }
};

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& what) {
  throw ConfigError(fmt::format("{}: {}", path.string(), what));
}

/// By the first bytes; empty for what is not compressed.
std::string_view compression_of(int fd) {
  char head[8] = {};
  const ssize_t n = ::pread(fd, head, sizeof head, 0);
  const std::string_view start(head, n > 0 ? static_cast<std::size_t>(n) : 0);
  using namespace std::string_view_literals;
  constexpr std::pair<std::string_view, std::string_view> kKinds[] = {{"\x1f\x8b"sv, "gzip"},
                                                                      {"\x28\xb5\x2f\xfd"sv, "zstd"},
                                                                      {"BZh"sv, "bzip2"},
                                                                      {"\xfd"
                                                                       "7zXZ"sv,
                                                                       "xz"},
                                                                      {"\x04\x22\x4d\x18"sv, "lz4"}};
  for (const auto& [magic, name] : kKinds) {
    if (start.starts_with(magic)) return name;
  }
  return {};
}

void fill_status(const std::filesystem::path& path, int fd, TarShard& shard) {
  struct stat status {};
  if ((fd >= 0 ? ::fstat(fd, &status) : ::stat(path.c_str(), &status)) != 0) refuse(path, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) refuse(path, S_ISDIR(status.st_mode) ? "is a folder" : "is not a regular file");
  shard.bytes = status.st_size;
  shard.modified_ns = static_cast<std::int64_t>(status.st_mtim.tv_sec) * 1'000'000'000 + status.st_mtim.tv_nsec;
}

/// Puts members into samples.
class Grouping {
 public:
  explicit Grouping(TarShard& shard) : shard_(shard) {}
  void add(const std::string& key, const std::string& field, std::int64_t offset, std::int64_t bytes) {
    if (shard_.samples.empty() || shard_.key(shard_.samples.size() - 1) != key) {
      shard_.samples.push_back({shard_.keys.size(), static_cast<std::uint32_t>(key.size()),
                                static_cast<std::uint32_t>(shard_.fields.size())});
      shard_.keys += key;
    }
    const auto [at, is_new] = numbers_.try_emplace(field, static_cast<std::uint32_t>(shard_.field_names.size()));
    if (is_new) shard_.field_names.push_back(field);
    shard_.fields.push_back({offset, bytes, at->second});
  }

 private:
  TarShard& shard_;
  std::map<std::string, std::uint32_t> numbers_;
};

}  // namespace

std::optional<std::pair<std::string, std::string>> split_member(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  const std::size_t name = slash == std::string_view::npos ? 0 : slash + 1;
  const std::size_t dot = path.find('.', name);
  if (dot == std::string_view::npos || dot == name) return std::nullopt;
  const std::string_view first = path.substr(0, path.find('/'));
  if (first.size() >= 4 && first.starts_with("__") && first.ends_with("__")) return std::nullopt;
  std::string field(path.substr(dot + 1));
  for (char& c : field) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return std::pair(std::string(path.substr(0, dot)), std::move(field));
}

std::string_view TarShard::key(std::size_t sample) const {
  return std::string_view(keys).substr(samples[sample].key_at, samples[sample].key_bytes);
}

std::size_t TarShard::fields_end(std::size_t sample) const {
  return sample + 1 == samples.size() ? fields.size() : samples[sample + 1].first_field;
}

TarShard stat_shard(const std::filesystem::path& path) {
  TarShard shard;
  fill_status(path, -1, shard);
  return shard;
}

TarShard scan_shard(const std::filesystem::path& path, const std::atomic<bool>* stop) {
  const CloseDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.fd < 0) refuse(path, std::strerror(errno));
  TarShard shard;
  fill_status(path, file.fd, shard);
  if (const std::string_view kind = compression_of(file.fd); !kind.empty()) {
    refuse(path,
           fmt::format("is compressed ({}): samples are read in any order, which a compressed tar does not allow. "
                       "Pictures and sounds hardly shrink: unpack it once ({} -d) and name the .tar",
                       kind, kind));
  }
  if (shard.bytes == 0) refuse(path, "is empty, not a tar file");

  const std::unique_ptr<archive, int (*)(archive*)> tar(archive_read_new(), archive_read_free);
  MMT_CHECK(tar != nullptr, "no memory for a tar reader");
  archive* const a = tar.get();
  archive_read_support_format_tar(a);
  constexpr std::size_t kBlock = 16384;  // headers are what is read: contents are skipped by seeking
  int result = archive_read_open_fd(a, file.fd, kBlock);
  std::string last = "its first member";
  const auto damaged = [&](const char* what) {
    refuse(path, fmt::format("is damaged behind {}: {}; was it cut off? Fetch or pack it again", last, what));
  };
  Grouping grouping(shard);
  archive_entry* entry = nullptr;
  while (result == ARCHIVE_OK && (stop == nullptr || !*stop)) {
    result = archive_read_next_header(a, &entry);
    if (result == ARCHIVE_EOF) {
      if (archive_filter_bytes(a, 0) <= archive_read_header_position(a)) {
        refuse(path, fmt::format("ends behind {} without the end mark of a tar: it was cut off, or never closed. Fetch "
                                 "or pack it again (or, if it is whole, append 1024 zero bytes)",
                                 last));
      }
      break;
    }
    if (result == ARCHIVE_WARN) result = ARCHIVE_OK;  // of names that are not in the locale's encoding: bytes will do
    if (result != ARCHIVE_OK) break;
    const char* raw = archive_entry_pathname(entry);
    if (raw == nullptr) raw = archive_entry_pathname_utf8(entry);
    const std::string name = raw == nullptr ? "" : raw;
    last = fmt::format("{:?}", name.substr(0, 200));
    const std::int64_t offset = archive_filter_bytes(a, 0), bytes = archive_entry_size(entry);
    if (archive_entry_filetype(entry) != AE_IFREG || archive_entry_hardlink(entry) != nullptr) continue;
    if (bytes < 0 || offset < 0 || offset > shard.bytes || bytes > shard.bytes - offset) {
      refuse(path, fmt::format("is cut off inside {}, which has {} bytes from {} on; the file has {}. Fetch or pack it "
                               "again",
                               last, bytes, offset, shard.bytes));
    }
    if (name.size() > kMaxMemberName) refuse(path, fmt::format("a member's name has {} bytes: {}", name.size(), last));
    if (archive_entry_sparse_count(entry) > 0)
      refuse(path, fmt::format("{} is stored as a sparse file: pack it again without --sparse", last));
    if (shard.fields.size() == std::numeric_limits<std::uint32_t>::max()) refuse(path, "holds too many members");
    if (const auto split = split_member(name)) grouping.add(split->first, split->second, offset, bytes);
  }
  if (result != ARCHIVE_OK && result != ARCHIVE_EOF) {
    const char* what = archive_error_string(a);
    if (shard.fields.empty() && last == "its first member") {
      refuse(path, fmt::format("is not a tar file ({})", what == nullptr ? "it cannot be read" : what));
    }
    damaged(what == nullptr ? "it cannot be read" : what);
  }
  return shard;
}

}  // namespace mmt::data
