// Whole training steps of a small model of pictures and text on the fast kernels.
#include "apps/mmtrain/engine.h"
#include "kernels/backend.h"
#include "parallel/comm/self.h"
#include "parallel/run/optimizer.h"

#include "core/arena.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>

using namespace mmt;

namespace {

constexpr std::int64_t kPictureRows = 16;         // (56 / 14)^2 patches
constexpr std::int64_t kPatchCols = 3 * 14 * 14;  // colours of a patch

struct Sample {
  std::int64_t text = 0;
  bool picture = false;
};

app::Config small_config(DType dtype, std::int64_t rows) {
  app::Config c;
  app::EncoderConfig eyes;
  models::EncoderSpec& v = eyes.spec;
  v = models::encoder_preset("clip");
  v.name = "eyes";
  v.hidden = 32;
  v.intermediate = 64;
  v.layers = 2;
  v.heads = 2;
  v.image_size = 56;
  v.feature_layer = -1;
  eyes.image.height = eyes.image.width = 56;
  models::LlmSpec& m = c.llm.spec;
  m = models::llm_preset("llama");
  m.name = "llm";
  m.vocabulary = 301;
  m.hidden = 64;
  m.intermediate = 96;
  m.layers = 2;
  m.heads = 4;
  m.kv_heads = 2;
  resolve(v, m.hidden);
  resolve(m);
  c.encoders.push_back(eyes);
  c.train.precision = dtype;
  c.train.max_grad_norm = 1.0;
  c.train.tokens_per_microbatch = rows;
  return c;
}

struct Batch {
  std::vector<app::PlannedSample> samples;
  std::vector<plan::SampleMeta> metas;
  std::vector<data::LoadedSample> loaded;
  std::int64_t rows = 0;
};

Batch make_batch(const std::vector<Sample>& samples) {
  Batch batch;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const Sample& s = samples[i];
    batch.samples.push_back({0, static_cast<std::int64_t>(i), static_cast<std::int64_t>(i)});
    plan::SampleMeta meta;
    meta.id = static_cast<std::int64_t>(i);
    meta.rows = s.text + (s.picture ? kPictureRows : 0);
    meta.supervised = s.text / 2;
    data::LoadedSample loaded;
    if (s.picture) {
      meta.items.push_back({0, kPictureRows, kPictureRows + 1, kPictureRows + 1, kPictureRows});
      meta.runs.push_back({0, kPictureRows, 0});
      data::LoadedItem item;
      for (std::int64_t k = 0; k < kPictureRows * kPatchCols; ++k)
        item.values.push_back(static_cast<float>(std::sin(static_cast<double>(k))));
      loaded.items.push_back(std::move(item));
    }
    meta.runs.push_back({-1, s.text - 1, meta.supervised});
    meta.runs.push_back({-1, 1, 0});
    for (std::int64_t row = 0; row < meta.rows; ++row) {
      const bool counts = row >= meta.rows - meta.supervised;
      loaded.input_ids.push_back(static_cast<std::int32_t>(row * 37 % 300));
      loaded.labels.push_back(counts ? static_cast<std::int32_t>(row * 11 % 300) : data::kIgnoreLabel);
      loaded.weights.push_back(counts ? 1.0f : 0.0f);
    }
    batch.rows += meta.rows;
    batch.metas.push_back(std::move(meta));
    batch.loaded.push_back(std::move(loaded));
  }
  return batch;
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

std::vector<run::OptimizedParam> optimized(app::Model& model) {
  std::vector<run::OptimizedParam> params;
  for (run::ParamState* p : model.owned_params(true)) {
    run::OptimizedParam o;
    o.name = canonical_name(*p->spec);
    o.module = p->spec->module.substr(0, p->spec->module.find('.'));
    o.master = p->master;
    o.compute = p->compute;
    o.grad = p->grad;
    params.push_back(std::move(o));
  }
  return params;
}

}  // namespace

TEST_CASE("steps after the first take no tensor memory and their loss falls") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    INFO(name_of(dtype));
    const Batch large = make_batch({{48, true}, {200, true}, {96, false}, {130, true}, {3, false}});
    const Batch small = make_batch({{31, true}, {77, false}});
    const app::Config config = small_config(dtype, large.rows);
    const Stream stream = cpu_stream();
    const auto world = comm::make_self();
    app::Model model = app::build_model(config);
    make_stores(model, nullptr, stream);
    initialize_model(model, 1, stream);
    const app::PlanContext context{&config, &model, nullptr, 0, 1, true};
    std::int64_t number = 0;
    const auto plan = [&](const Batch& b) { return app::plan_step(context, b.metas, number++, b.samples); };
    app::Engine engine(config, *world, model, caps_of(*plan(large)), stream);
    run::Optimizer optimizer(optimized(model), {.max_grad_norm = 1.0}, nullptr, stream);
    const auto step = [&](const Batch& b) {
      const auto planned = plan(b);
      const auto results = engine.run(*planned, b.loaded, 1.0 / planned->weight, true, [&] {
        const auto r = optimizer.step(1e-3, [](const std::string&) { return true; });
        REQUIRE(r.finite);
      });
      for (const auto& store : model.stores) store->weights_changed();
      double loss = 0.0;
      for (const app::SampleResult& r : results) loss += r.loss / planned->weight;
      return loss;
    };
    const double first = step(large);
    const std::int64_t taken = heap_pieces_taken();
    REQUIRE(taken > 0);
    double last = first;
    for (int i = 0; i < 6; ++i) last = step(large);
    REQUIRE(heap_pieces_taken() == taken);
    step(small);
    REQUIRE(heap_pieces_taken() == taken);
    REQUIRE(last < first - 0.1);
    const OwnedTensor one_more(DType::f32, {3});
    REQUIRE(heap_pieces_taken() == taken + 1);
  }
}
