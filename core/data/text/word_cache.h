// Words seen before, with their tokens.
#pragma once

#include "core/data/text/bpe.h"

#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

namespace mmt::data {

/// Bounded: a full shard is emptied. Any number of threads may call it at once.
class WordCache {
 public:
  static constexpr std::size_t kMaxWordBytes = 64;  ///< longer words are not worth their room

  bool get(std::string_view word, std::vector<std::int32_t>& ids) const {
    const Shard& s = shard(word);
    const std::lock_guard lock(s.mutex);
    const auto it = s.words.find(word);
    if (it == s.words.end()) return false;
    ids.insert(ids.end(), it->second.begin(), it->second.end());
    return true;
  }
  void put(std::string_view word, std::span<const std::int32_t> ids) const {
    const Shard& s = shard(word);
    const std::lock_guard lock(s.mutex);
    if (s.words.size() >= kWords) s.words.clear();
    s.words.emplace(word, std::vector<std::int32_t>(ids.begin(), ids.end()));
  }

 private:
  static constexpr std::size_t kShards = 32, kWords = 2048;
  struct Shard {
    mutable std::mutex mutex;
    mutable StringMap<std::vector<std::int32_t>> words;
  };
  const Shard& shard(std::string_view word) const { return shards_[StringHash{}(word) % kShards]; }
  std::array<Shard, kShards> shards_;
};

}  // namespace mmt::data
