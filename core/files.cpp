#include "core/files.h"

#include "core/error.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>
#include <utility>

namespace mmt::files {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& path, std::string_view action, int error) {
  throw Error(fmt::format("{}: {}: {}", path, action, std::strerror(error)));
}

class Descriptor {
 public:
  Descriptor(const std::string& path, int flags, mode_t mode = 0)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC, mode)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  bool good() const { return fd_ >= 0; }
  // On some file systems (NFS, quotas) a failed write is reported here first.
  bool close() { return ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

void write_all(int fd, std::string_view content, const std::string& path) {
  while (!content.empty()) {
    const ssize_t n = ::write(fd, content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path, "cannot write", errno);
    content.remove_prefix(static_cast<std::size_t>(n));
  }
}

std::string folder_of(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace

std::string read(const std::string& path, std::uint64_t max_bytes) {
  // O_NONBLOCK: opening a pipe must not wait for a writer before its kind is known.
  const Descriptor file(path, O_RDONLY | O_NONBLOCK);
  if (!file.good()) fail(path, "cannot open", errno);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) fail(path, "cannot stat", errno);
  if (S_ISDIR(info.st_mode)) throw Error(fmt::format("{}: is a folder, a file was expected", path));
  if (!S_ISREG(info.st_mode)) throw Error(fmt::format("{}: is not a regular file", path));
  const auto too_large = [&] { throw Error(fmt::format("{}: is larger than the limit of {} bytes", path, max_bytes)); };
  if (static_cast<std::uint64_t>(info.st_size) > max_bytes) too_large();
  // The size is a hint: the file may grow meanwhile, and files of /proc say 0.
  std::string content(static_cast<std::size_t>(info.st_size) + 1, '\0');
  std::size_t used = 0;
  for (;;) {
    const ssize_t n = ::read(file.get(), content.data() + used, content.size() - used);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path, "cannot read", errno);
    if (n == 0) break;
    used += static_cast<std::size_t>(n);
    if (used > max_bytes) too_large();
    if (used == content.size()) content.resize(2 * used + 4096);
  }
  content.resize(used);
  return content;
}

void sync(const std::string& path) {
  Descriptor file(path, O_RDONLY);
  if (!file.good()) fail(path, "cannot open", errno);
  // Some network file systems cannot sync a folder and need not: EINVAL.
  if (::fsync(file.get()) != 0 && errno != EINVAL) fail(path, "cannot sync", errno);
}

void write_atomic(const std::string& path, std::string_view content) {
  struct stat info {};
  const bool exists = ::stat(path.c_str(), &info) == 0;
  if (exists && !S_ISREG(info.st_mode)) throw Error(fmt::format("{}: is not a regular file", path));
  const mode_t mode = exists ? info.st_mode & 07777 : 0666;
  std::random_device random;
  // A link is replaced by what it points at, not by a file.
  std::error_code ignored;
  const std::string target = exists ? fs::canonical(path, ignored).string() : path;
  const std::string& final_path = ignored ? path : target;
  const std::string temporary = fmt::format("{}.{:08x}.tmp", final_path, random());
  Descriptor file(temporary, O_WRONLY | O_CREAT | O_EXCL, mode);
  if (!file.good()) fail(temporary, "cannot create", errno);
  try {
    write_all(file.get(), content, temporary);
    if (exists && ::fchmod(file.get(), mode) != 0) fail(temporary, "cannot set the mode", errno);
    if (::fsync(file.get()) != 0) fail(temporary, "cannot sync", errno);
    if (!file.close()) fail(temporary, "cannot close", errno);
    if (::rename(temporary.c_str(), final_path.c_str()) != 0) fail(final_path, "cannot replace", errno);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync(folder_of(final_path));
}

std::string join_inside(const std::string& root, std::string_view relative) {
  const auto refuse = [&](std::string_view why) {
    std::string shown(relative.substr(0, 200));
    for (char& c : shown) {
      if (static_cast<unsigned char>(c) < 0x20) c = '?';
    }
    throw Error(fmt::format("the path \"{}\" is refused: {}", shown, why));
  };
  if (relative.empty()) refuse("it is empty");
  if (relative.size() > 4096) refuse("it is longer than 4096 bytes");
  if (relative.find('\0') != std::string_view::npos) refuse("it holds a NUL byte");
  if (relative.front() == '/') refuse("it is absolute");
  const fs::path tail{std::string(relative)};
  for (const fs::path& part : tail) {
    if (part == "..") refuse("it leads upwards (..)");
  }
  const fs::path joined = fs::path(root) / tail;
  std::error_code error;
  // What is to be resolved below must be there: a link to nothing could lead anywhere later.
  fs::path at = root;
  for (const fs::path& part : tail) {
    at /= part;
    if (fs::is_symlink(at, error) && !fs::exists(at, error)) refuse("a symbolic link leads nowhere");
  }
  const fs::path real_root = fs::weakly_canonical(root, error);
  if (error) refuse(fmt::format("the folder {} cannot be resolved: {}", root, error.message()));
  const fs::path real = fs::weakly_canonical(joined, error);
  if (error) refuse(fmt::format("it cannot be resolved: {}", error.message()));
  const fs::path inside = real.lexically_relative(real_root);
  if (inside.empty() || *inside.begin() == "..") refuse(fmt::format("a symbolic link leads out of {}", root));
  return joined.lexically_normal().string();
}

Space space(const std::string& path) {
  fs::path at = path.empty() ? fs::path(".") : fs::path(path);
  struct statfs info {};
  std::error_code error;
  while (::statfs(at.c_str(), &info) != 0) {
    if (errno == EINTR) continue;
    const int why = errno;
    const fs::path up = at.has_parent_path() ? at.parent_path() : fs::path(".");
    if ((why != ENOENT && why != ENOTDIR) || up == at || at == ".") fail(path, "cannot read the free space", why);
    at = up;
  }
  constexpr struct {
    std::uint32_t magic;
    const char* name;
    bool shared;
  } kKnown[] = {{0xEF53, "ext4", false},      {0x58465342, "xfs", false},     {0x9123683E, "btrfs", false},
                {0x01021994, "tmpfs", false}, {0x794C7630, "overlay", false}, {0x2FC12FC1, "zfs", false},
                {0x6969, "nfs", true},        {0x0BD00BD0, "lustre", true},   {0x47504653, "gpfs", true},
                {0x19830326, "beegfs", true}, {0x00C36400, "ceph", true},     {0xFF534D42, "cifs", true},
                {0xFE534D42, "smb2", true},   {0x65735546, "fuse", true},     {0xAAD7AAEA, "panfs", true}};
  Space result;
  const auto block = static_cast<std::uint64_t>(info.f_bsize);
  result.total = info.f_blocks * block;
  result.available = info.f_bavail * block;
  const auto magic = static_cast<std::uint32_t>(info.f_type);
  result.filesystem = fmt::format("0x{:x}", magic);
  for (const auto& known : kKnown) {
    if (known.magic != magic) continue;
    result.filesystem = known.name;
    result.shared = known.shared;
  }
  return result;
}

}  // namespace mmt::files
