#include "core/at.h"
#include "core/mask/tiles.h"
#include "tests/support/random_masks.h"

#include <catch2/catch.hpp>

#include <chrono>
#include <set>
#include <stdexcept>

using namespace mmt;
using mmt::test::MaskMaker;
using mmt::test::RandomMask;

namespace {

struct Dense {
  std::vector<std::vector<bool>> allow;
  explicit Dense(const RandomMask& m) : allow(m.queries.rows(), std::vector<bool>(m.keys.rows())) {
    for (std::size_t q = 0; q < m.queries.rows(); ++q)
      for (std::size_t k = 0; k < m.keys.rows(); ++k)
        allow[q][k] = allowed(m.queries.query[q], m.queries.order[q], m.keys.key[k], m.keys.order[k], m.window);
  }
  std::int64_t pairs_in(std::int32_t q0, std::int32_t q1, std::int32_t k0, std::int32_t k1) const {
    std::int64_t n = 0;
    for (auto q = at(q0); q < at(q1); ++q)
      for (auto k = at(k0); k < at(k1); ++k) n += allow[q][k];
    return n;
  }
};

TileClass class_of(std::int64_t pairs, std::int64_t area) {
  return pairs == 0 ? TileClass::empty : pairs == area ? TileClass::full : TileClass::partial;
}

using Grid = std::vector<std::vector<TileClass>>;

Grid grid_of_runs(const std::vector<std::int32_t>& first_run, const std::vector<TileRun>& runs, std::int32_t rows,
                  std::int32_t columns) {
  Grid grid(at(rows), std::vector<TileClass>(at(columns), TileClass::empty));
  for (std::int32_t b = 0; b < rows; ++b)
    for (std::int32_t r = first_run[at(b)]; r < first_run[at(b) + 1]; ++r)
      for (std::int32_t t = runs[at(r)].first; t < runs[at(r)].last; ++t) grid[at(b)][at(t)] = runs[at(r)].kind;
  return grid;
}

/// Number of tiles, counts and patterns of the plan that differ from the dense mask.
int mistakes_of(const TilePlan& plan, const Dense& dense) {
  int wrong = 0;
  const Grid rows = grid_of_runs(plan.query_first_run, plan.query_runs, plan.query_blocks(), plan.key_blocks());
  const Grid columns = grid_of_runs(plan.key_first_run, plan.key_runs, plan.key_blocks(), plan.query_blocks());
  TileCounts counts;
  for (std::int32_t b = 0; b < plan.query_blocks(); ++b)
    for (std::int32_t k = 0; k < plan.key_blocks(); ++k) {
      const std::int32_t q0 = plan.query_start[at(b)], q1 = plan.query_start[at(b) + 1];
      const std::int32_t k0 = plan.key_start[at(k)], k1 = plan.key_start[at(k) + 1];
      const std::int64_t pairs = dense.pairs_in(q0, q1, k0, k1);
      const std::int64_t area = std::int64_t{q1 - q0} * (k1 - k0);
      const TileClass expected = class_of(pairs, area);
      wrong += rows[at(b)][at(k)] != expected;
      wrong += columns[at(k)][at(b)] != expected;
      (expected == TileClass::empty ? counts.empty : expected == TileClass::full ? counts.full : counts.partial) += 1;
      counts.pairs += pairs;
      if (expected != TileClass::empty) counts.area += area;
    }
  wrong += !(counts == plan.counts);
  if (!plan.shape.cut_at_samples) return wrong;
  const auto check_pattern = [&](std::int32_t b, std::int32_t k, std::int32_t place) {
    for (std::int32_t j = plan.key_start[at(k)]; j < plan.key_start[at(k) + 1]; ++j) {
      const std::uint64_t word = plan.bits[at(place + j - plan.key_start[at(k)])];
      std::uint64_t expected = 0;
      for (std::int32_t i = plan.query_start[at(b)]; i < plan.query_start[at(b) + 1]; ++i)
        if (dense.allow[at(i)][at(j)]) expected |= std::uint64_t{1} << (i - plan.query_start[at(b)]);
      wrong += word != expected;
    }
  };
  for (std::int32_t b = 0; b < plan.query_blocks(); ++b)
    for (std::int32_t r = plan.query_first_run[at(b)]; r < plan.query_first_run[at(b) + 1]; ++r)
      if (const TileRun& run = plan.query_runs[at(r)]; run.kind == TileClass::partial)
        for (std::int32_t k = run.first; k < run.last; ++k)
          check_pattern(b, k, plan.query_patterns[at(run.pattern + k - run.first)]);
  for (std::int32_t k = 0; k < plan.key_blocks(); ++k)
    for (std::int32_t r = plan.key_first_run[at(k)]; r < plan.key_first_run[at(k) + 1]; ++r)
      if (const TileRun& run = plan.key_runs[at(r)]; run.kind == TileClass::partial)
        for (std::int32_t b = run.first; b < run.last; ++b)
          check_pattern(b, k, plan.key_patterns[at(run.pattern + b - run.first)]);
  return wrong;
}

/// Runs ascend, hold no empty tiles, and are as long as they can be.
void check_runs(const std::vector<std::int32_t>& first_run, const std::vector<TileRun>& runs) {
  for (std::size_t b = 0; b + 1 < first_run.size(); ++b)
    for (std::int32_t r = first_run[b]; r < first_run[b + 1]; ++r) {
      REQUIRE(runs[at(r)].first < runs[at(r)].last);
      REQUIRE(runs[at(r)].kind != TileClass::empty);
      if (r == first_run[b]) continue;
      const TileRun& before = runs[at(r - 1)];
      REQUIRE(before.last <= runs[at(r)].first);
      REQUIRE((before.last < runs[at(r)].first || before.kind != runs[at(r)].kind));
    }
}

/// Every tile is worked on exactly once in each direction, and nothing exceeds the capacities.
void check_work(const TilePlan& plan) {
  std::vector<std::int32_t> tiles(at(plan.query_blocks()), 0), reached(at(plan.query_blocks()), 0);
  for (std::int32_t b = 0; b < plan.query_blocks(); ++b)
    for (std::int32_t r = plan.query_first_run[at(b)]; r < plan.query_first_run[at(b) + 1]; ++r)
      tiles[at(b)] += plan.query_runs[at(r)].last - plan.query_runs[at(r)].first;
  std::vector<ForwardItem> items = plan.forward;
  REQUIRE(std::is_sorted(items.begin(), items.end(), [](auto& a, auto& b) { return a.cost > b.cost; }));
  std::stable_sort(items.begin(), items.end(), [](const ForwardItem& a, const ForwardItem& b) {
    return a.query_block != b.query_block ? a.query_block < b.query_block : a.first < b.first;
  });
  std::set<std::int32_t> partials;
  std::vector<int> seen(at(plan.query_blocks()), 0);
  for (const ForwardItem& item : items) {
    REQUIRE(item.first == reached[at(item.query_block)]);
    reached[at(item.query_block)] = item.last;
    ++seen[at(item.query_block)];
    if (item.partial >= 0) REQUIRE(partials.insert(item.partial).second);
  }
  REQUIRE(reached == tiles);
  REQUIRE(std::all_of(seen.begin(), seen.end(), [](int n) { return n >= 1; }));
  REQUIRE(static_cast<std::int32_t>(partials.size()) == plan.num_partials);
  REQUIRE(plan.num_partials <= max_forward_partials(plan.key_rows));
  for (const ForwardMerge& merge : plan.merges) {
    REQUIRE(merge.count == seen[at(merge.query_block)]);
    std::int32_t expected = merge.first_partial;
    for (const ForwardItem& item : items)
      if (item.query_block == merge.query_block) REQUIRE(item.partial == expected++);
  }
  REQUIRE(plan.num_slots <= max_backward_slots(plan.key_rows));
  std::vector<int> keys(at(plan.key_blocks()), 0);
  for (const BackwardItem& item : plan.backward) {
    REQUIRE(item.slot < max_backward_slots(plan.key_rows));
    for (std::int32_t i = item.first; i < item.last; ++i) {
      const std::int32_t k = plan.backward_keys[at(i)];
      ++keys[at(k)];
      for (std::int32_t r = plan.key_first_run[at(k)]; r < plan.key_first_run[at(k) + 1]; ++r)
        for (std::int32_t b = plan.key_runs[at(r)].first; b < plan.key_runs[at(r)].last; ++b)
          REQUIRE(item.slot < plan.query_slots[at(b)]);
    }
  }
  REQUIRE(std::all_of(keys.begin(), keys.end(), [](int n) { return n == 1; }));
  // Own rows are touched by their item alone and the shared lists hold the other blocks.
  std::vector<int> touched(at(plan.query_blocks()), 0), owned(at(plan.query_blocks()), 0), shared_keys;
  for (const BackwardItem& item : plan.backward) {
    std::set<std::int32_t> queries;
    for (std::int32_t i = item.first; i < item.last; ++i) {
      const std::int32_t k = plan.backward_keys[at(i)];
      for (std::int32_t r = plan.key_first_run[at(k)]; r < plan.key_first_run[at(k) + 1]; ++r)
        for (std::int32_t b = plan.key_runs[at(r)].first; b < plan.key_runs[at(r)].last; ++b) queries.insert(b);
      if (!item.own) shared_keys.push_back(k);
      if (item.own) REQUIRE(k == plan.backward_keys[at(item.first)] + i - item.first);
    }
    for (const std::int32_t b : queries) {
      ++touched[at(b)];
      if (item.own) REQUIRE((b >= item.first_query && b < item.last_query));
    }
    if (!item.own) continue;
    REQUIRE(plan.query_start[at(item.last_query)] - plan.query_start[at(item.first_query)] <= kOwnRows);
    for (std::int32_t b = item.first_query; b < item.last_query; ++b) ++owned[at(b)];
  }
  std::sort(shared_keys.begin(), shared_keys.end());
  REQUIRE(std::vector<std::int32_t>(shared_keys.begin(), shared_keys.end()) == plan.shared_key_blocks);
  std::vector<std::int32_t> shared;
  for (std::int32_t b = 0; b < plan.query_blocks(); ++b) {
    REQUIRE(owned[at(b)] <= 1);
    if (owned[at(b)] == 1) REQUIRE(touched[at(b)] <= 1);
    if (owned[at(b)] == 0) shared.push_back(b);
  }
  REQUIRE(shared == plan.shared_query_blocks);
}

}  // namespace

