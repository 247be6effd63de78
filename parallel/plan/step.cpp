#include "parallel/plan/step.h"

#include "core/error.h"
#include "core/philox.h"

#include <algorithm>
#include <numeric>

namespace mmt::plan {
namespace {

/// Indices by falling rows; equal ones by id, so that the order of the input does not matter.
std::vector<std::int32_t> longest_first(std::span<const SampleMeta> samples) {
  std::vector<std::int32_t> order(samples.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](std::int32_t a, std::int32_t b) {
    const SampleMeta& x = samples[static_cast<std::size_t>(a)];
    const SampleMeta& y = samples[static_cast<std::size_t>(b)];
    return x.rows != y.rows ? x.rows > y.rows : x.id < y.id;
  });
  return order;
}

std::size_t least(const std::vector<std::int64_t>& loads) {
  return static_cast<std::size_t>(std::ranges::min_element(loads) - loads.begin());
}

/// Packs a lane's samples into `blocks` bins of `cap` rows; false when one does not fit.
bool pack(std::span<const SampleMeta> samples, const std::vector<std::int32_t>& lane, std::size_t blocks,
          std::int64_t cap, std::vector<std::vector<std::int32_t>>& out) {
  std::vector<std::int64_t> loads(blocks, 0);
  out.assign(blocks, {});
  for (const std::int32_t i : lane) {
    const std::int64_t rows = samples[static_cast<std::size_t>(i)].rows;
    const std::size_t bin = least(loads);
    if (loads[bin] + rows > cap) return false;
    loads[bin] += rows;
    out[bin].push_back(i);
  }
  for (auto& block : out) std::ranges::sort(block);
  return true;
}

}  // namespace

std::int64_t round_up(std::int64_t rows, std::int64_t quantum) { return (rows + quantum - 1) / quantum * quantum; }

std::uint64_t Assignment::hash() const {
  std::uint64_t h = hash64(static_cast<std::uint64_t>(num_blocks), samples.size());
  for (const auto& lane : samples) {
    for (const auto& block : lane) {
      h = hash64(h, block.size());
      for (const std::int32_t i : block) h = hash64(h, static_cast<std::uint64_t>(i));
    }
  }
  return h;
}

Assignment assign(std::span<const SampleMeta> samples, const StepOptions& options) {
  const auto lanes = static_cast<std::size_t>(options.lanes);
  std::vector<std::vector<std::int32_t>> of_lane(lanes);
  std::vector<std::int64_t> loads(lanes, 0);
  for (const std::int32_t i : longest_first(samples)) {
    const SampleMeta& s = samples[static_cast<std::size_t>(i)];
    MMT_CHECK(s.rows <= options.block_rows, "sample {} has {} rows, a block at most {}", s.id, s.rows,
              options.block_rows);
    const std::size_t lane = least(loads);
    loads[lane] += s.rows;
    of_lane[lane].push_back(i);
  }
  const std::int64_t heaviest = lanes == 0 ? 0 : *std::ranges::max_element(loads);
  Assignment a;
  a.samples.resize(lanes);
  a.num_blocks =
      std::max<int>(options.min_blocks, static_cast<int>((heaviest + options.block_rows - 1) / options.block_rows));
  a.num_blocks = std::max(a.num_blocks, 1);
  const auto fits = [&] {
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      if (!pack(samples, of_lane[lane], static_cast<std::size_t>(a.num_blocks), options.block_rows, a.samples[lane]))
        return false;
    }
    return true;
  };
  while (!fits()) ++a.num_blocks;
  return a;
}

