#include "core/data/media/media_source.h"

#include "core/data/media/media_kind.h"
#include "core/data/natural_order.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace mmt::data {
namespace {

/// Value of a base64 digit, -1 for anything else.
int base64_digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : (c == '/' ? 63 : -1);
}

/// Strict but for missing padding. Returns false for anything that is no base64.
bool decode_base64(std::string_view text, std::vector<std::byte>& out) {
  if (text.size() % 4 == 0) text.remove_suffix(text.ends_with("==") ? 2 : (text.ends_with('=') ? 1 : 0));
  if (text.size() % 4 == 1) return false;
  out.reserve(text.size() / 4 * 3 + 2);
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const int digit = base64_digit(c);
    if (digit < 0) return false;
    bits = (bits << 6 | static_cast<std::uint32_t>(digit)) & 0xFFFFU;
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out.push_back(static_cast<std::byte>(bits >> count & 0xFFU));
  }
  return true;
}

}  // namespace

std::shared_ptr<const OpenFile> OpenFile::open(const std::filesystem::path& path, const std::string& where) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe is refused, not waited for
  struct stat status {};
  if (descriptor < 0 || ::fstat(descriptor, &status) != 0) {
    const std::string problem = std::strerror(errno);
    if (descriptor >= 0) ::close(descriptor);
    throw DataError(DataFault::missing_file, where, problem);
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(descriptor);
    throw DataError(DataFault::missing_file, where, S_ISDIR(status.st_mode) ? "is a folder" : "is not a regular file");
  }
  return std::shared_ptr<const OpenFile>(new OpenFile(descriptor, status.st_size));
}

OpenFile::~OpenFile() { ::close(descriptor_); }

std::vector<std::byte> OpenFile::read(std::int64_t offset, std::int64_t length, const std::string& where) const {
  std::vector<std::byte> bytes(static_cast<std::size_t>(length));
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n =
        ::pread(descriptor_, bytes.data() + done, bytes.size() - done, offset + static_cast<std::int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw DataError(DataFault::missing_file, where, std::strerror(errno));
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  bytes.resize(done);
  return bytes;
}

MediaSource::MediaSource(std::filesystem::path file) : name_(file.string()), path_(std::move(file)) {}

MediaSource MediaSource::stretch(std::shared_ptr<const OpenFile> file, std::int64_t offset, std::int64_t length,
                                 std::string name) {
  MediaSource source;
  source.name_ = std::move(name);
  source.file_ = std::move(file);
  source.offset_ = offset;
  source.length_ = length;
  return source;
}

MediaSource MediaSource::memory(std::vector<std::byte> bytes, std::string name) {
  MediaSource source;
  source.name_ = std::move(name);
  source.memory_ = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  return source;
}

MediaSource MediaSource::list(std::vector<MediaSource> pictures, std::string name) {
  MediaSource source;
  source.name_ = std::move(name);
  source.list_ = std::make_shared<const std::vector<MediaSource>>(std::move(pictures));
  return source;
}

bool MediaSource::is_list() const {
  if (list_) return true;
  std::error_code failed;
  return !path_.empty() && std::filesystem::is_directory(path_, failed);
}

std::vector<MediaSource> MediaSource::pictures(const std::string& where) const {
  if (list_) return *list_;
  constexpr std::size_t kMostFiles = 1'000'000;
  std::error_code failed;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator entry(path_, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with('.')) continue;
    const std::size_t dot = name.rfind('.');
    std::string ending = dot == std::string::npos ? "" : name.substr(dot + 1);
    for (char& c : ending) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if (is_unread_ending(ending) || ending == "gif") {
      throw DataError(DataFault::unsupported_media, where,
                      fmt::format("{} among the frames: they are jpg, png or webp pictures", name));
    }
    if (!is_picture_ending(ending)) continue;
    if (names.size() == kMostFiles)
      throw DataError(DataFault::too_many_frames, where, fmt::format("more than {} files", kMostFiles));
    names.push_back(name);
  }
  if (failed) throw DataError(DataFault::missing_file, where, failed.message());
  std::sort(names.begin(), names.end(), natural_less);
  std::vector<MediaSource> pictures;
  for (const std::string& name : names) pictures.emplace_back(path_ / name);
  return pictures;
}

std::vector<std::byte> MediaSource::read(const std::string& where, std::int64_t max_bytes, DataFault too_large,
                                         std::int64_t prefix) const {
  if (list_) throw DataError(DataFault::unsupported_media, where, "a list of pictures where one file is expected");
  const std::shared_ptr<const OpenFile> file = memory_ || file_ ? file_ : OpenFile::open(path_, where);
  const std::int64_t size = memory_ ? static_cast<std::int64_t>(memory_->size()) : (file_ ? length_ : file->size());
  if (size > max_bytes) {
    throw DataError(too_large, where, fmt::format("{} bytes, more than the {} that are accepted", size, max_bytes));
  }
  const std::int64_t wanted = prefix > 0 ? std::min(prefix, size) : size;
  if (memory_) return {memory_->begin(), memory_->begin() + wanted};
  std::vector<std::byte> bytes = file->read(offset_, wanted, where);
  // A file that shrinks while it is read is what its decoder says of it; a member must be whole.
  if (file_ && static_cast<std::int64_t>(bytes.size()) < wanted) {
    throw DataError(DataFault::missing_file, where, "the file has shrunk since it was opened");
  }
  return bytes;
}

bool is_data_uri(std::string_view text) { return text.starts_with("data:"); }

MediaSource data_uri_source(std::string_view uri, const std::string& where) {
  const std::string_view shown = uri.substr(0, 40);
  const auto refuse = [&](const std::string& why) -> void {
    throw DataError(DataFault::bad_record, where, fmt::format("data URI {:?}...: {}", shown, why));
  };
  if (static_cast<std::int64_t>(uri.size()) > kMaxDataUri) {
    refuse(fmt::format("{} bytes, more than the {} that are accepted", uri.size(), kMaxDataUri));
  }
  const std::size_t comma = uri.find(',');
  if (!is_data_uri(uri) || comma == std::string_view::npos || !uri.substr(0, comma).ends_with(";base64")) {
    refuse("only data:TYPE;base64,DATA is read");
  }
  std::vector<std::byte> bytes;
  if (!decode_base64(uri.substr(comma + 1), bytes)) refuse("what follows the comma is not base64");
  const std::size_t count = bytes.size();
  return MediaSource::memory(std::move(bytes),
                             fmt::format("{}, {} bytes", uri.substr(0, std::min<std::size_t>(comma, 40)), count));
}

}  // namespace mmt::data
