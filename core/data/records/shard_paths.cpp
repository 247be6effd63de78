#include "core/data/records/shard_paths.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <system_error>

#include "core/error.h"

namespace mmt::data {
namespace {

constexpr std::size_t kMaxShards = 1'000'000;

bool whole_number(std::string_view text, std::int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && std::abs(value) <= 1'000'000'000;
}

/// What the inside of a pair of braces stands for; empty when it is neither a range nor a list.
std::vector<std::string> alternatives(std::string_view inside) {
  std::vector<std::string> words;
  if (const std::size_t dots = inside.find(".."); dots != std::string_view::npos) {
    const std::string_view first = inside.substr(0, dots), last = inside.substr(dots + 2);
    std::int64_t a = 0, b = 0;
    if (!whole_number(first, a) || !whole_number(last, b) || std::abs(b - a) >= std::int64_t{kMaxShards}) return {};
    const bool padded = (first.size() > 1 && first[0] == '0') || (last.size() > 1 && last[0] == '0');
    const std::size_t width = padded ? std::max(first.size(), last.size()) : 0;
    for (std::int64_t n = a;; n += a <= b ? 1 : -1) {
      words.push_back(fmt::format("{:0{}}", n, width));
      if (n == b) return words;
    }
  }
  for (std::size_t at = 0; inside.find(',') != std::string_view::npos;) {
    const std::size_t comma = inside.find(',', at);
    words.emplace_back(inside.substr(at, comma == std::string_view::npos ? comma : comma - at));
    if (comma == std::string_view::npos) break;
    at = comma + 1;
  }
  return words;
}

bool has_shard_name(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  if (name.starts_with('.')) return false;
  constexpr std::string_view kEndings[] = {".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz", ".tar.lz4"};
  return std::any_of(std::begin(kEndings), std::end(kEndings), [&](std::string_view e) { return name.ends_with(e); });
}

}  // namespace

std::vector<std::string> expand_braces(const std::string& pattern) {
  std::vector<std::string> done = {""};
  for (std::size_t at = 0; at < pattern.size();) {
    const std::size_t open = pattern.find('{', at);
    for (std::string& name : done) name += pattern.substr(at, open == std::string::npos ? open : open - at);
    if (open == std::string::npos) break;
    const std::size_t close = pattern.find('}', open);
    const std::vector<std::string> words =
        close == std::string::npos ? std::vector<std::string>{}
                                   : alternatives(std::string_view(pattern).substr(open + 1, close - open - 1));
    if (words.empty()) {
      throw ConfigError(fmt::format("{}: {:?} is neither a range such as {{000..123}} nor a list such as {{a,b}}",
                                    pattern,
                                    pattern.substr(open, close == std::string::npos ? close : close - open + 1)));
    }
    if (words.size() > kMaxShards / done.size()) {
      throw ConfigError(fmt::format("{}: means more than {} files", pattern, kMaxShards));
    }
    std::vector<std::string> longer;
    longer.reserve(done.size() * words.size());
    for (const std::string& name : done) {
      for (const std::string& word : words) longer.push_back(name + word);
    }
    done = std::move(longer);
    at = close + 1;
  }
  return done;
}

std::vector<std::filesystem::path> shard_paths(const std::filesystem::path& path) {
  std::error_code failed;
  if (std::filesystem::is_directory(path, failed)) {
    std::vector<std::filesystem::path> shards;
    for (auto entry = std::filesystem::directory_iterator(path, failed);
         !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
      if (has_shard_name(entry->path())) shards.push_back(entry->path());
    }
    if (failed) throw ConfigError(fmt::format("{}: {}", path.string(), failed.message()));
    if (shards.empty()) throw ConfigError(fmt::format("{}: the folder holds no .tar file", path.string()));
    std::sort(shards.begin(), shards.end());  // the order of a folder differs between file systems
    return shards;
  }
  if (path.string().find('{') == std::string::npos || std::filesystem::exists(path, failed)) return {path};
  const std::vector<std::string> names = expand_braces(path.string());
  const auto missing = [](const std::string& name) {
    std::error_code ignored;
    return !std::filesystem::exists(name, ignored);
  };
  if (const auto first = std::find_if(names.begin(), names.end(), missing); first != names.end()) {
    throw ConfigError(fmt::format("{}: {} of {} shards are missing, the first is {}", path.string(),
                                  std::count_if(first, names.end(), missing), names.size(), *first));
  }
  return {names.begin(), names.end()};
}

}  // namespace mmt::data
