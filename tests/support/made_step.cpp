#include "tests/support/made_step.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace mmt::test {

MadeBatch make_batch(const std::vector<MadeSample>& samples, std::int64_t vocabulary, const MediumShape& picture,
                     const MediumShape& sound) {
  MadeBatch batch;
  std::mt19937 random(1);
  std::uniform_int_distribution<std::int32_t> token(0, static_cast<std::int32_t>(vocabulary) - 1);
  std::normal_distribution<float> value;
  std::size_t pictures = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const MadeSample& s = samples[i];
    batch.samples.push_back({0, static_cast<std::int64_t>(i), static_cast<std::int64_t>(i)});
    plan::SampleMeta meta;
    meta.id = static_cast<std::int64_t>(i);
    meta.rows = s.text;
    meta.supervised = s.supervised;
    data::LoadedSample loaded;
    for (const auto& [has, of] : {std::pair(s.picture, &picture), std::pair(s.sound, &sound)}) {
      if (!has) continue;
      MediumShape shape = *of;
      const MediumShape* m = &shape;
      const auto item = static_cast<std::int32_t>(meta.items.size());
      plan::ItemMeta& placed = meta.items.emplace_back();
      if (!m->grids.empty()) {
        placed.grid = m->grids[pictures++ % m->grids.size()];
        shape.rows = placed.grid[0] * placed.grid[1] * placed.grid[2];
        shape.source = shape.rows * shape.merged;
      }
      std::int64_t inner = m->rows * m->merged + m->leading + m->rest;
      if (!m->tilings.empty()) {
        const plan::TileGrid& t = placed.tiles = m->tilings[pictures++ % m->tilings.size()];
        const auto side = static_cast<std::int64_t>(std::lround(std::sqrt(static_cast<double>(of->rows))));
        inner = t.count() * (of->rows + m->leading);
        shape.source = t.count() * of->rows;
        shape.rows = of->rows + (t.rows * side - 2 * t.trim_rows) * (t.cols * side - 2 * t.trim_cols + 1);
      }
      meta.rows += m->rows;
      placed.encoder = m->encoder;
      placed.source_rows = m->source;
      placed.inner_rows = inner;
      placed.rows = m->rows;
      meta.runs.push_back({item, m->rows, 0});
      data::LoadedItem media;
      media.item = item;
      media.values.resize(static_cast<std::size_t>(m->source * m->cols));
      for (float& x : media.values) x = value(random);
      loaded.items.push_back(std::move(media));
    }
    meta.runs.push_back({-1, s.text - 1, s.supervised});  // the last row has no label to predict
    meta.runs.push_back({-1, 1, 0});
    for (std::int64_t row = 0; row < meta.rows; ++row) {
      const bool counts = row >= meta.rows - s.supervised;  // predicted by the row before
      loaded.input_ids.push_back(token(random));
      loaded.labels.push_back(counts ? token(random) : data::kIgnoreLabel);
      loaded.weights.push_back(counts ? 1.0f : 0.0f);
    }
    batch.rows += meta.rows;
    batch.metas.push_back(std::move(meta));
    batch.loaded.push_back(std::move(loaded));
  }
  return batch;
}

app::Config made_config(const TowerSizes& llm, std::int64_t vocabulary) {
  app::Config c;
  models::LlmSpec& m = c.llm.spec;
  m = models::llm_preset("llama");
  m.name = "llm";
  m.vocabulary = vocabulary;
  m.hidden = llm.hidden;
  m.intermediate = llm.intermediate;
  m.layers = llm.layers;
  m.heads = llm.heads;
  m.kv_heads = llm.kv_heads;
  resolve(m);
  c.train.max_grad_norm = 1.0;
  return c;
}

namespace {

app::EncoderConfig& add_encoder(app::Config& c, const char* kind, const char* name, const TowerSizes& sizes) {
  app::EncoderConfig& e = c.encoders.emplace_back();
  e.spec = models::encoder_preset(kind);
  e.spec.name = name;
  e.spec.hidden = sizes.hidden;
  e.spec.intermediate = sizes.intermediate;
  e.spec.layers = sizes.layers;
  e.spec.heads = sizes.heads;
  e.spec.feature_layer = -1;
  return e;
}

}  // namespace

