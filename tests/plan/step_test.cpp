#include "parallel/plan/step.h"
#include "parallel/plan/verify.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

using namespace mmt;
using namespace mmt::plan;

namespace {

/// A sample of text, then per item its rows and text again; the last text's tail is supervised.
SampleMeta make_sample(std::int64_t id, std::vector<std::pair<std::int32_t, std::int64_t>> items, std::int64_t text,
                       std::int64_t supervised) {
  SampleMeta s;
  s.id = id;
  s.runs.push_back({-1, 1, 0});
  for (const auto& [encoder, rows] : items) {
    s.items.push_back({encoder, rows * 2, rows + 1, rows});
    s.runs.push_back({static_cast<std::int32_t>(s.items.size()) - 1, rows, 0});
  }
  s.runs.push_back({-1, text, supervised});
  for (const RunMeta& run : s.runs) s.rows += run.length;
  s.supervised = supervised;
  return s;
}

std::vector<SampleMeta> random_samples(std::mt19937& rng, int count) {
  std::vector<SampleMeta> list;
  for (int i = 0; i < count; ++i) {
    std::vector<std::pair<std::int32_t, std::int64_t>> items;
    for (unsigned k = rng() % 3; k > 0; --k) items.emplace_back(rng() % 2, 1 + rng() % 9);
    const std::int64_t text = 2 + rng() % 20;
    list.push_back(
        make_sample(1000 + i, items, text, 1 + static_cast<std::int64_t>(rng() % static_cast<unsigned>(text - 1))));
  }
  return list;
}

}  // namespace

TEST_CASE("an assignment places every sample once under the cap with equal block counts") {
  std::mt19937 rng(1);
  for (int round = 0; round < 200; ++round) {
    const std::vector<SampleMeta> samples = random_samples(rng, static_cast<int>(rng() % 30));
    const StepOptions options{1 + static_cast<int>(rng() % 5), 60 + static_cast<std::int64_t>(rng() % 60),
                              1 + static_cast<int>(rng() % 3)};
    const Assignment a = assign(samples, options);
    REQUIRE(a.samples.size() == static_cast<std::size_t>(options.lanes));
    REQUIRE(a.num_blocks >= options.min_blocks);
    std::multiset<std::int32_t> placed;
    std::vector<std::int64_t> loads;
    for (const auto& lane : a.samples) {
      REQUIRE(lane.size() == static_cast<std::size_t>(a.num_blocks));
      loads.push_back(0);
      for (const auto& block : lane) {
        std::int64_t rows = 0;
        for (const std::int32_t i : block) {
          rows += samples[static_cast<std::size_t>(i)].rows;
          placed.insert(i);
        }
        REQUIRE(rows <= options.block_rows);
        loads.back() += rows;
      }
    }
    REQUIRE(placed.size() == samples.size());
    REQUIRE(std::set<std::int32_t>(placed.begin(), placed.end()).size() == samples.size());
    // Longest first never leaves a lane above the mean by more than the longest sample (Graham 1969).
    std::int64_t total = 0, longest = 0;
    for (const SampleMeta& s : samples) {
      total += s.rows;
      longest = std::max(longest, s.rows);
    }
    REQUIRE(*std::ranges::max_element(loads) <= total / options.lanes + longest);
  }
}

TEST_CASE("an assignment depends on the samples and not on their order") {
  std::mt19937 rng(2);
  std::vector<SampleMeta> samples = random_samples(rng, 20);
  const auto ids = [](const std::vector<SampleMeta>& list, const Assignment& a) {
    std::vector<std::vector<std::set<std::int64_t>>> out;
    for (const auto& lane : a.samples) {
      out.emplace_back();
      for (const auto& block : lane) {
        out.back().emplace_back();
        for (const std::int32_t i : block) out.back().back().insert(list[static_cast<std::size_t>(i)].id);
      }
    }
    return out;
  };
  const StepOptions options{3, 100, 1};
  const auto first = ids(samples, assign(samples, options));
  std::ranges::shuffle(samples, rng);
  REQUIRE(ids(samples, assign(samples, options)) == first);
}

TEST_CASE("a sample above the cap is a bug that names it") {
  const SampleMeta big = make_sample(42, {}, 99, 1);
  REQUIRE_THROWS_WITH(assign(std::span(&big, 1), {1, 64, 1}),
                      Catch::Matchers::Contains("sample 42 has 100 rows, a block at most 64"));
}

