// What a tar shard holds (WebDataset): samples are runs of members with one key; the key of a member is its path up to
// the first dot of its file name, the rest in small letters is its field ("d/0001.img1.JPG": "d/0001", "img1.jpg").
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mmt::data {

/// Key and field of a member. Nothing for names without a dot, hidden files and those of `__meta__` names, which belong
/// to no sample.
std::optional<std::pair<std::string, std::string>> split_member(std::string_view path);

/// The contents of one shard, compact: there may be millions of samples.
struct TarShard {
  struct Field {
    std::int64_t offset = 0, bytes = 0;  // of the content, in the shard
    std::uint32_t name = 0;              // index in field_names
  };
  struct Sample {
    std::uint64_t key_at = 0;
    std::uint32_t key_bytes = 0, first_field = 0;
  };
  std::int64_t bytes = 0, modified_ns = 0;  ///< of the file
  std::string keys;                         ///< one behind the other
  std::vector<std::string> field_names;     ///< each once
  std::vector<Sample> samples;              ///< in the order of the shard
  std::vector<Field> fields;                ///< those of sample i end where those of i + 1 begin

  std::string_view key(std::size_t sample) const;
  std::size_t fields_end(std::size_t sample) const;
};

/// Size and modification time, nothing else. Throws ConfigError when the file is missing or no regular file.
TarShard stat_shard(const std::filesystem::path& path);

/// Reads the headers of an uncompressed tar (contents are skipped). Throws ConfigError for what is no tar, compressed,
/// damaged or cut off, naming the last member. Ends early, with what it has, when `stop` is raised.
TarShard scan_shard(const std::filesystem::path& path, const std::atomic<bool>* stop = nullptr);

/// Shards as they were found, so that a second start does not read them again: name, size and time, contents.
struct KnownShard {
  std::string name;
  TarShard shard;
};
std::string write_known_shards(const std::vector<KnownShard>& shards);
/// Empty when the text is not such a file, damaged, or says something impossible.
std::vector<KnownShard> read_known_shards(std::string_view text);

}  // namespace mmt::data