namespace {

/// The block's tail: rows of no sample, which see nothing.
void fill_up(RowsPlan& p, MaskWords& words, std::int64_t quantum) {
  const std::int64_t tail = round_up(p.size.rows, quantum) - p.size.rows;
  words.push_padding(tail);
  p.positions.insert(p.positions.end(), static_cast<std::size_t>(tail * p.num_positions), 0);
  p.size.rows += tail;
}

void push_masks(RowsPlan& p, MaskWords words, std::span<const std::int32_t> windows) {
  for (const std::int32_t window : windows) {
    p.tiles.push_back(make_tile_plan(query_side(words), key_side(words), window));
    p.size.tiles = std::max(p.size.tiles, p.tiles.back().counts.tiles());
    p.masks.push_back(words);
  }
}

/// Appends the positions of a run that begins at position `start`; returns where the next one begins.
std::int32_t push_positions(RowsPlan& p, const RunMeta& run, const ItemMeta* item, std::int32_t start) {
  const auto at = [&](std::int64_t offset) { return static_cast<std::int32_t>(start + offset); };
  if (p.num_positions == 1 || item == nullptr || !item->is_grid()) {
    for (std::int64_t r = 0; r < run.length; ++r)
      p.positions.insert(p.positions.end(), static_cast<std::size_t>(p.num_positions), at(r));
    return at(run.length);
  }
  const auto [frames, height, width] = item->grid;
  MMT_CHECK(p.num_positions == 3 && frames * height * width == run.length, "{} positions, {} rows of {} x {} x {}",
            p.num_positions, run.length, frames, height, width);
  for (std::int64_t r = 0; r < run.length; ++r) {
    const std::int32_t row[] = {at(r / (height * width)), at(r / width % height), at(r % width)};
    p.positions.insert(p.positions.end(), std::begin(row), std::end(row));
  }
  return at(std::max(height, width));
}

/// Appends the inner rows of an item: their words and positions.
void push_inner_rows(RowsPlan& p, MaskWords& words, const ItemMeta& item, std::int64_t id, const EncoderRows& rows) {
  if (rows.tile_side > 0) {
    for (std::int64_t r = 0; r < item.inner_rows; ++r) {
      words.push(id, 1 + r / rows.tile_rows(), 0, 0, static_cast<std::int32_t>(r));
      p.positions.push_back(static_cast<std::int32_t>(r % rows.tile_rows()));
    }
    return;
  }
  if (!rows.grid) {
    for (std::int64_t r = 0; r < item.inner_rows; ++r) {
      words.push(id, id, 0, 0, static_cast<std::int32_t>(r));
      p.positions.push_back(static_cast<std::int32_t>(r));
    }
    return;
  }
  const auto [frames, height, width] = item.grid;
  const std::int64_t square = rows.merged();
  MMT_CHECK(item.is_grid() && frames * height * width * square == item.inner_rows,
            "{}: an item of {} inner rows is {} x {} x {} squares of {}", rows.name, item.inner_rows, frames, height,
            width, square);
  for (std::int64_t r = 0; r < item.inner_rows; ++r) {
    const std::int64_t of_all = r / square, in_frame = of_all % (height * width), in_square = r % square;
    words.push(id, 1 + of_all / (height * width), 0, 0, static_cast<std::int32_t>(r));
    p.positions.push_back(static_cast<std::int32_t>(in_frame / width * rows.merge + in_square / rows.merge));
    p.positions.push_back(static_cast<std::int32_t>(in_frame % width * rows.merge + in_square % rows.merge));
  }
}

void check_item(const ItemMeta& item, const EncoderRows& rows) {
  if (rows.tile_side == 0) {
    MMT_CHECK(rows.leading_rows + item.rows * rows.inner_per_row() <= item.inner_rows,
              "{}: an item of {} inner rows lets {} rows leave", rows.name, item.inner_rows, item.rows);
    return;
  }
  const TileGrid& t = item.tiles;
  const std::int64_t height = t.rows * rows.tile_side - 2 * t.trim_rows,
                     width = t.cols * rows.tile_side - 2 * t.trim_cols;
  MMT_CHECK(t.rows > 0 && t.cols > 0 && t.trim_rows >= 0 && t.trim_cols >= 0 && height >= 0 && width >= 0 &&
                item.inner_rows == t.count() * rows.tile_rows() &&
                item.source_rows == t.count() * rows.tile_side * rows.tile_side &&
                item.rows == rows.tile_side * rows.tile_side + height * (width + 1) && rows.merge == 1,
            "{}: an item of {} inner rows in {} x {} tiles without {} and {} lets {} rows leave", rows.name,
            item.inner_rows, t.rows, t.cols, t.trim_rows, t.trim_cols, item.rows);
}

/// Appends which inner rows leave, in the order in which they do.
void push_out_rows(RowsPlan& p, const ItemMeta& item, const EncoderRows& rows) {
  const auto put = [&](std::int64_t inner) { p.out_rows.push_back(static_cast<std::int32_t>(p.size.rows + inner)); };
  if (rows.tile_side == 0) {
    for (std::int64_t r = 0; r < item.rows; ++r) put(rows.leading_rows + r * rows.inner_per_row());
    return;
  }
  const TileGrid& t = item.tiles;
  const std::int64_t side = rows.tile_side;
  for (std::int64_t r = 0; r < side * side; ++r) put(rows.leading_rows + r);
  for (std::int64_t y = t.trim_rows; y < t.rows * side - t.trim_rows; ++y) {
    for (std::int64_t x = t.trim_cols; x < t.cols * side - t.trim_cols; ++x) {
      const std::int64_t tile = 1 + y / side * t.cols + x / side;
      put(tile * rows.tile_rows() + rows.leading_rows + y % side * side + x % side);
    }
    p.out_rows.push_back(-1);
  }
}

}  // namespace