TEST_CASE("rows of an LLM block agree with a row by row construction") {
  std::mt19937 rng(3);
  const std::int32_t windows[] = {0, 4};
  for (int round = 0; round < 50; ++round) {
    const std::vector<SampleMeta> samples = random_samples(rng, 6);
    const std::int32_t block[] = {1, 3, 4};
    const bool both_ways = round % 2 == 1;
    const RowsPlan p = llm_rows(samples, block, {2, {0, 4}, both_ways});
    REQUIRE(p.masks.size() == 2);
    std::int64_t row = 0;
    std::size_t supervised = 0;
    std::array<std::size_t, 2> port{};
    struct Origin {
      std::int32_t sample;
      std::int32_t item;
      std::int32_t place;
    };
    std::vector<Origin> origin;
    for (const std::int32_t index : block) {
      std::int32_t place = 0;
      for (const RunMeta& run : samples[static_cast<std::size_t>(index)].runs) {
        for (std::int64_t r = 0; r < run.length; ++r, ++row, ++place) {
          origin.push_back({index, run.item, place});
          REQUIRE(p.positions[static_cast<std::size_t>(row)] == place);
          if (run.item >= 0) {
            const auto e = static_cast<std::size_t>(
                samples[static_cast<std::size_t>(index)].items[static_cast<std::size_t>(run.item)].encoder);
            REQUIRE(p.ports[e].dst[port[e]++] == row);
          }
          if (r >= run.length - run.supervised) REQUIRE(p.supervised_rows[supervised++] == row);
        }
      }
    }
    REQUIRE(row == p.size.rows);
    REQUIRE(supervised == p.supervised_rows.size());
    for (std::size_t e = 0; e < 2; ++e) REQUIRE(port[e] == p.ports[e].dst.size());
    for (std::size_t q = 0; q < origin.size(); ++q) {
      for (std::size_t k = 0; k < origin.size(); ++k) {
        const bool same = origin[q].sample == origin[k].sample;
        const bool item = same && both_ways && origin[q].item >= 0 && origin[q].item == origin[k].item;
        for (std::size_t m = 0; m < 2; ++m) {
          const std::int32_t window = windows[m];
          const bool causal =
              same && origin[q].place >= origin[k].place && (window == 0 || origin[q].place - origin[k].place < window);
          REQUIRE(allowed(p.masks[m].query[q], p.masks[m].order[q], p.masks[m].key[k], p.masks[m].order[k], window) ==
                  (item || causal));
        }
      }
    }
  }
}

TEST_CASE("blocks are filled up to their quantum with rows that see nothing and belong to nobody") {
  std::mt19937 rng(5);
  const std::int32_t block[] = {0, 2};
  for (int round = 0; round < 20; ++round) {
    const std::vector<SampleMeta> samples = random_samples(rng, 3);
    const std::int64_t quantum = 1 + round % 5;
    const auto check = [&](const RowsPlan& plain, const RowsPlan& p) {
      const std::int64_t rows = plain.size.rows;
      REQUIRE(p.size.rows % quantum == 0);
      REQUIRE((p.size.rows >= rows && p.size.rows < rows + quantum));
      REQUIRE(p.positions.size() == static_cast<std::size_t>(p.size.rows));
      REQUIRE(p.masks[0].rows() == static_cast<std::size_t>(p.size.rows));
      for (std::int64_t r = rows; r < p.size.rows; ++r) {
        REQUIRE(p.masks[0].query[static_cast<std::size_t>(r)] == 0);
        REQUIRE(p.masks[0].key[static_cast<std::size_t>(r)] == 0);
      }
      REQUIRE(p.supervised_rows == plain.supervised_rows);
      REQUIRE(p.out_rows == plain.out_rows);
      REQUIRE((p.size.supervised == plain.size.supervised && p.size.out == plain.size.out));
      for (std::size_t e = 0; e < p.ports.size(); ++e) REQUIRE(p.ports[e].dst == plain.ports[e].dst);
    };
    const LlmRows rows{2, {0}, true};
    check(llm_rows(samples, block, rows), llm_rows(samples, block, rows, quantum));
    check(encoder_rows(samples, block, 0, {"eyes", 0}), encoder_rows(samples, block, 0, {"eyes", 0}, quantum));
  }
}

