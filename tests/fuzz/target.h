// Parsers that take bytes from outside, as fuzz targets: each is a function of libFuzzer's form in a namespace of its
// own. A target passes when nothing but the project's own errors (mmt::Error) leaves the parser, within bounded time
// and memory. std::logic_error is a bug of ours, as are crashes and what sanitizers report.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace mmt::fuzz {

using Bytes = std::vector<std::uint8_t>;

struct Target {
  std::string name;
  int (*run)(const std::uint8_t* data, std::size_t size) = nullptr;  ///< LLVMFuzzerTestOneInput of the target
  std::vector<std::string> corpus;                                   ///< below tests/: files, or folder/*.ending
  std::vector<std::string> dictionary;                               ///< words that the format knows
  void (*mend)(Bytes&) = nullptr;  ///< makes checksums right, so that what they guard is reached
  bool planted = false;            ///< has a bug on purpose: for the driver's own test, never run unless named
};

/// All targets, by name. A target registers itself with a static Registration.
std::vector<Target>& targets();
struct Registration {
  explicit Registration(Target target) { targets().push_back(std::move(target)); }
};

/// The running target calls it for input that its parser accepted: the mutator goes on from there.
void accepted();

/// A file in memory with these bytes, replaced at every call: for parsers that open a path.
class MemoryFile {
 public:
  MemoryFile();
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  const std::string& with(const std::uint8_t* data, std::size_t size);

 private:
  int descriptor_;
  std::string path_;
};

}  // namespace mmt::fuzz
