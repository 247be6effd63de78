// Checkpoints of a run, read from outside the program.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace mmt::app_test {

/// All tensors of a checkpoint folder as bytes, by name ("model/...", "optimizer/...").
std::map<std::string, std::vector<std::uint8_t>> read_checkpoint(const std::filesystem::path& folder);

/// Names of the tensors whose bytes differ, or that one of the two lacks.
std::vector<std::string> checkpoint_differences(const std::filesystem::path& a, const std::filesystem::path& b);

/// Steps of the checkpoint folders of a run, ascending; folders in other states (".tmp") do not count.
std::vector<std::int64_t> saved_steps(const std::filesystem::path& run_folder);

/// Flips one bit in the stored values of a tensor.
void flip_bit(const std::filesystem::path& checkpoint, const std::string& tensor);

}  // namespace mmt::app_test