TEST_CASE("an encoder's rows are the items of the block in the order in which the LLM reads them") {
  const std::vector<SampleMeta> samples = {make_sample(5, {{0, 3}, {1, 2}, {0, 1}}, 4, 2),
                                           make_sample(6, {{1, 4}}, 4, 1)};
  const std::int32_t block[] = {0, 1};
  const RowsPlan eyes = encoder_rows(samples, block, 0, {"eyes", 1});
  REQUIRE(eyes.items.size() == 2);
  REQUIRE(eyes.size == BlockSize{.rows = 6, .supervised = 0, .source = 8, .out = 4, .tiles = eyes.size.tiles});
  REQUIRE(eyes.out_rows == std::vector<std::int32_t>{1, 2, 3, 5});
  REQUIRE(eyes.positions == std::vector<std::int32_t>{0, 1, 2, 3, 0, 1});
  const RowsPlan ears = encoder_rows(samples, block, 1, {"ears", 0});
  REQUIRE(ears.items.size() == 2);
  REQUIRE(ears.items[1].sample == 6);
  // Rows of an item see all of it and nothing else.
  for (std::size_t q = 0; q < 6; ++q) {
    for (std::size_t k = 0; k < 6; ++k) {
      REQUIRE(allowed(eyes.masks[0].query[q], eyes.masks[0].order[q], eyes.masks[0].key[k], eyes.masks[0].order[k],
                      0) == ((q < 4) == (k < 4)));
    }
  }
}

TEST_CASE("of rows that leave as means the first of each is named, and what fills none stays") {
  SampleMeta s;
  s.id = 3;
  s.items.push_back({.encoder = 0, .source_rows = 11, .inner_rows = 5, .rows = 2});
  s.items.push_back({.encoder = 0, .source_rows = 9, .inner_rows = 4, .rows = 2});
  s.runs = {{0, 2, 0}, {1, 2, 0}, {-1, 3, 1}};
  s.rows = 7;
  s.supervised = 1;
  const std::int32_t block[] = {0};
  const RowsPlan p = encoder_rows(std::span(&s, 1), block, 0, {.name = "ears", .pool = 2});
  REQUIRE(p.size == BlockSize{.rows = 9, .supervised = 0, .source = 20, .out = 4, .tiles = p.size.tiles});
  REQUIRE(p.out_rows == std::vector<std::int32_t>{0, 2, 5, 7});
  s.items[1].rows = 3;
  REQUIRE_THROWS_AS(encoder_rows(std::span(&s, 1), block, 0, {.name = "ears", .pool = 2}), std::logic_error);
}

TEST_CASE("rows of pictures turn by their place in the picture, and those of a frame see each other alone") {
  SampleMeta s;
  s.id = 3;
  s.items.push_back({.encoder = 0, .source_rows = 48, .inner_rows = 48, .rows = 12, .grid = {2, 2, 3}});
  s.items.push_back({.encoder = 0, .source_rows = 8, .inner_rows = 8, .rows = 2, .grid = {1, 2, 1}});
  s.runs = {{0, 12, 0}, {1, 2, 0}, {-1, 3, 1}};
  s.rows = 17;
  s.supervised = 1;
  const std::int32_t block[] = {0};
  const EncoderRows rows{.name = "eyes", .merge = 2, .grid = true};
  const RowsPlan p = encoder_rows(std::span(&s, 1), block, 0, rows, 3);
  REQUIRE(p.num_positions == 2);
  REQUIRE(p.size == BlockSize{.rows = 57, .supervised = 0, .source = 56, .out = 14, .tiles = p.size.tiles});
  // Row by row in the order of the patches: items, frames, squares, the rows and columns of a square.
  std::vector<std::int32_t> expected, out;
  std::vector<int> frame;
  int frames = 0;
  for (const ItemMeta& item : s.items) {
    for (int t = 0; t < item.grid[0]; ++t, ++frames)
      for (int y = 0; y < item.grid[1]; ++y)
        for (int x = 0; x < item.grid[2]; ++x) {
          out.push_back(static_cast<std::int32_t>(frame.size()));
          for (const auto& [dy, dx] : {std::pair(0, 0), {0, 1}, {1, 0}, {1, 1}}) {
            expected.insert(expected.end(), {2 * y + dy, 2 * x + dx});
            frame.push_back(frames);
          }
        }
  }
  REQUIRE(p.out_rows == out);
  expected.insert(expected.end(), {0, 0});
  REQUIRE(p.positions == expected);
  for (std::size_t q = 0; q < frame.size(); ++q)
    for (std::size_t k = 0; k < frame.size(); ++k)
      REQUIRE(allowed(p.masks[0].query[q], p.masks[0].order[q], p.masks[0].key[k], p.masks[0].order[k], 0) ==
              (frame[q] == frame[k]));
  s.items[0].rows = 13;
  REQUIRE_THROWS_AS(encoder_rows(std::span(&s, 1), block, 0, rows), std::logic_error);
}

