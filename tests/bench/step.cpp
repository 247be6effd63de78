// Whole training steps (plan, forward, backward, clip, AdamW) of two models, and the memory they take. The limit is the
// floor of a step: its matrix products through the library alone, and AdamW at the bandwidth of in-place updates.
#include "bench/bench.h"

#include "apps/mmtrain/engine.h"
#include "apps/mmtrain/memory.h"
#include "core/error.h"
#include "kernels/backend.h"
#include "parallel/comm/self.h"
#include "parallel/run/optimizer.h"

#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <random>
#include <tuple>

namespace mmt::bench {
namespace {

/// A linear layer of the model and the rows it runs on. How often it is there, and which products the step needs.
struct Product {
  std::int64_t rows, out, in;
  int count;
  bool input_gradient, weight_gradient;
};

struct Sample {
  std::int64_t text = 0;
  bool picture = false;
  std::int64_t supervised = 0;
};

struct StepCase {
  std::string name;  ///< "gpt2-124m/B4T64"
  app::Config config;
  std::vector<Sample> samples;
  std::vector<Product> products;
};

constexpr std::int64_t kPictureRows = 256;  // (224 / 14)^2 patches
constexpr std::int64_t kPatchCols = 3 * 14 * 14;

std::int64_t rows_of(const Sample& s) { return s.text + (s.picture ? kPictureRows : 0); }

/// GPT-2 small: as scripts/reference/bench/gpt2_step.py.
StepCase gpt2(std::int64_t batch, std::int64_t length) {
  StepCase c;
  c.name = fmt::format("gpt2-124m/B{}T{}", batch, length);
  models::LlmSpec& m = c.config.llm.spec;
  m = models::llm_preset("gpt2");
  m.vocabulary = 50304;
  m.hidden = 768;
  m.layers = 12;
  m.heads = 12;
  resolve(m);
  c.config.train.max_grad_norm = 0.0;
  c.samples.assign(static_cast<std::size_t>(batch), {length, false, length - 1});
  const std::int64_t rows = batch * length;
  for (const auto& [out, in] : {std::pair<std::int64_t, std::int64_t>{2304, 768}, {768, 768}, {3072, 768}, {768, 3072}})
    c.products.push_back({rows, out, in, 12, true, true});
  c.products.push_back({rows - batch, 50304, 768, 1, true, true});
  return c;
}

enum class Pattern : std::uint8_t { all, frozen, projector };

/// CLIP tower, projector and Llama, eight ragged samples: as scripts/reference/bench/mllm_step.py.
StepCase llava(Pattern pattern) {
  static constexpr const char* kNames[] = {"all", "frozen", "projector"};
  StepCase c;
  c.name = fmt::format("llava-151m/{}", kNames[static_cast<int>(pattern)]);
  app::EncoderConfig eyes;
  models::EncoderSpec& v = eyes.spec;
  v = models::encoder_preset("clip");
  v.name = "eyes";
  v.hidden = 512;
  v.intermediate = 2048;
  v.layers = 8;
  v.heads = 8;
  v.image_size = 224;
  v.feature_layer = -2;
  eyes.image.height = eyes.image.width = 224;
  eyes.trainable.all = pattern == Pattern::all;
  models::LlmSpec& m = c.config.llm.spec;
  m = models::llm_preset("llama");
  m.vocabulary = 32000;
  m.hidden = 768;
  m.intermediate = 2048;
  m.layers = 12;
  m.heads = 12;
  m.kv_heads = 4;
  c.config.llm.trainable.all = pattern != Pattern::projector;
  resolve(v, m.hidden);
  resolve(m);
  c.config.encoders.push_back(eyes);
  c.config.train.max_grad_norm = 1.0;
  static constexpr std::int64_t kText[] = {48, 200, 96, 320, 64, 500, 128, 32};
  static constexpr bool kPicture[] = {true, true, false, true, true, false, true, false};
  std::int64_t rows = 0, pictures = 0, supervised = 0;
  for (int i = 0; i < 8; ++i) {
    c.samples.push_back({kText[i], kPicture[i], kText[i] / 2});
    rows += rows_of(c.samples.back());
    pictures += kPicture[i] ? 1 : 0;
    supervised += kText[i] / 2;
  }
  const std::int64_t patches = pictures * kPictureRows, tower = pictures * (kPictureRows + 1);
  const bool t = pattern == Pattern::all, l = pattern != Pattern::projector;
  const int blocks = num_blocks(v);
  c.products.push_back({patches, 512, kPatchCols, 1, false, t});
  for (const auto& [out, in] : {std::pair<std::int64_t, std::int64_t>{1536, 512}, {512, 512}, {2048, 512}, {512, 2048}})
    c.products.push_back({tower, out, in, blocks, t, t});
  c.products.push_back({patches, 768, 512, 1, t, true});
  c.products.push_back({patches, 768, 768, 1, true, true});
  for (const auto& [out, in] : {std::pair<std::int64_t, std::int64_t>{1280, 768}, {768, 768}, {4096, 768}, {768, 2048}})
    c.products.push_back({rows, out, in, 12, true, l});
  c.products.push_back({supervised, 32000, 768, 1, true, l});
  return c;
}

std::vector<StepCase> step_cases() {
  std::vector<StepCase> steps;
  steps.push_back(gpt2(4, 64));
  steps.push_back(gpt2(1, 512));
  for (const Pattern pattern : {Pattern::all, Pattern::frozen, Pattern::projector}) steps.push_back(llava(pattern));
  return steps;
}

double product_seconds(const StepCase& c, DType dtype, int threads) {
  static std::map<std::tuple<int, Layout, DType, std::int64_t, std::int64_t, std::int64_t>, double> known;
  const auto one = [&](Layout layout, const Product& p) {
    const auto key = std::tuple(threads, layout, dtype, p.rows, p.out, p.in);
    const auto found = known.find(key);
    if (found != known.end()) return found->second;
    return known[key] = library_seconds(layout, dtype, p.rows, p.out, p.in);
  };
  double seconds = 0.0;
  for (const Product& p : c.products) {
    seconds += p.count * one(Layout::forward, p);
    if (p.input_gradient) seconds += p.count * one(Layout::input_gradient, p);
    if (p.weight_gradient) seconds += p.count * one(Layout::weight_gradient, p);
  }
  return seconds;
}

/// Metadata and content of the samples, with pixels and ids that repeat in every run.
struct Batch {
  std::vector<app::PlannedSample> samples;
  std::vector<plan::SampleMeta> metas;
  std::vector<data::LoadedSample> loaded;
};

Batch make_batch(const StepCase& c) {
  Batch batch;
  std::mt19937 random(1);
  std::uniform_int_distribution<std::int32_t> token(0, static_cast<std::int32_t>(c.config.llm.spec.vocabulary) - 2);
  std::normal_distribution<float> pixel;
  for (std::size_t i = 0; i < c.samples.size(); ++i) {
    const Sample& s = c.samples[i];
    batch.samples.push_back({0, static_cast<std::int64_t>(i), static_cast<std::int64_t>(i)});
    plan::SampleMeta meta;
    meta.id = static_cast<std::int64_t>(i);
    meta.rows = rows_of(s);
    meta.supervised = s.supervised;
    data::LoadedSample loaded;
    if (s.picture) {
      meta.items.push_back({0, kPictureRows, kPictureRows + 1, kPictureRows + 1, kPictureRows});
      meta.runs.push_back({0, kPictureRows, 0});
      data::LoadedItem item;
      item.values.resize(static_cast<std::size_t>(kPictureRows * kPatchCols));
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
    o.weight_decay = p->spec->decay ? 0.1 : 0.0;
    params.push_back(std::move(o));
  }
  return params;
}

/// Forgets the highest resident size so far (Linux: proc(5), clear_refs).
void reset_peak() {
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5";
}

void measure(Bench& bench, StepCase c, DType dtype, const std::string& step_name, const std::string& memory_name) {
  const double gemm_seconds = product_seconds(c, dtype, bench.threads());
  const Limits limits = bench.limits();
  c.config.train.precision = dtype;
  c.config.llm.spec.name = "llm";
  const Stream stream = cpu_stream();
  const Batch batch = make_batch(c);
  c.config.train.tokens_per_microbatch = 0;  // one block
  for (const plan::SampleMeta& meta : batch.metas) c.config.train.tokens_per_microbatch += meta.rows;
  reset_peak();
  const std::int64_t before = app::resident_bytes();
  const auto world = comm::make_self();
  app::Model model = app::build_model(c.config);
  make_stores(model, nullptr, stream);
  initialize_model(model, 1, stream);
  const app::PlanContext context{&c.config, &model, nullptr, 0, 1, true};
  std::int64_t number = 0;
  const auto plan = [&] { return app::plan_step(context, batch.metas, number++, batch.samples); };
  app::Engine engine(c.config, *world, model, caps_of(*plan()), stream);
  run::Optimizer optimizer(optimized(model), {.max_grad_norm = c.config.train.max_grad_norm}, nullptr, stream);
  double bytes = 0.0;  // that AdamW reads and writes: weights, both moments, the gradient read; the bf16 copy written
  for (const run::OptimizedParam& p : optimizer.params())
    bytes += static_cast<double>(p.master.numel()) * (p.compute.data == p.master.data ? 28.0 : 30.0);

  double loss = 0.0;
  const Seconds seconds = bench.time([&] {
    const auto step = plan();
    const auto results = engine.run(*step, batch.loaded, 1.0 / step->weight, true,
                                    [&] { optimizer.step(1e-4, [](const std::string&) { return true; }); });
    for (const auto& store : model.stores) store->weights_changed();
    loss = 0.0;
    for (const app::SampleResult& r : results) loss += r.loss / step->weight;
  });
  MMT_CHECK(std::isfinite(loss), "{}: the loss is {}", step_name, loss);

  std::int64_t rows = 0;
  for (const plan::SampleMeta& meta : batch.metas) rows += meta.rows;
  const double floor = gemm_seconds + bytes / limits.in_place;
  bench.rate(step_name, c.config.encoders.empty() ? "tok/s" : "rows/s", static_cast<double>(rows), seconds,
             "floor: products and AdamW", static_cast<double>(rows) / floor);
  const double peak = static_cast<double>(app::peak_resident_bytes() - before) / 1e9;
  bench.add({memory_name, "GB", peak, peak, "estimate", static_cast<double>(expected_bytes(model, engine)) / 1e9});
}

}  // namespace

std::vector<ProductShape> step_products() {
  std::vector<ProductShape> list;
  for (const StepCase& c : step_cases()) {
    for (const Product& p : c.products) list.push_back({p.rows, p.out, p.in});
  }
  std::ranges::sort(list);
  list.erase(std::unique(list.begin(), list.end()), list.end());
  return list;
}

void add_steps(Cases& cases) {
  for (const StepCase& c : step_cases()) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const std::string step = fmt::format("step/{}/{}", c.name, name_of(dtype));
      const std::string memory = fmt::format("memory/{}/{}", c.name, name_of(dtype));
      cases.push_back({{step, memory}, [=](Bench& bench) { measure(bench, c, dtype, step, memory); }});
    }
  }
}

}  // namespace mmt::bench
