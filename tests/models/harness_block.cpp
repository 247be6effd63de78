#include "tests/models/harness.h"

#include <random>

namespace mmt::test {

BlockData BlockData::text(const std::vector<std::vector<Piece>>& samples, int vocabulary, int num_ports,
                          std::vector<std::int32_t> windows, int num_positions, unsigned seed) {
  using namespace row_class;
  std::mt19937 rng(seed);
  const auto pick = [&](int n) { return static_cast<std::int32_t>(rng() % static_cast<unsigned>(n)); };
  BlockData b;
  plan::RowsPlan& p = b.plan;
  p.num_positions = num_positions;
  p.masks.resize(1);
  for (int k = 0; k < num_ports; ++k) p.ports.push_back({k, {}});
  std::int32_t row = 0;
  for (std::size_t s = 0; s < samples.size(); ++s) {
    plan::SamplePlan sample;
    sample.sample = static_cast<std::int64_t>(s);
    sample.rows.first = row;
    sample.supervised.first = static_cast<std::int64_t>(p.supervised_rows.size());
    std::vector<std::int32_t> ids, labels;
    std::int32_t place = 0;
    int group = 0;
    for (const Piece& piece : samples[s]) {
      if (piece.media > 0) ++group;
      for (int i = 0; i < piece.text + piece.media; ++i, ++row, ++place) {
        const bool media = piece.media > 0;
        ids.push_back(media ? -1 : pick(vocabulary));
        const bool label = !media && piece.supervised && place > 0;
        labels.push_back(label ? ids.back() : -100);
        if (label) p.supervised_rows.push_back(row - 1);
        p.masks[0].push(static_cast<std::int64_t>(s) + 1, media ? group : 0, kAll, media ? kImage : kText, place);
        for (int n = 0; n < num_positions; ++n) p.positions.push_back(n == 0 ? place : (media ? i % (n + 2) : place));
        if (media) p.ports[static_cast<std::size_t>(piece.port)].dst.push_back(row);
      }
    }
    sample.rows.count = row - sample.rows.first;
    sample.supervised.count = static_cast<std::int64_t>(p.supervised_rows.size()) - sample.supervised.first;
    p.samples.push_back(sample);
    std::vector<float> weights;
    for (std::size_t i = 0; i < ids.size(); ++i) weights.push_back(0.5F + static_cast<float>(pick(4)) * 0.25F);
    b.ids.push_back(std::move(ids));
    b.labels.push_back(std::move(labels));
    b.weights.push_back(std::move(weights));
  }
  p.masks.resize(windows.size(), p.masks[0]);
  for (std::size_t m = 0; m < windows.size(); ++m)
    p.tiles.push_back(make_tile_plan(query_side(p.masks[m]), key_side(p.masks[m]), windows[m]));
  for (const plan::PortRows& port : p.ports) b.port_rows.push_back(static_cast<std::int64_t>(port.dst.size()));
  p.size.rows = row;
  p.size.supervised = static_cast<std::int64_t>(p.supervised_rows.size());
  p.size.tiles = p.tiles[0].counts.tiles();
  return b;
}

namespace {

void finish_encoder(BlockData& b, unsigned seed) {
  plan::RowsPlan& p = b.plan;
  p.tiles.push_back(make_tile_plan(query_side(p.masks[0]), key_side(p.masks[0]), 0));
  p.size.rows = static_cast<std::int64_t>(p.masks[0].rows());
  p.size.out = static_cast<std::int64_t>(p.out_rows.size());
  p.size.tiles = p.tiles[0].counts.tiles();
  b.source = random_values(p.size.source * b.source_cols, seed);
}

void add_item(BlockData& b, std::int64_t source, std::int64_t rows, std::int64_t first_out) {
  plan::RowsPlan& p = b.plan;
  plan::ItemPlan item;
  item.sample = static_cast<std::int64_t>(p.items.size());
  item.source = {p.size.source, source};
  item.rows = {static_cast<std::int64_t>(p.masks[0].rows()), rows};
  item.out = {static_cast<std::int64_t>(p.out_rows.size()), rows - first_out};
  const std::int64_t number = item.sample + 1;
  for (std::int64_t i = 0; i < rows; ++i) {
    if (i >= first_out) p.out_rows.push_back(static_cast<std::int32_t>(item.rows.first + i));
    p.masks[0].push(number, number, 0, 0, static_cast<std::int32_t>(i));
    p.positions.push_back(static_cast<std::int32_t>(i));
  }
  p.size.source += source;
  p.items.push_back(item);
}

}  // namespace

BlockData BlockData::pictures(const std::vector<int>& patches, int patch_cols, bool class_token, bool full,
                              unsigned seed) {
  BlockData b;
  b.source_cols = patch_cols;
  b.plan.masks.resize(1);
  for (const int n : patches) add_item(b, n, n + (class_token ? 1 : 0), class_token && !full ? 1 : 0);
  finish_encoder(b, seed);
  return b;
}

BlockData BlockData::grids(const std::vector<std::array<std::int64_t, 3>>& grids, int merge, int patch_cols,
                           unsigned seed) {
  BlockData b;
  b.source_cols = patch_cols;
  plan::RowsPlan& p = b.plan;
  p.num_positions = 2;
  p.masks.resize(1);
  std::int32_t row = 0;
  for (std::size_t i = 0; i < grids.size(); ++i) {
    const auto [frames, height, width] = grids[i];
    const std::int64_t first = row;
    for (std::int64_t t = 0; t < frames; ++t)
      for (std::int64_t y = 0; y < height; ++y)
        for (std::int64_t x = 0; x < width; ++x) {
          p.out_rows.push_back(row);
          for (int dy = 0; dy < merge; ++dy)
            for (int dx = 0; dx < merge; ++dx, ++row) {
              p.positions.push_back(static_cast<std::int32_t>(y) * merge + dy);
              p.positions.push_back(static_cast<std::int32_t>(x) * merge + dx);
              p.masks[0].push(static_cast<std::int64_t>(i) + 1, t + 1, 0, 0, row - static_cast<std::int32_t>(first));
            }
        }
    const std::int64_t out = frames * height * width;
    p.items.push_back({static_cast<std::int64_t>(i),
                       0,
                       {first, row - first},
                       {first, row - first},
                       {static_cast<std::int64_t>(p.out_rows.size()) - out, out}});
  }
  p.size.source = row;
  finish_encoder(b, seed);
  return b;
}

BlockData BlockData::tiles(const std::vector<plan::TileGrid>& pictures, int side, int patch_cols, bool class_token,
                           unsigned seed) {
  const plan::EncoderRows rows{.name = "eyes", .leading_rows = class_token ? 1 : 0, .tile_side = side};
  plan::SampleMeta sample;
  for (const plan::TileGrid& t : pictures) {
    plan::ItemMeta& item = sample.items.emplace_back();
    item.source_rows = t.count() * side * side;
    item.inner_rows = t.count() * rows.tile_rows();
    item.rows = side * side + (t.rows * side - 2 * t.trim_rows) * (t.cols * side - 2 * t.trim_cols + 1);
    item.tiles = t;
    sample.runs.push_back({static_cast<std::int32_t>(sample.items.size()) - 1, item.rows, 0});
  }
  constexpr std::int32_t kOnly[] = {0};
  BlockData b;
  b.source_cols = patch_cols;
  b.plan = plan::encoder_rows(std::span(&sample, 1), kOnly, 0, rows);
  b.source = random_values(b.plan.size.source * patch_cols, seed);
  return b;
}

BlockData BlockData::clips(const std::vector<int>& frames, int mels, int pool, unsigned seed) {
  BlockData b;
  b.source_cols = mels;
  plan::RowsPlan& p = b.plan;
  p.masks.resize(1);
  for (const int n : frames) {
    add_item(b, n, pool > 1 ? n / 2 : (n + 1) / 2, 0);
    plan::ItemPlan& item = p.items.back();
    item.out.count = item.rows.count / pool;
    p.out_rows.resize(static_cast<std::size_t>(item.out.first));
    for (std::int64_t r = 0; r < item.out.count; ++r)
      p.out_rows.push_back(static_cast<std::int32_t>(item.rows.first + r * pool));
  }
  finish_encoder(b, seed);
  return b;
}

}  // namespace mmt::test