TEST_CASE("tiles of a picture see themselves alone, and leave as one picture with newlines and without padding") {
  // Side 2; 2 x 3 tiles without a line at either end, and 1 x 1 without a column.
  const EncoderRows rows{.name = "eyes", .leading_rows = 1, .tile_side = 2};
  const auto picture = [](std::int64_t tiles_down, std::int64_t tiles_across, std::int64_t lines,
                          std::int64_t columns) {
    const std::int64_t tiles = 1 + tiles_down * tiles_across;
    return ItemMeta{.encoder = 0,
                    .source_rows = 4 * tiles,
                    .inner_rows = 5 * tiles,
                    .rows = 4 + (2 * tiles_down - 2 * lines) * (2 * tiles_across - 2 * columns + 1),
                    .tiles = {tiles_down, tiles_across, lines, columns}};
  };
  SampleMeta s;
  s.id = 4;
  s.items = {picture(2, 3, 1, 0), picture(1, 1, 0, 1)};
  s.runs = {{-1, 1, 0}, {0, s.items[0].rows, 0}, {1, s.items[1].rows, 0}, {-1, 2, 1}};
  s.rows = 3 + s.items[0].rows + s.items[1].rows;
  s.supervised = 1;
  const std::int32_t block[] = {0};
  const RowsPlan p = encoder_rows(std::span(&s, 1), block, 0, rows, 4);
  REQUIRE(p.size == BlockSize{.rows = 48, .supervised = 0, .source = 36, .out = 24, .tiles = p.size.tiles});
  REQUIRE(p.items[0].tiles == 7);
  REQUIRE(p.items[1].tiles == 2);
  // Inner rows: a class row and four patches of each tile. By hand.
  const std::vector<std::int32_t> leave = {1,  2,  3,  4,               // small
                                           8,  9,  13, 14, 18, 19, -1,  // the lower lines of the upper tiles
                                           21, 22, 26, 27, 31, 32, -1,  // the upper lines of the lower ones
                                           36, 37, 38, 39, -1, -1};     // no column is left, two lines are
  REQUIRE(p.out_rows == leave);
  for (std::size_t q = 0; q < 45; ++q) {
    REQUIRE(p.positions[q] == static_cast<std::int32_t>(q % 5));
    for (std::size_t k = 0; k < 48; ++k) {
      REQUIRE(allowed(p.masks[0].query[q], p.masks[0].order[q], p.masks[0].key[k], p.masks[0].order[k], 0) ==
              (k < 45 && q / 5 == k / 5));
    }
  }
  // In the LLM a picture is a run of rows as any other, newlines among them.
  const RowsPlan llm = llm_rows(std::span(&s, 1), block, {.num_encoders = 1, .windows = {0}});
  REQUIRE(llm.ports[0].dst.size() == leave.size());
  // Counts that do not belong to the tiles.
  const auto refused = [&](auto&& change) {
    SampleMeta wrong = s;
    change(wrong.items[0]);
    REQUIRE_THROWS_AS(encoder_rows(std::span(&wrong, 1), block, 0, rows), std::logic_error);
  };
  refused([](ItemMeta& m) { --m.rows; });  // a newline is missing
  refused([](ItemMeta& m) { ++m.tiles.trim_rows; });
  refused([](ItemMeta& m) { ++m.tiles.cols; });
  refused([](ItemMeta& m) { --m.source_rows; });
}

