#include "core/data/text/added_tokens.h"

#include <algorithm>

#include "core/data/text/utf8.h"

namespace mmt::data {
namespace {

/// The code point that ends at `end`, or 0.
std::uint32_t code_before(std::string_view text, std::size_t end, std::size_t& begin) {
  std::uint32_t code = 0;
  for (std::size_t n = 1; n <= 4 && n <= end; ++n) {
    begin = end - n;
    if (decode_utf8(text, begin, code) == static_cast<int>(n)) return code;
  }
  return 0;
}

bool stands_alone(std::string_view text, std::size_t begin, std::size_t end) {
  std::size_t unused = 0;
  std::uint32_t code = 0;
  if (begin > 0 && is_word_character(code_before(text, begin, unused))) return false;
  return end >= text.size() || decode_utf8(text, end, code) == 0 || !is_word_character(code);
}

}  // namespace

void AddedTokenFinder::add(const AddedToken& token) {
  if (token.content.empty()) return;
  tokens_.insert_or_assign(token.content, token);
  auto& lengths = lengths_[static_cast<std::uint8_t>(token.content.front())];
  const auto at = std::lower_bound(lengths.begin(), lengths.end(), token.content.size(), std::greater<>());
  if (at == lengths.end() || *at != token.content.size()) lengths.insert(at, token.content.size());
}

const AddedToken* AddedTokenFinder::find_token(std::string_view content) const {
  const auto it = tokens_.find(content);
  return it == tokens_.end() ? nullptr : &it->second;
}

std::vector<AddedTokenFinder::Hit> AddedTokenFinder::find(std::string_view text, bool special) const {
  std::vector<Hit> hits;
  if (tokens_.empty()) return hits;
  std::size_t done = 0;  // text before this is taken
  for (std::size_t i = 0; i < text.size();) {
    std::size_t next = i + 1;
    for (const std::size_t length : lengths_[static_cast<std::uint8_t>(text[i])]) {
      if (length > text.size() - i) continue;
      const auto it = tokens_.find(text.substr(i, length));
      if (it == tokens_.end() || (it->second.special && !special)) continue;
      const AddedToken& token = it->second;
      std::size_t begin = i, end = i + length;
      if (token.single_word && !stands_alone(text, begin, end)) {
        next = end;  // the longest match decides, also where it is refused
        break;
      }
      std::size_t before = 0;
      std::uint32_t code = 0;
      if (token.lstrip) {
        while (begin > done && is_white_space(code_before(text, begin, before))) begin = std::max(before, done);
      }
      if (token.rstrip) {
        int n = 0;
        while (end < text.size() && (n = decode_utf8(text, end, code)) > 0 && is_white_space(code)) {
          end += static_cast<std::size_t>(n);
        }
      }
      hits.push_back({begin, end, token.id});
      done = next = end;
      break;
    }
    i = next;
  }
  return hits;
}

}  // namespace mmt::data
