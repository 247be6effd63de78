#include "core/metrics/append_file.h"

#include "core/error.h"
#include "core/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace mmt {

AppendFile::AppendFile(std::string path)
    : path_(std::move(path)), fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  if (fd_ < 0) throw Error(fmt::format("{}: cannot open: {}", path_, std::strerror(errno)));
}

AppendFile::~AppendFile() { ::close(fd_); }

bool AppendFile::append(std::string_view bytes) {
  const off_t start = ::lseek(fd_, 0, SEEK_END);
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int why = errno;
      if (!failing_)
        log::warning("{}: cannot write: {}; figures are left out until it works again", path_, std::strerror(why));
      failing_ = true;
      if (start >= 0 && ::ftruncate(fd_, start) != 0) log::warning("{}: a torn record is left in it", path_);
      return false;
    }
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  if (failing_) log::warning("{}: can be written again", path_);
  failing_ = false;
  return true;
}

}  // namespace mmt
