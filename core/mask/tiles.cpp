#include "core/mask/tiles.h"

#include "core/at.h"
#include "core/error.h"
#include "core/mask/tile_sweep.h"

#include <algorithm>
#include <unordered_map>

namespace mmt {
namespace {

using tile_sweep::Side;
using tile_sweep::Sweep;

void check_shape_of(const TileShape& shape, std::int32_t window) {
  MMT_CHECK(shape.query_rows >= 1 && shape.query_rows <= 64 && shape.key_rows >= 1,
            "tiles of {} query rows and {} key rows", shape.query_rows, shape.key_rows);
  MMT_CHECK(window >= 0, "attention window {}", window);
}

void add_to(TileCounts& sum, const TileCounts& part) {
  sum.empty += part.empty;
  sum.full += part.full;
  sum.partial += part.partial;
  sum.area += part.area;
  sum.pairs += part.pairs;
}

/// Stores patterns, equal ones once.
class PatternStore {
 public:
  explicit PatternStore(std::vector<std::uint64_t>& bits) : bits_(bits) {}

  std::int32_t place_of(std::span<const std::uint64_t> words) {
    std::uint64_t hash = words.size();
    for (const std::uint64_t w : words) {
      hash = (hash ^ w) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 29;
    }
    for (auto [it, end] = known_.equal_range(hash); it != end; ++it) {
      const auto [place, size] = it->second;
      if (size == words.size() && std::equal(words.begin(), words.end(), bits_.begin() + place)) return place;
    }
    const auto place = static_cast<std::int32_t>(bits_.size());
    bits_.insert(bits_.end(), words.begin(), words.end());
    known_.emplace(hash, std::pair{place, words.size()});
    return place;
  }

 private:
  std::vector<std::uint64_t>& bits_;
  std::unordered_multimap<std::uint64_t, std::pair<std::int32_t, std::size_t>> known_;
};

void make_patterns(TilePlan& plan, const Side& queries, const Side& keys) {
  PatternStore store(plan.bits);
  std::vector<Segment> query_parts, key_parts;
  std::vector<std::uint64_t> words;
  for (std::int32_t b = 0; b < plan.query_blocks(); ++b) {
    queries.parts_of(b, query_parts);
    for (std::int32_t r = plan.query_first_run[at(b)]; r < plan.query_first_run[at(b) + 1]; ++r) {
      TileRun& run = plan.query_runs[at(r)];
      if (run.kind != TileClass::partial) continue;
      run.pattern = static_cast<std::int32_t>(plan.query_patterns.size());
      for (std::int32_t k = run.first; k < run.last; ++k) {
        keys.parts_of(k, key_parts);
        words.resize(at(keys.rows_of(k)));
        tile_sweep::tile_bits(query_parts, plan.query_start[at(b)], key_parts, plan.key_start[at(k)], plan.window,
                              words);
        plan.query_patterns.push_back(store.place_of(words));
      }
    }
  }
  // The transposed lists: partial tiles of a key block in the order of its query blocks.
  std::vector<std::int32_t> next(at(plan.key_blocks()) + 1, 0);
  std::int32_t total = 0;
  for (std::int32_t k = 0; k < plan.key_blocks(); ++k) {
    next[at(k)] = total;
    for (std::int32_t r = plan.key_first_run[at(k)]; r < plan.key_first_run[at(k) + 1]; ++r) {
      TileRun& run = plan.key_runs[at(r)];
      if (run.kind != TileClass::partial) continue;
      run.pattern = total;
      total += run.last - run.first;
    }
  }
  MMT_CHECK(at(total) == plan.query_patterns.size(), "tile plan: {} partial tiles by key, {} by query", total,
            plan.query_patterns.size());
  plan.key_patterns.resize(at(total));
  for (const TileRun& run : plan.query_runs)
    if (run.kind == TileClass::partial)
      for (std::int32_t k = run.first; k < run.last; ++k)
        plan.key_patterns[at(next[at(k)]++)] = plan.query_patterns[at(run.pattern + k - run.first)];
}

}  // namespace

TilePlan make_tile_plan(const MaskSide& queries, const MaskSide& keys, std::int32_t window, const TileShape& shape) {
  check_shape_of(shape, window);
  const Side q = tile_sweep::make_side(queries, shape.query_rows, shape.cut_at_samples);
  const Side k = tile_sweep::make_side(keys, shape.key_rows, shape.cut_at_samples);
  TilePlan plan;
  plan.shape = shape;
  plan.window = window;
  plan.query_rows = static_cast<std::int32_t>(queries.words.size());
  plan.key_rows = static_cast<std::int32_t>(keys.words.size());
  plan.query_start = q.start;
  plan.key_start = k.start;
  Sweep by_query(q, k, window, true);
  for (std::int32_t b = 0; b < q.blocks(); ++b) {
    plan.query_first_run.push_back(static_cast<std::int32_t>(plan.query_runs.size()));
    add_to(plan.counts, by_query.run(b, plan.query_runs));
  }
  plan.query_first_run.push_back(static_cast<std::int32_t>(plan.query_runs.size()));
  Sweep by_key(k, q, window, false);
  for (std::int32_t b = 0; b < k.blocks(); ++b) {
    plan.key_first_run.push_back(static_cast<std::int32_t>(plan.key_runs.size()));
    by_key.run(b, plan.key_runs);
  }
  plan.key_first_run.push_back(static_cast<std::int32_t>(plan.key_runs.size()));
  if (shape.cut_at_samples) {
    make_patterns(plan, q, k);
    make_work_lists(plan, queries, keys);
  }
  return plan;
}

TileCounts count_tiles(const MaskSide& queries, const MaskSide& keys, std::int32_t window, const TileShape& shape) {
  TileCounts sum;
  for (const TileCounts& c : count_tiles_by_block(queries, keys, window, shape)) add_to(sum, c);
  return sum;
}

std::vector<TileCounts> count_tiles_by_block(const MaskSide& queries, const MaskSide& keys, std::int32_t window,
                                             const TileShape& shape) {
  MMT_CHECK(shape.query_rows >= 1 && shape.key_rows >= 1 && window >= 0, "tiles of {} x {} rows, window {}",
            shape.query_rows, shape.key_rows, window);
  const Side q = tile_sweep::make_side(queries, shape.query_rows, shape.cut_at_samples);
  const Side k = tile_sweep::make_side(keys, shape.key_rows, shape.cut_at_samples);
  Sweep sweep(q, k, window, true);
  std::vector<TileCounts> counts;
  std::vector<TileRun> runs;
  for (std::int32_t b = 0; b < q.blocks(); ++b) {
    runs.clear();
    counts.push_back(sweep.run(b, runs));
  }
  return counts;
}

}  // namespace mmt
