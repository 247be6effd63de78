#include "tests/apps/checkpoint_file.h"

#include "core/hdf5/store.h"
#include "tests/apps/fixture.h"

#include <algorithm>
#include <set>
#include <stdexcept>

namespace mmt::app_test {
namespace {

std::vector<std::uint8_t> read_bytes(const h5::File& file, const std::string& name) {
  const h5::Info info = file.info(name);
  std::int64_t bytes = size_of(info.dtype);
  for (const std::int64_t d : info.shape) bytes *= d;
  std::vector<std::uint8_t> values(static_cast<std::size_t>(bytes));
  file.read(name, info.dtype, info.shape, values.data());
  return values;
}

}  // namespace

std::map<std::string, std::vector<std::uint8_t>> read_checkpoint(const std::filesystem::path& folder) {
  const h5::File file = h5::File::open((folder / "index.h5").string());
  std::map<std::string, std::vector<std::uint8_t>> tensors;
  for (const std::string& name : file.datasets()) tensors[name] = read_bytes(file, name);
  return tensors;
}

std::vector<std::string> checkpoint_differences(const std::filesystem::path& a, const std::filesystem::path& b) {
  const auto first = read_checkpoint(a), second = read_checkpoint(b);
  std::set<std::string> names;
  for (const auto& [name, bytes] : first) {
    const auto found = second.find(name);
    if (found == second.end() || found->second != bytes) names.insert(name);
  }
  for (const auto& [name, bytes] : second) {
    if (!first.contains(name)) names.insert(name);
  }
  return {names.begin(), names.end()};
}

std::vector<std::int64_t> saved_steps(const std::filesystem::path& run_folder) {
  std::vector<std::int64_t> steps;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(run_folder / "checkpoints", ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step_") && std::ranges::all_of(name.substr(5), [](char c) { return c >= '0' && c <= '9'; }))
      steps.push_back(std::stoll(name.substr(5)));
  }
  std::ranges::sort(steps);
  return steps;
}

void flip_bit(const std::filesystem::path& checkpoint, const std::string& tensor) {
  std::vector<std::uint8_t> values = read_checkpoint(checkpoint).at(tensor);
  // A run of bytes long enough to lie in one place of one file.
  const std::string needle(reinterpret_cast<const char*>(values.data()), std::min<std::size_t>(values.size(), 64));
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
    std::string bytes = read_text(entry.path());
    const std::size_t at = bytes.find(needle);
    if (at == std::string::npos) continue;
    if (bytes.find(needle, at + 1) != std::string::npos) throw std::runtime_error(tensor + " is not unique");
    bytes[at + 5] = static_cast<char>(bytes[at + 5] ^ 0x10);
    write_text(entry.path(), bytes);
    return;
  }
  throw std::runtime_error("the values of " + tensor + " were not found");
}

}  // namespace mmt::app_test