MediumShape add_eyes(app::Config& c, const TowerSizes& eyes, std::int64_t image_size) {
  app::EncoderConfig& e = add_encoder(c, "clip", "eyes", eyes);
  e.spec.image_size = static_cast<int>(image_size);
  e.image.height = e.image.width = e.spec.image_size;
  resolve(e.spec, c.llm.spec.hidden);
  const std::int64_t side = image_size / e.spec.patch;
  return {.encoder = static_cast<int>(c.encoders.size()) - 1,
          .source = side * side,
          .cols = 3 * e.spec.patch * e.spec.patch,
          .rows = side * side,
          .leading = 1};
}

MediumShape add_eyes_of_any_size(app::Config& c, const TowerSizes& eyes,
                                 std::vector<std::array<std::int64_t, 3>> grids) {
  app::EncoderConfig& e = add_encoder(c, "qwen2_vl", "eyes", eyes);
  e.image.fit = data::ImageFit::dynamic;
  e.image.merge = e.spec.merge;
  e.image.frames = e.spec.frames;
  resolve(e.spec, c.llm.spec.hidden);
  const int pairs = c.llm.spec.head_dim / 2;
  c.llm.spec.mrope_section = {pairs / 4, pairs / 4, pairs - pairs / 4 * 2};
  MediumShape shape;
  shape.encoder = static_cast<int>(c.encoders.size()) - 1;
  shape.cols = e.image.cols();
  shape.grids = std::move(grids);
  shape.merged = std::int64_t{e.spec.merge} * e.spec.merge;
  return shape;
}

MediumShape add_eyes_of_tiles(app::Config& c, const TowerSizes& eyes, std::int64_t image_size,
                              std::vector<plan::TileGrid> tilings) {
  MediumShape shape = add_eyes(c, eyes, image_size);
  app::EncoderConfig& e = c.encoders.back();
  const int side = e.spec.image_size;
  for (const plan::TileGrid& t : tilings)
    e.spec.pinpoints.push_back({static_cast<int>(t.rows) * side, static_cast<int>(t.cols) * side});
  e.image.fit = data::ImageFit::tiles;
  shape.tilings = std::move(tilings);
  return shape;
}

MediumShape add_ears(app::Config& c, const TowerSizes& ears, int mels, std::int64_t frames) {
  app::EncoderConfig& e = add_encoder(c, "whisper", "ears", ears);
  e.spec.mels = e.audio.num_mel_bins = mels;
  resolve(e.spec, c.llm.spec.hidden);
  return {.encoder = static_cast<int>(c.encoders.size()) - 1, .source = frames, .cols = mels, .rows = (frames + 1) / 2};
}

MediumShape add_ears_that_pool(app::Config& c, const TowerSizes& ears, int mels, std::int64_t frames) {
  app::EncoderConfig& e = add_encoder(c, "qwen2_audio", "ears", ears);
  e.spec.mels = e.audio.num_mel_bins = mels;
  e.spec.projector.kind = "mlp2";
  resolve(e.spec, c.llm.spec.hidden);
  MediumShape shape;
  shape.encoder = static_cast<int>(c.encoders.size()) - 1;
  shape.source = frames;
  shape.cols = mels;
  shape.merged = e.spec.pool;
  shape.rows = frames / 2 / e.spec.pool;
  shape.rest = frames / 2 % e.spec.pool;
  return shape;
}

app::RowCaps caps_of(const app::PlannedStep& step) {
  app::RowCaps caps;
  for (const auto& blocks : step.rows) {
    plan::BlockSize cap;
    std::int64_t items = 0;
    for (const plan::RowsPlan& rows : blocks) {
      cap.rows = std::max(cap.rows, rows.size.rows);
      cap.supervised = std::max(cap.supervised, rows.size.supervised);
      cap.source = std::max(cap.source, rows.size.source);
      cap.out = std::max(cap.out, rows.size.out);
      cap.tiles = std::max(cap.tiles, rows.size.tiles);
      items = std::max(items, static_cast<std::int64_t>(rows.items.size()));
    }
    caps.encoders.push_back(cap);
    caps.encoder_items.push_back(items);
  }
  caps.llm = caps.encoders.back();
  caps.encoders.pop_back();
  caps.encoder_items.pop_back();
  return caps;
}

}  // namespace mmt::test