RowsPlan llm_rows(std::span<const SampleMeta> samples, std::span<const std::int32_t> block, const LlmRows& rows,
                  std::int64_t quantum) {
  RowsPlan p;
  p.num_positions = rows.num_positions;
  MaskWords words;
  for (int e = 0; e < rows.num_encoders; ++e) p.ports.push_back({e, {}});
  std::int64_t local = 0;  // sample id within the block, from 1
  for (const std::int32_t index : block) {
    const SampleMeta& s = samples[static_cast<std::size_t>(index)];
    ++local;
    SamplePlan sample{.sample = s.id, .rows = {p.size.rows, s.rows}, .supervised = {p.size.supervised, 0}};
    std::int32_t place = 0;
    for (const RunMeta& run : s.runs) {
      const ItemMeta* item = run.item >= 0 ? &s.items[static_cast<std::size_t>(run.item)] : nullptr;
      const std::int64_t group = item != nullptr && rows.bidirectional_media ? run.item + 1 : 0;
      sample.next_position = push_positions(p, run, item, sample.next_position);
      for (std::int64_t r = 0; r < run.length; ++r, ++place) {
        const auto row = static_cast<std::int32_t>(p.size.rows + place);
        words.push(local, group, row_class::kAll, row_class::kText, place);
        if (item != nullptr) p.ports[static_cast<std::size_t>(item->encoder)].dst.push_back(row);
        if (r >= run.length - run.supervised) {
          p.supervised_rows.push_back(row);
          ++sample.supervised.count;
        }
      }
    }
    MMT_CHECK(place == s.rows && sample.supervised.count == s.supervised,
              "sample {}: runs give {} rows and {} labels, not {} and {}", s.id, place, sample.supervised.count, s.rows,
              s.supervised);
    p.size.rows += s.rows;
    p.size.supervised += sample.supervised.count;
    p.samples.push_back(sample);
  }
  fill_up(p, words, quantum);
  push_masks(p, std::move(words), rows.windows);
  return p;
}

RowsPlan encoder_rows(std::span<const SampleMeta> samples, std::span<const std::int32_t> block, int encoder,
                      const EncoderRows& rows, std::int64_t quantum) {
  RowsPlan p;
  p.num_positions = rows.num_positions();
  MaskWords words;
  for (const std::int32_t index : block) {
    const SampleMeta& s = samples[static_cast<std::size_t>(index)];
    for (const RunMeta& run : s.runs) {
      if (run.item < 0 || s.items[static_cast<std::size_t>(run.item)].encoder != encoder) continue;
      const ItemMeta& item = s.items[static_cast<std::size_t>(run.item)];
      const auto id = static_cast<std::int64_t>(p.items.size()) + 1;
      check_item(item, rows);
      p.items.push_back({.sample = s.id,
                         .ordinal = run.item,
                         .source = {p.size.source, item.source_rows},
                         .rows = {p.size.rows, item.inner_rows},
                         .out = {p.size.out, item.rows},
                         .tiles = rows.tile_side > 0 ? static_cast<std::int32_t>(item.tiles.count()) : 1});
      push_inner_rows(p, words, item, id, rows);
      push_out_rows(p, item, rows);
      p.size.rows += item.inner_rows;
      p.size.source += item.source_rows;
      p.size.out += item.rows;
    }
  }
  fill_up(p, words, quantum);
  constexpr std::int32_t kWhole[] = {0};
  push_masks(p, std::move(words), kWhole);
  return p;
}

}  // namespace mmt::plan