TEST_CASE("mask tiles: classes and counts and patterns equal brute force on random masks") {
  MaskMaker maker(20240607);
  int partial_masks = 0, full_masks = 0;
  for (int n = 0; n < 3000; ++n) {
    const RandomMask m = maker.mask(n % 10 == 0 ? 300 : 90, maker.pick(1, 80));
    TileShape shape{maker.pick(1, 20), maker.pick(1, 24), maker.chance(70)};
    if (maker.chance(20)) shape = TileShape{};
    INFO(n << ": " << m.kind << ", tiles " << shape.query_rows << " x " << shape.key_rows);
    const TilePlan plan = make_tile_plan(query_side(m.queries), key_side(m.keys), m.window, shape);
    const Dense dense(m);
    REQUIRE(mistakes_of(plan, dense) == 0);
    REQUIRE(count_tiles(query_side(m.queries), key_side(m.keys), m.window, shape) == plan.counts);
    check_runs(plan.query_first_run, plan.query_runs);
    check_runs(plan.key_first_run, plan.key_runs);
    if (shape.cut_at_samples) check_work(plan);
    partial_masks += plan.counts.partial > 0;
    full_masks += plan.counts.full > 0;
  }
  CHECK(partial_masks > 1000);
  CHECK(full_masks > 1000);
}

