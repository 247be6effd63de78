#include "core/mask/words.h"

#include <catch2/catch.hpp>

#include <stdexcept>

using namespace mmt;

TEST_CASE("attention word: fields survive packing") {
  const std::int64_t ids[] = {1, 2, 77, kMaxSampleId};
  const std::int64_t groups[] = {0, 1, 4095, kMaxGroupId};
  const std::uint64_t classes[] = {0, 1, row_class::kSink, row_class::kAll, (1u << 24) - 1};
  for (const auto sample : ids)
    for (const auto group : groups)
      for (const auto c : classes) {
        const std::uint64_t w = pack_word(sample, group, c);
        CHECK(sample_of(w) == static_cast<std::uint64_t>(sample));
        CHECK(group_of(w) == static_cast<std::uint64_t>(group));
        CHECK(classes_of(w) == c);
      }
  CHECK(pack_word(0, 0, 0) == 0);
  CHECK(pack_word(1, 0, 0) == std::uint64_t{1} << 44);
  CHECK(pack_word(0x12345, 0x6789a, 0xbcdef0) == 0x123456789abcdef0u);
}

TEST_CASE("attention word: what does not fit is refused") {
  CHECK_THROWS_AS(pack_word(kMaxSampleId + 1, 0, 0), std::logic_error);
  CHECK_THROWS_AS(pack_word(-1, 0, 0), std::logic_error);
  CHECK_THROWS_AS(pack_word(1, kMaxGroupId + 1, 0), std::logic_error);
  CHECK_THROWS_AS(pack_word(1, -1, 0), std::logic_error);
  CHECK_THROWS_AS(pack_word(1, 0, 1u << 24), std::logic_error);
  CHECK_THROWS_AS(pack_word(0, 1, 0), std::logic_error);
  CHECK_THROWS_AS(pack_word(0, 0, 1), std::logic_error);
  CHECK_FALSE(word_fits(kMaxSampleId + 1, 0, 0));
  CHECK(word_fits(kMaxSampleId, kMaxGroupId, row_class::kAll));
  MaskWords w;
  CHECK_THROWS_AS(w.push(1, 0, 1, 1, -1), std::logic_error);
  CHECK(w.rows() == 0);
}

namespace {

// The predicate once more, from plain fields and written as the table of who reads whom.
struct Row {
  int sample, group;
  unsigned sees, is;
  int order;
};
bool reads(const Row& q, const Row& k, int window) {
  if (q.sample == 0 || k.sample == 0 || q.sample != k.sample) return false;
  const bool same_group = q.group != 0 && k.group != 0 && q.group == k.group;
  const bool past = k.order <= q.order;
  const bool visible = (q.sees & k.is) != 0;
  const bool near = window == 0 || k.order > q.order - window || (k.is >> 23) != 0;
  return same_group || (past && visible && near);
}

}  // namespace

TEST_CASE("attention predicate: equals the table for every small combination") {
  std::vector<Row> rows;
  for (int sample = 0; sample < 3; ++sample)
    for (int group = 0; group < 3; ++group)
      for (const unsigned sees : {0u, 1u, 2u, 3u})
        for (const unsigned is : {0u, 1u, 2u, row_class::kSink | 1u})
          for (const int order : {0, 1, 5, 2147483647}) {
            if (sample == 0 && (group != 0 || sees != 0 || is != 0)) continue;
            rows.push_back({sample, group, sees, is, order});
          }
  int mismatches = 0, allowed_pairs = 0;
  for (const int window : {0, 1, 2, 5})
    for (const Row& q : rows)
      for (const Row& k : rows) {
        const bool a =
            allowed(pack_word(q.sample, q.group, q.sees), q.order, pack_word(k.sample, k.group, k.is), k.order, window);
        mismatches += a != reads(q, k, window);
        allowed_pairs += a;
      }
  CHECK(mismatches == 0);
  CHECK(allowed_pairs > 1000);
}

TEST_CASE("attention predicate: golden cases by hand") {
  using namespace row_class;
  MaskWords w;  // one sample: text, 2 image rows (bidirectional), text; then a second sample; then padding
  w.push(1, 0, kText | kImage, kText, 0);
  w.push(1, 7, kText | kImage, kImage, 1);
  w.push(1, 7, kText | kImage, kImage, 2);
  w.push(1, 0, kText | kImage, kText, 3);
  w.push(2, 0, kText, kText, 0);
  w.push_padding(1);
  const char* expected[] = {"100000", "111000", "111000", "111100", "000010", "000000"};
  for (std::size_t q = 0; q < 6; ++q) {
    std::string row;
    for (std::size_t k = 0; k < 6; ++k) row += allowed(w.query[q], w.order[q], w.key[k], w.order[k], 0) ? '1' : '0';
    CHECK(row == expected[q]);
  }
  // A window of 2 cuts text 3 from text 0 and image row 1; the group is not bound by it.
  CHECK_FALSE(allowed(w.query[3], 3, w.key[1], 1, 2));
  CHECK(allowed(w.query[3], 3, w.key[2], 2, 2));
  CHECK(allowed(w.query[1], 1, w.key[2], 2, 1));
}
