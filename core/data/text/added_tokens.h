// Added tokens: cut out of the text before anything else, leftmost first, the longest of those that begin there.
#pragma once

#include "core/data/text/bpe.h"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mmt::data {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false, lstrip = false, rstrip = false, normalized = false, special = false;
};

/// The tokens that are looked for in one pass (those for raw text, or those for normalised text).
class AddedTokenFinder {
 public:
  struct Hit {
    std::size_t begin = 0, end = 0;  ///< what the token takes away, white space of lstrip and rstrip included
    std::int32_t id = 0;
  };
  void add(const AddedToken& token);
  bool empty() const { return tokens_.empty(); }
  const AddedToken* find_token(std::string_view content) const;  ///< null: there is none
  /// Non-overlapping hits, ascending; `special`: special tokens count too.
  std::vector<Hit> find(std::string_view text, bool special) const;

 private:
  StringMap<AddedToken> tokens_;
  std::array<std::vector<std::size_t>, 256> lengths_;  // by first byte, descending
};

}  // namespace mmt::data
