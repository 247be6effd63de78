// Random attention masks of every kind that the product builds, for the tests of tiles and kernels.
#pragma once

#include "core/mask/words.h"

#include <algorithm>
#include <random>
#include <string>

namespace mmt::test {

struct RandomMask {
  std::string kind;
  MaskWords queries;  ///< its query words are used
  MaskWords keys;     ///< its key words are used
  std::int32_t window = 0;
};

class MaskMaker {
 public:
  explicit MaskMaker(unsigned seed) : rng_(seed) {}

  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng_); }
  bool chance(int percent) { return pick(1, 100) <= percent; }

  /// `kind`: 0 causal text, 1 full per item (encoder), 2 text with bidirectional images, 3 images hidden from each
  /// other, 4 prefix-LM, 5 text that does not read some items, 6 sinks.
  void add_sample(MaskWords& w, int sample, int rows, int kind) {
    using namespace row_class;
    int row = 0, item = 0;
    while (row < rows) {
      const int length = std::min(rows - row, pick(1, std::max(1, rows / 3)));
      const bool media = kind != 0 && (item % 2 == (kind == 4 ? 0 : 1));
      ++item;
      for (int i = 0; i < length; ++i, ++row) {
        if (kind == 0) {
          w.push(sample, 0, kText, kText, row);
        } else if (kind == 1) {
          w.push(sample, item, 0, 0, row);
        } else if (kind == 2) {
          w.push(sample, media ? item : 0, kText | kImage, media ? kImage : kText, row);
        } else if (kind == 3) {
          const std::uint32_t own = kFirstItem << (item % kNumItemBits);
          w.push(sample, media ? item : 0, media ? own : kAll, media ? own : kText, row);
        } else if (kind == 4) {
          w.push(sample, media && item == 1 ? 1 : 0, kText, kText, row);
        } else if (kind == 5) {
          w.push(sample, 0, media ? kImage : (item % 4 == 0 ? kText : kText | kImage), media ? kImage : kText, row);
        } else {
          w.push(sample, 0, kText, row < 3 ? (kText | kSink) : kText, row);
        }
      }
    }
  }

  MaskWords block(int max_rows, int max_sample_rows, std::string& kind_name) {
    MaskWords w;
    const int mode = pick(0, 8);  // one kind for the whole block, or mixed
    kind_name = "block kind " + std::to_string(mode);
    const int target = pick(1, max_rows);
    int sample = 1;
    if (chance(10)) w.push_padding(pick(1, 5));
    while (static_cast<int>(w.rows()) < target) {
      const int rows = std::min(target - static_cast<int>(w.rows()), pick(1, max_sample_rows));
      add_sample(w, sample++, rows, mode <= 6 ? mode : pick(0, 6));
    }
    if (chance(40)) w.push_padding(pick(1, 70));
    return w;
  }

  /// Some of the rows, in runs, perhaps out of order: what a context-parallel rank or a cross attention holds.
  MaskWords some_rows(const MaskWords& w) {
    std::vector<std::size_t> rows;
    for (std::size_t i = 0; i < w.rows();) {
      const auto length = static_cast<std::size_t>(pick(1, 90));
      if (chance(60))
        for (std::size_t j = i; j < std::min(i + length, w.rows()); ++j) rows.push_back(j);
      i += length;
    }
    if (chance(30) && rows.size() > 2)
      std::rotate(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(rows.size() / 2), rows.end());
    if (chance(10)) std::reverse(rows.begin(), rows.end());
    MaskWords out;
    for (const std::size_t r : rows) {
      out.query.push_back(w.query[r]);
      out.key.push_back(w.key[r]);
      out.order.push_back(w.order[r]);
    }
    return out;
  }

  RandomMask mask(int max_rows, int max_sample_rows) {
    RandomMask m;
    const MaskWords w = block(max_rows, max_sample_rows, m.kind);
    m.queries = chance(25) ? some_rows(w) : w;
    m.keys = chance(25) ? some_rows(w) : w;
    if (chance(40)) m.window = pick(1, std::max(1, max_sample_rows / 2));
    m.kind += " window " + std::to_string(m.window) + ", " + std::to_string(m.queries.rows()) + " x " +
              std::to_string(m.keys.rows());
    return m;
  }

 private:
  std::mt19937 rng_;
};

}  // namespace mmt::test
