// Attention words: two 64-bit words a row say who may read whom, plus the row's place in its sample (`order`).
//   as query  sample:20 | group:20 | sees:24        as key  sample:20 | group:20 | is:24        (highest bits first)
// Sample and group ids are local to a block, class bits to a sample; the planner renumbers them. Sample 0 is padding:
// it reads nothing and nobody reads it. Group 0 is "no group".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace mmt {

inline constexpr int kSampleBits = 20;
inline constexpr int kGroupBits = 20;
inline constexpr int kClassBits = 24;
inline constexpr std::int64_t kMaxSampleId = (std::int64_t{1} << kSampleBits) - 1;
inline constexpr std::int64_t kMaxGroupId = (std::int64_t{1} << kGroupBits) - 1;

/// Class bits of `sees` and `is`. A sample with several items of one kind that must be told apart gives them item bits.
namespace row_class {
inline constexpr std::uint32_t kText = 1u << 0;
inline constexpr std::uint32_t kImage = 1u << 1;
inline constexpr std::uint32_t kAudio = 1u << 2;
inline constexpr std::uint32_t kVideo = 1u << 3;
inline constexpr std::uint32_t kFirstItem = 1u << 4;  ///< bits 4..22: free for single items of a sample
inline constexpr int kNumItemBits = 19;
/// Such a key is seen however far back it lies, where its other bits allow it: a window does not bind it.
inline constexpr std::uint32_t kSink = 1u << 23;
inline constexpr std::uint32_t kAll = (1u << 23) - 1;  ///< every class, without the sink mark
}  // namespace row_class

/// True when the ids fit their fields; what a planner asks before it packs a block.
constexpr bool word_fits(std::int64_t sample, std::int64_t group, std::uint64_t classes) {
  return sample >= 0 && sample <= kMaxSampleId && group >= 0 && group <= kMaxGroupId && (classes >> kClassBits) == 0;
}

/// The word of a row, as query (classes = what it sees) or as key (classes = what it is). Throws std::logic_error with
/// the values when an id does not fit, or when a padding row (sample 0) carries a group or classes.
std::uint64_t pack_word(std::int64_t sample, std::int64_t group, std::uint64_t classes);

constexpr std::uint32_t sample_of(std::uint64_t word) {
  return static_cast<std::uint32_t>(word >> (kGroupBits + kClassBits));
}
constexpr std::uint32_t group_of(std::uint64_t word) {
  return static_cast<std::uint32_t>(word >> kClassBits) & static_cast<std::uint32_t>(kMaxGroupId);
}
constexpr std::uint32_t classes_of(std::uint64_t word) {
  return static_cast<std::uint32_t>(word) & ((1u << kClassBits) - 1);
}

/// May the query row read the key row? `window` is an argument of the layer: 0 is unlimited, else the number of places
/// that a row reads back, itself included. It binds the causal clause only.
constexpr bool allowed(std::uint64_t query, std::int32_t query_order, std::uint64_t key, std::int32_t key_order,
                       std::int32_t window) {
  if (sample_of(query) == 0 || sample_of(query) != sample_of(key)) return false;
  if (group_of(query) != 0 && group_of(query) == group_of(key)) return true;
  if (query_order < key_order || (classes_of(query) & classes_of(key)) == 0) return false;
  const std::int64_t back = std::int64_t{query_order} - key_order;
  return window == 0 || back < window || (classes_of(key) & row_class::kSink) != 0;
}

/// The words of one mask over the rows of a block.
struct MaskWords {
  std::vector<std::uint64_t> query;
  std::vector<std::uint64_t> key;
  std::vector<std::int32_t> order;

  std::size_t rows() const { return order.size(); }
  /// Appends one row; checks as pack_word does. `order` >= 0.
  void push(std::int64_t sample, std::int64_t group, std::uint32_t sees, std::uint32_t is, std::int32_t place);
  void push_padding(std::int64_t count);
};

/// One side of a mask: the words that its rows use there (as query or as key) and their places.
struct MaskSide {
  std::span<const std::uint64_t> words;
  std::span<const std::int32_t> order;
};
inline MaskSide query_side(const MaskWords& w) { return {w.query, w.order}; }
inline MaskSide key_side(const MaskWords& w) { return {w.key, w.order}; }

}  // namespace mmt
