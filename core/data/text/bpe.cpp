#include "core/data/text/bpe.h"

#include "core/data/text/utf8.h"
#include "core/error.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <queue>

namespace mmt::data {
namespace {

constexpr std::uint64_t kEmpty = ~std::uint64_t{0};

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) | static_cast<std::uint32_t>(right);
}

std::size_t spread(std::uint64_t key) { return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15ULL) >> 20); }

}  // namespace

Bpe::Bpe() { byte_ids.fill(kNone); }

void Bpe::reserve_merges(std::size_t count) {
  MMT_CHECK(num_merges_ == 0, "merges were added already");
  table_.assign(std::bit_ceil(count * 2 + 2), Merge{});
}

void Bpe::add_merge(std::int32_t left, std::int32_t right, std::int32_t merged) {
  MMT_CHECK(static_cast<std::size_t>(num_merges_) * 2 < table_.size(), "more merges than were reserved");
  const std::uint64_t key = pair_key(left, right);
  const std::size_t mask = table_.size() - 1;
  std::size_t at = spread(key) & mask;
  while (table_[at].pair != kEmpty && table_[at].pair != key) at = (at + 1) & mask;
  table_[at] = {key, num_merges_++, merged};
}

const Bpe::Merge* Bpe::find(std::int32_t left, std::int32_t right) const {
  if (table_.empty()) return nullptr;
  const std::uint64_t key = pair_key(left, right);
  const std::size_t mask = table_.size() - 1;
  for (std::size_t at = spread(key) & mask; table_[at].pair != kEmpty; at = (at + 1) & mask) {
    if (table_[at].pair == key) return &table_[at];
  }
  return nullptr;
}

void Bpe::encode(std::string_view word, std::vector<std::int32_t>& ids) const {
  if (word.empty()) return;
  if (ignore_merges) {
    if (const auto it = words.find(word); it != words.end()) {
      ids.push_back(it->second);
      return;
    }
  }
  thread_local std::vector<std::int32_t> symbols;
  symbols.clear();
  characters ? add_characters(word, symbols) : add_bytes(word, symbols);
  constexpr std::size_t kShort = 24;  // below this the quadratic search over a few cache lines is the faster one
  if (symbols.size() <= kShort) {
    merge_short(symbols);
  } else {
    merge_long(symbols);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.end());
  if (symbols.capacity() > (std::size_t{1} << 16)) {  // one huge word must not stay in memory
    symbols.clear();
    symbols.shrink_to_fit();
  }
}

void Bpe::add_bytes(std::string_view word, std::vector<std::int32_t>& symbols) const {
  bool fuse = false;
  for (const char c : word) {
    const std::int32_t id = byte_ids[static_cast<std::uint8_t>(c)];
    if (id != kNone) {
      symbols.push_back(id);
      fuse = false;
    } else if (unknown != kNone && !fuse) {
      symbols.push_back(unknown);
      fuse = fuse_unknown;
    }
  }
}

void Bpe::add_characters(std::string_view word, std::vector<std::int32_t>& symbols) const {
  bool waiting = false;  // an unknown token is written before the next known character, behind bytes in between
  const auto flush = [&] {
    if (waiting) symbols.push_back(unknown);
    waiting = false;
  };
  std::uint32_t code = 0;
  for (std::size_t i = 0; i < word.size();) {
    const auto length = static_cast<std::size_t>(std::max(decode_utf8(word, i, code), 1));
    const std::string_view character = word.substr(i, length);
    i += length;
    if (const auto it = words.find(character); it != words.end()) {
      flush();
      symbols.push_back(it->second);
      continue;
    }
    const auto id_of = [&](char c) { return byte_ids[static_cast<std::uint8_t>(c)]; };
    if (std::ranges::all_of(character, [&](char c) { return id_of(c) != kNone; })) {
      for (const char c : character) symbols.push_back(id_of(c));
    } else if (unknown != kNone) {
      if (!fuse_unknown) flush();
      waiting = true;
    }
  }
  flush();
}

void Bpe::merge_short(std::vector<std::int32_t>& symbols) const {
  while (symbols.size() > 1) {
    const Merge* best = nullptr;
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const Merge* m = find(symbols[i], symbols[i + 1]);
      if (m != nullptr && (best == nullptr || m->rank < best->rank)) {
        best = m;
        at = i;
      }
    }
    if (best == nullptr) return;
    symbols[at] = best->merged;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

void Bpe::merge_long(std::vector<std::int32_t>& symbols) const {
  MMT_CHECK(symbols.size() < std::numeric_limits<std::int32_t>::max(), "word of {} bytes", symbols.size());
  struct Candidate {
    std::int32_t rank, at, merged;
    bool operator<(const Candidate& o) const { return rank != o.rank ? rank > o.rank : at > o.at; }  // least on top
  };
  const auto n = static_cast<std::int32_t>(symbols.size());
  std::vector<std::int32_t> next(symbols.size()), previous(symbols.size());
  std::priority_queue<Candidate> queue;
  const auto consider = [&](std::int32_t left) {
    const std::int32_t right = left >= 0 ? next[static_cast<std::size_t>(left)] : n;
    if (left < 0 || right >= n) return;
    const Merge* m = find(symbols[static_cast<std::size_t>(left)], symbols[static_cast<std::size_t>(right)]);
    if (m != nullptr) queue.push({m->rank, left, m->merged});
  };
  for (std::int32_t i = 0; i < n; ++i) {
    next[static_cast<std::size_t>(i)] = i + 1;
    previous[static_cast<std::size_t>(i)] = i - 1;
  }
  for (std::int32_t i = 0; i + 1 < n; ++i) consider(i);
  while (!queue.empty()) {
    const Candidate c = queue.top();
    queue.pop();
    const auto at = static_cast<std::size_t>(c.at);
    const std::int32_t right = next[at];
    if (symbols[at] == kNone || right >= n) continue;
    const auto r = static_cast<std::size_t>(right);
    const Merge* m = find(symbols[at], symbols[r]);
    if (m == nullptr || m->rank != c.rank) continue;  // one of the two has merged with something else since
    symbols[at] = m->merged;
    symbols[r] = kNone;
    next[at] = next[r];
    if (next[r] < n) previous[static_cast<std::size_t>(next[r])] = c.at;
    consider(previous[at]);
    consider(c.at);
  }
  std::erase(symbols, kNone);
}

}  // namespace mmt::data