TEST_CASE("text goes on behind a picture at the larger of its height and width, and every sample starts anew") {
  SampleMeta s;
  s.id = 8;
  s.items.push_back({.encoder = 0, .source_rows = 24, .inner_rows = 24, .rows = 6, .grid = {1, 2, 3}});
  s.items.push_back({.encoder = 1, .source_rows = 4, .inner_rows = 2, .rows = 2});  // a sound
  s.items.push_back({.encoder = 0, .source_rows = 8, .inner_rows = 8, .rows = 2, .grid = {1, 2, 1}});
  s.runs = {{-1, 2, 0}, {0, 6, 0}, {-1, 1, 0}, {1, 2, 0}, {2, 2, 0}, {-1, 2, 1}};
  s.rows = 15;
  s.supervised = 1;
  const std::vector<SampleMeta> samples = {s, make_sample(9, {}, 3, 1)};
  const std::int32_t block[] = {0, 1};
  const RowsPlan p = llm_rows(samples, block, {.num_encoders = 2, .windows = {0}, .num_positions = 3}, 4);
  const std::vector<std::array<std::int32_t, 3>> expected = {
      {0, 0, 0},    {1, 1, 1},                                                 // text
      {2, 2, 2},    {2, 2, 3},    {2, 2, 4}, {2, 3, 2}, {2, 3, 3}, {2, 3, 4},  // 2 x 3
      {5, 5, 5},                                                               // text: 2 + 3
      {6, 6, 6},    {7, 7, 7},                                                 // a sound counts its rows
      {8, 8, 8},    {8, 9, 8},                                                 // 2 x 1
      {10, 10, 10}, {11, 11, 11},                                              // text: 8 + 2
      {0, 0, 0},    {1, 1, 1},    {2, 2, 2}, {3, 3, 3},                        // the other sample
      {0, 0, 0}};                                                              // the tail
  REQUIRE(p.num_positions == 3);
  REQUIRE(p.positions.size() == 3 * expected.size());
  for (std::size_t r = 0; r < expected.size(); ++r)
    for (std::size_t n = 0; n < 3; ++n) REQUIRE(p.positions[3 * r + n] == expected[r][n]);
  REQUIRE(p.samples[0].next_position == 12);
  REQUIRE(p.samples[1].next_position == 4);
  // One position a row counts rows, whatever they are.
  const RowsPlan one = llm_rows(samples, block, {.num_encoders = 2, .windows = {0}});
  REQUIRE(one.positions[14] == 14);
  REQUIRE(one.samples[0].next_position == 15);
}

TEST_CASE("rows of pictures and videos have transformers' positions") {
  std::ifstream file(std::string(MMT_TEST_DATA) + "/models/qwen2_vl_positions.txt");
  REQUIRE(file.good());
  std::string line, word;
  int cases = 0;
  while (std::getline(file, line)) {
    INFO(line);
    std::istringstream in(line);
    SampleMeta s;
    while (in >> word && word != ":") {
      const char kind = word[0];
      std::array<std::int64_t, 3> grid{0, 1, 1};
      std::istringstream sizes(word.substr(1));
      char times = 0;
      sizes >> grid[0];
      if (kind != 't') sizes >> times >> grid[1] >> times >> grid[2];
      const std::int64_t rows = grid[0] * grid[1] * grid[2];
      if (kind != 't') s.items.push_back({0, 4 * rows, 4 * rows, rows, grid});
      s.runs.push_back({kind == 't' ? -1 : static_cast<std::int32_t>(s.items.size()) - 1, rows, 0});
      s.rows += rows;
    }
    std::vector<std::int32_t> expected;
    for (std::int32_t position = 0; in >> position;) expected.push_back(position);
    constexpr std::int32_t kOnly[] = {0};
    const RowsPlan p = llm_rows(std::span(&s, 1), kOnly, {.num_encoders = 1, .windows = {0}, .num_positions = 3});
    CHECK(p.positions == expected);
    // In the tower, a frame's patches see each other alone: the mask's groups are its frames.
    const RowsPlan eyes = encoder_rows(std::span(&s, 1), kOnly, 0, {.name = "eyes", .merge = 2, .grid = true});
    std::int64_t pairs = 0;
    for (const ItemMeta& item : s.items)
      pairs += item.grid[0] * 16 * item.grid[1] * item.grid[1] * item.grid[2] * item.grid[2];
    std::int64_t seen = 0;
    const MaskWords& words = eyes.masks.at(0);
    for (std::size_t q = 0; q < words.query.size(); ++q) {
      for (std::size_t k = 0; k < words.key.size(); ++k)
        seen += allowed(words.query[q], words.order[q], words.key[k], words.order[k], 0) ? 1 : 0;
    }
    CHECK(seen == pairs);
    ++cases;
  }
  CHECK(cases == 5);
}
