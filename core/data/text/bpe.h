// Byte-pair merging (Sennrich et al. 2016) over raw bytes, in the form of GPT-2, or over characters, in the form of
// SentencePiece: the pair of lowest rank merges first, the leftmost of equal ones. n log n in the length of the word.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace mmt::data {

/// Hash and equality that look strings up by view.
struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
};
template <class V> using StringMap = std::unordered_map<std::string, V, StringHash, std::equal_to<>>;

class Bpe {
 public:
  static constexpr std::int32_t kNone = -1;

  Bpe();

  /// Words are cut into characters (of valid UTF-8), those that the vocabulary lacks into bytes or the unknown token.
  bool characters = false;
  /// Token of each byte, kNone where the vocabulary lacks it. Of `characters`: those that stand for a byte.
  std::array<std::int32_t, 256> byte_ids;
  StringMap<std::int32_t> words;  ///< token of a byte string
  bool ignore_merges = false;     ///< a word that is a token is not merged from its bytes
  std::int32_t unknown = kNone;   ///< for bytes without a token
  bool fuse_unknown = false;

  /// Makes room for `count` merges; `add_merge` ranks them in the order of the calls (a repeated pair takes the last).
  void reserve_merges(std::size_t count);
  void add_merge(std::int32_t left, std::int32_t right, std::int32_t merged);

  /// Appends the tokens of one word.
  void encode(std::string_view word, std::vector<std::int32_t>& ids) const;

 private:
  void add_bytes(std::string_view word, std::vector<std::int32_t>& symbols) const;
  void add_characters(std::string_view word, std::vector<std::int32_t>& symbols) const;
  struct Merge {
    std::uint64_t pair = ~std::uint64_t{0};  // left << 32 | right
    std::int32_t rank = 0, merged = 0;
  };
  const Merge* find(std::int32_t left, std::int32_t right) const;
  void merge_short(std::vector<std::int32_t>& symbols) const;
  void merge_long(std::vector<std::int32_t>& symbols) const;

  std::vector<Merge> table_;  // open addressing, power of two, at most half full
  std::int32_t num_merges_ = 0;
};

}  // namespace mmt::data
