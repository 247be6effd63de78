// Whole files into memory, with a cap.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace mmt::data {

/// A configuration-like file. Throws ConfigError: missing, not a file, unreadable, larger than `max_bytes`.
std::string read_text_file(const std::filesystem::path& path, std::int64_t max_bytes);

}  // namespace mmt::data