TEST_CASE("mask tiles: a plan with one class dropped or widened is noticed") {
  MaskMaker maker(5);
  int noticed = 0, tried = 0;
  for (int n = 0; n < 60; ++n) {
    const RandomMask m = maker.mask(120, 60);
    TilePlan plan = make_tile_plan(query_side(m.queries), key_side(m.keys), m.window, {16, 16, true});
    if (plan.counts.partial == 0) continue;
    ++tried;
    for (TileRun& run : plan.query_runs)
      if (run.kind == TileClass::partial) {
        run.kind = TileClass::full;
        break;
      }
    noticed += mistakes_of(plan, Dense(m)) != 0;
  }
  CHECK(tried > 20);
  CHECK(noticed == tried);
}

TEST_CASE("mask tiles: golden counts") {
  using namespace row_class;
  MaskWords causal;
  for (int i = 0; i < 1024; ++i) causal.push(1, 0, kText, kText, i);
  // 8 x 8 tiles of 128: 28 below the diagonal, 8 on it.
  TileCounts c = count_tiles(query_side(causal), key_side(causal), 0, {128, 128, false});
  CHECK(c == TileCounts{.empty = 28, .full = 28, .partial = 8, .area = 36 * 128 * 128, .pairs = 1024 * 1025 / 2});
  // A window of 256: each row of tiles keeps the diagonal, one full tile and one cut by the window's edge.
  c = count_tiles(query_side(causal), key_side(causal), 256, {128, 128, false});
  CHECK(c.full == 7);
  CHECK(c.partial == 8 + 6);
  CHECK(c.pairs == 256 * 257 / 2 + (1024 - 256) * 256);
  // An encoder: every image reads itself only. Blocks end at the images; 100 = 48 + 48 + 4 query rows, 64 + 36 keys.
  MaskWords images;
  for (int image = 1; image <= 5; ++image)
    for (int i = 0; i < 100; ++i) images.push(image, 1, 0, 0, i);
  c = count_tiles(query_side(images), key_side(images), 0);
  CHECK(c ==
        TileCounts{.empty = 15 * 10 - 30, .full = 30, .partial = 0, .area = 5 * 100 * 100, .pairs = 5 * 100 * 100});
}

