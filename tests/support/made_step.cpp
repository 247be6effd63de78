#include "tests/support/made_step.h"

#include <algorithm>
#include <random>

namespace mmt::test {

MadeBatch make_batch(const std::vector<MadeSample>& samples, PictureShape picture, std::int64_t vocabulary) {
  MadeBatch batch;
  std::mt19937 random(1);
  std::uniform_int_distribution<std::int32_t> token(0, static_cast<std::int32_t>(vocabulary) - 1);
  std::normal_distribution<float> pixel;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const MadeSample& s = samples[i];
    batch.samples.push_back({0, static_cast<std::int64_t>(i), static_cast<std::int64_t>(i)});
    plan::SampleMeta meta;
    meta.id = static_cast<std::int64_t>(i);
    meta.rows = s.text + (s.picture ? picture.rows : 0);
    meta.supervised = s.supervised;
    data::LoadedSample loaded;
    if (s.picture) {
      meta.items.push_back({0, picture.rows, picture.rows + 1, picture.rows + 1, picture.rows});
      meta.runs.push_back({0, picture.rows, 0});
      data::LoadedItem item;
      item.values.resize(static_cast<std::size_t>(picture.rows * picture.cols));
      for (float& value : item.values) value = pixel(random);
      loaded.items.push_back(std::move(item));
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

app::Config made_config(const TowerSizes& eyes, std::int64_t image_size, const TowerSizes& llm,
                        std::int64_t vocabulary) {
  app::Config c;
  app::EncoderConfig& e = c.encoders.emplace_back();
  models::EncoderSpec& v = e.spec;
  v = models::encoder_preset("clip");
  v.name = "eyes";
  v.hidden = eyes.hidden;
  v.intermediate = eyes.intermediate;
  v.layers = eyes.layers;
  v.heads = eyes.heads;
  v.image_size = static_cast<int>(image_size);
  v.feature_layer = -1;
  e.image.height = e.image.width = v.image_size;
  models::LlmSpec& m = c.llm.spec;
  m = models::llm_preset("llama");
  m.name = "llm";
  m.vocabulary = vocabulary;
  m.hidden = llm.hidden;
  m.intermediate = llm.intermediate;
  m.layers = llm.layers;
  m.heads = llm.heads;
  m.kv_heads = llm.kv_heads;
  resolve(v, m.hidden);
  resolve(m);
  c.train.max_grad_norm = 1.0;
  return c;
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
