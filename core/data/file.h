// Whole files into memory, with a cap.
#pragma once

#include "core/error.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace mmt::data {

/// A configuration-like file. Throws ConfigError: missing, not a file, unreadable, larger than `max_bytes`.
std::string read_text_file(const std::filesystem::path& path, std::int64_t max_bytes);

/// A media file of a sample, or its first `prefix` bytes (0: all). Throws DataError(missing_file) when it is missing or
/// cannot be read, DataError(too_large) when it has more than `max_bytes`.
std::vector<std::byte> read_media_file(const std::filesystem::path& path, const std::string& where,
                                       std::int64_t max_bytes, DataFault too_large, std::int64_t prefix = 0);

}  // namespace mmt::data
