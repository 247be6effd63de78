#include "core/data/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace mmt::data {
namespace {

class Descriptor {
 public:
  explicit Descriptor(const std::filesystem::path& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

/// Size of a regular file; -1 with `problem` set otherwise.
std::int64_t regular_size(const Descriptor& file, std::string& problem) {
  struct stat status {};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0) {
    problem = std::strerror(errno);
    return -1;
  }
  if (!S_ISREG(status.st_mode)) {
    problem = S_ISDIR(status.st_mode) ? "is a folder" : "is not a regular file";
    return -1;
  }
  return status.st_size;
}

/// Reads up to `count` bytes; fewer only at the end of the file. Returns false with `problem` set on an error.
bool read_all(int fd, char* out, std::size_t count, std::size_t& done, std::string& problem) {
  done = 0;
  while (done < count) {
    const ssize_t n = ::read(fd, out + done, count - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      problem = std::strerror(errno);
      return false;
    }
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace

std::string read_text_file(const std::filesystem::path& path, std::int64_t max_bytes) {
  const Descriptor file(path);
  std::string problem;
  const std::int64_t size = regular_size(file, problem);
  if (size < 0) throw ConfigError(fmt::format("{}: {}", path.string(), problem));
  if (size > max_bytes) {
    throw ConfigError(fmt::format("{}: {} bytes, more than the {} that are accepted", path.string(), size, max_bytes));
  }
  std::string text(static_cast<std::size_t>(size), '\0');
  std::size_t done = 0;
  if (!read_all(file.get(), text.data(), text.size(), done, problem)) {
    throw ConfigError(fmt::format("{}: {}", path.string(), problem));
  }
  text.resize(done);
  return text;
}

}  // namespace mmt::data