TEST_CASE("mask tiles: what a sample's tiles are does not depend on the pack") {
  MaskMaker maker(99);
  for (int n = 0; n < 200; ++n) {
    MaskWords alone, packed;
    for (int s = 1; s <= 3; ++s) maker.add_sample(packed, s, maker.pick(1, 150), maker.pick(0, 6));
    const auto offset = static_cast<std::int32_t>(packed.rows());
    const int rows = maker.pick(1, 200), kind = maker.pick(0, 6), window = maker.pick(0, 1) * maker.pick(1, 80);
    maker.add_sample(alone, 1, rows, kind);
    for (std::size_t i = 0; i < alone.rows(); ++i)
      packed.push(4, group_of(alone.query[i]), classes_of(alone.query[i]), classes_of(alone.key[i]), alone.order[i]);
    const TilePlan a = make_tile_plan(query_side(alone), key_side(alone), window);
    const TilePlan b = make_tile_plan(query_side(packed), key_side(packed), window);
    const std::int32_t blocks = b.query_blocks() - a.query_blocks();
    const std::int32_t key_blocks = b.key_blocks() - a.key_blocks();
    for (std::int32_t q = 0; q < a.query_blocks(); ++q) {
      REQUIRE(b.query_start[at(blocks + q)] == a.query_start[at(q)] + offset);
      const std::int32_t first = b.query_first_run[at(blocks + q)];
      REQUIRE(b.query_first_run[at(blocks + q) + 1] - first == a.query_first_run[at(q) + 1] - a.query_first_run[at(q)]);
      for (std::int32_t r = a.query_first_run[at(q)]; r < a.query_first_run[at(q) + 1]; ++r) {
        const TileRun& x = a.query_runs[at(r)];
        const TileRun& y = b.query_runs[at(first + r - a.query_first_run[at(q)])];
        REQUIRE((x.first + key_blocks == y.first && x.last + key_blocks == y.last && x.kind == y.kind));
      }
    }
  }
}

TEST_CASE("mask tiles: long queries and long samples are cut into items") {
  using namespace row_class;
  MaskWords keys, one;
  for (int i = 0; i < 20000; ++i) keys.push(1, 0, kText, kText, i);
  one.push(1, 0, kText, kText, 19999);
  const TilePlan decode = make_tile_plan(query_side(one), key_side(keys), 0);
  CHECK(decode.forward.size() == 5);  // 4096 key rows an item
  CHECK(decode.merges.size() == 1);
  check_work(decode);
  const TilePlan whole = make_tile_plan(query_side(keys), key_side(keys), 0);
  CHECK(whole.num_slots == 4);
  check_work(whole);
  const TileCounts c = count_tiles(query_side(keys), key_side(keys), 0);
  CHECK(c.pairs == std::int64_t{20000} * 20001 / 2);
}

TEST_CASE("mask tiles: planning does not grow with rows times rows") {
  using namespace row_class;
  // 2^20 rows of windowed text: rows x rows would be 10^12 pairs and 3.6 x 10^8 tiles.
  MaskWords w;
  for (int i = 0; i < 1 << 20; ++i) w.push(1, 0, kText, kText, i);
  const auto start = std::chrono::steady_clock::now();
  const TileCounts c = count_tiles(query_side(w), key_side(w), 4096);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  CHECK(c.pairs == std::int64_t{4096} * 4097 / 2 + ((std::int64_t{1} << 20) - 4096) * 4096);
  CHECK(seconds.count() < 2.0);
}

TEST_CASE("mask tiles: empty lists and wrong arguments") {
  const MaskWords none;
  MaskWords some;
  some.push(1, 0, 1, 1, 0);
  TilePlan plan = make_tile_plan(query_side(none), key_side(none), 0);
  CHECK(plan.query_blocks() == 0);
  CHECK(plan.counts.tiles() == 0);
  plan = make_tile_plan(query_side(some), key_side(none), 0);
  CHECK(plan.forward.size() == 1);
  plan = make_tile_plan(query_side(none), key_side(some), 0);
  CHECK(plan.backward.size() == 1);
  CHECK_THROWS_AS(make_tile_plan(query_side(some), key_side(some), -1), std::logic_error);
  CHECK_THROWS_AS(make_tile_plan(query_side(some), key_side(some), 0, {65, 64, true}), std::logic_error);
  MaskWords torn = some;
  torn.order.clear();
  CHECK_THROWS_AS(make_tile_plan(query_side(torn), key_side(some), 0), std::logic_error);
}
