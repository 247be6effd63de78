#include "core/data/records/record_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "core/error.h"

namespace mmt::data {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/// Finds where records begin and end, fed with the file piece by piece.
class Scanner {
 public:
  struct Span {
    std::int64_t begin, end;
    std::int32_t line;
  };
  Scanner(std::string path, std::vector<Span>& spans) : path_(std::move(path)), spans_(spans) {}

  void feed(std::string_view piece) {
    for (const char c : piece) {
      step(c);
      ++at_;
      if (c == '\n') {
        ++line_;
        line_start_ = at_;
      }
    }
  }

  void finish() {
    if (state_ == State::line && begin_ >= 0) close(at_);
    if (state_ == State::before) fail("the file is empty");
    if (state_ == State::array || state_ == State::element) {
      fail(fmt::format("the file ends inside {}; is it cut off?",
                       begin_ >= 0 ? fmt::format("sample {} (which begins in line {})", spans_.size(), begin_line_)
                                   : std::string("the array")));
    }
  }

 private:
  enum class State { before, array, element, after, line };

  [[noreturn]] void fail(const std::string& what) const {
    throw ConfigError(fmt::format("{}:{}:{}: {}", path_, line_, at_ - line_start_ + 1, what));
  }
  void open() {
    begin_ = at_;
    begin_line_ = line_;
  }
  void close(std::int64_t end) {
    spans_.push_back({begin_, end, static_cast<std::int32_t>(std::min<std::int64_t>(begin_line_, INT32_MAX))});
    begin_ = -1;
  }

  void step(char c) {
    switch (state_) {
      case State::before:
        if (at_ < 3 && c == "\xef\xbb\xbf"[at_]) return;  // byte order mark
        if (is_space(c)) return;
        if (c == '[') {
          state_ = State::array;
        } else if (c == '{') {
          state_ = State::line;
          open();
        } else {
          fail("neither a JSON array nor JSON lines (UTF-8): '[' or '{' is expected here");
        }
        return;
      case State::line:  // one record a line; a broken line is that record's own fault
        if (c == '\n') {
          if (begin_ >= 0) close(at_);
        } else if (begin_ < 0 && !is_space(c)) {
          open();
        }
        return;
      case State::array:  // between elements
        if (is_space(c)) return;
        if (c == ']') {
          if (comma_) fail("a value is expected after ','");
          state_ = State::after;
          return;
        }
        if (c == ',') {
          if (comma_ || spans_.empty()) fail("a value is expected before ','");
          comma_ = true;
          return;
        }
        if (!comma_ && !spans_.empty()) fail("',' or ']' is expected between samples");
        comma_ = false;
        open();
        state_ = State::element;
        depth_ = 0;
        quoted_ = escaped_ = false;
        inside(c);
        return;
      case State::element:
        if (depth_ == 0 && !quoted_ && (c == ',' || c == ']' || is_space(c))) {
          close(at_);
          state_ = State::array;
          return step(c);
        }
        inside(c);
        return;
      case State::after:
        if (!is_space(c)) fail("something follows the end of the array");
        return;
    }
  }

  void inside(char c) {
    if (quoted_) {
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == '"') {
        quoted_ = false;
      }
      if (quoted_ || depth_ > 0) return;
    } else if (c == '"') {
      quoted_ = true;
      return;
    } else if (c == '{' || c == '[') {
      ++depth_;
      return;
    } else if (c == '}' || c == ']') {
      --depth_;
    }
    if (depth_ == 0 && (c == '}' || c == ']' || c == '"')) {
      ++at_;
      close(at_);
      --at_;
      state_ = State::array;
    }
  }

  std::string path_;
  std::vector<Span>& spans_;
  State state_ = State::before;
  std::int64_t at_ = 0, line_ = 1, line_start_ = 0, begin_ = -1, begin_line_ = 0, depth_ = 0;
  bool quoted_ = false, escaped_ = false, comma_ = false;
};

}  // namespace

RecordFile RecordFile::open(const std::filesystem::path& path, const std::filesystem::path& media_root) {
  const std::string name = path.string();
  RecordFile file;
  file.path_ = path;
  file.media_root_ = media_root;
  file.descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (file.descriptor_ < 0 || ::fstat(file.descriptor_, &status) != 0) {
    throw ConfigError(fmt::format("{}: {}", name, std::strerror(errno)));
  }
  if (!S_ISREG(status.st_mode)) throw ConfigError(fmt::format("{}: is not a regular file", name));
  file.bytes_ = status.st_size;
  file.modified_ns_ = static_cast<std::int64_t>(status.st_mtim.tv_sec) * 1'000'000'000 + status.st_mtim.tv_nsec;

  std::vector<Scanner::Span> spans;
  Scanner scanner(name, spans);
  std::vector<char> buffer(std::size_t{1} << 20);
  for (std::int64_t at = 0;;) {
    const ssize_t n = ::pread(file.descriptor_, buffer.data(), buffer.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw ConfigError(fmt::format("{}: {}", name, std::strerror(errno)));
    if (n == 0) break;
    scanner.feed({buffer.data(), static_cast<std::size_t>(n)});
    at += n;
  }
  scanner.finish();
  if (spans.empty()) throw ConfigError(fmt::format("{}: the file holds no sample", name));
  file.offsets_.reserve(spans.size());
  file.lengths_.reserve(spans.size());
  file.lines_.reserve(spans.size());
  for (const auto& span : spans) {
    file.offsets_.push_back(span.begin);
    file.lengths_.push_back(static_cast<std::int32_t>(std::min<std::int64_t>(span.end - span.begin, INT32_MAX)));
    file.lines_.push_back(span.line);
  }
  return file;
}

RecordFile::~RecordFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

RecordFile::RecordFile(RecordFile&& other) noexcept { *this = std::move(other); }

RecordFile& RecordFile::operator=(RecordFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(media_root_, other.media_root_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(bytes_, other.bytes_);
  std::swap(modified_ns_, other.modified_ns_);
  std::swap(offsets_, other.offsets_);
  std::swap(lengths_, other.lengths_);
  std::swap(lines_, other.lines_);
  return *this;
}

std::string RecordFile::where(std::int64_t i) const {
  return fmt::format("{}:{}: sample {}", path_.string(), lines_.at(static_cast<std::size_t>(i)), i);
}

std::string RecordFile::text(std::int64_t i) const {
  const auto at = static_cast<std::size_t>(i);
  MMT_CHECK(i >= 0 && at < offsets_.size(), "sample {} of {}", i, offsets_.size());
  const std::int64_t length = lengths_[at];
  if (length > kMaxRecordBytes) {
    throw DataError(DataFault::bad_record, where(i), fmt::format("a record of {} bytes is not accepted", length));
  }
  std::string text(static_cast<std::size_t>(length), '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n =
        ::pread(descriptor_, text.data() + done, text.size() - done, offsets_[at] + static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      throw DataError(DataFault::bad_record, where(i),
                      n < 0 ? std::strerror(errno) : "the file has shrunk since it was opened");
    }
    done += static_cast<std::size_t>(n);
  }
  return text;
}

Record RecordFile::read(std::int64_t i) const {
  Record record = parse_record(text(i), where(i));
  find_media(record, media_root_, with_id(where(i), record.id));
  return record;
}

std::uint64_t RecordFile::stamp() const {
  const std::int64_t values[] = {bytes_, modified_ns_};
  return XXH3_64bits(values, sizeof values);
}

}  // namespace mmt::data
