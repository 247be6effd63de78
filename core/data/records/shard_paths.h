// Which tar files a set's path means.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace mmt::data {

/// `a-{000..012}.tar` and `{x,y}.tar`, as shells expand them: numbers keep the width of the first where it has leading
/// zeros. Throws ConfigError for a pattern that is none or that means more than a million names.
std::vector<std::string> expand_braces(const std::string& pattern);

/// A tar, the tars of a folder by name (not of folders in it), or all that a brace pattern means. Throws ConfigError
/// when there is none, or one that a pattern names is missing.
std::vector<std::filesystem::path> shard_paths(const std::filesystem::path& path);

}  // namespace mmt::data
