#include "tests/fuzz/target.h"

#include <sys/mman.h>
#include <unistd.h>

#include <stdexcept>

namespace mmt::fuzz {

std::vector<Target>& targets() {
  static std::vector<Target> all;
  return all;
}

MemoryFile::MemoryFile() : descriptor_(::memfd_create("fuzz", MFD_CLOEXEC)) {
  if (descriptor_ < 0) throw std::runtime_error("no file in memory");
  path_ = "/proc/self/fd/" + std::to_string(descriptor_);
}

MemoryFile::~MemoryFile() { ::close(descriptor_); }

const std::string& MemoryFile::with(const std::uint8_t* data, std::size_t size) {
  if (::ftruncate(descriptor_, 0) != 0 || ::pwrite(descriptor_, data, size, 0) != static_cast<ssize_t>(size)) {
    throw std::runtime_error("the file in memory cannot be written");
  }
  return path_;
}

}  // namespace mmt::fuzz
