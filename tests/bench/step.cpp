// Whole training steps (plan, forward, backward, clip, AdamW) of two models, and the memory they take. The limit is the
// floor of a step: its matrix products through the library alone, and AdamW at the bandwidth of in-place updates.
#include "bench/bench.h"

#include "apps/mmtrain/engine.h"
#include "apps/mmtrain/memory.h"
#include "core/error.h"
#include "kernels/backend.h"
#include "parallel/comm/self.h"
#include "parallel/run/optimized.h"
#include "tests/support/made_step.h"

#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <tuple>

namespace mmt::bench {
namespace {

/// A linear layer of the model and the rows it runs on. How often it is there, and which products the step needs.
struct Product {
  std::int64_t rows, out, in;
  int count;
  bool input_gradient, weight_gradient;
};

struct StepCase {
  std::string name;  ///< "gpt2-124m/B4T64"
  app::Config config;
  std::vector<test::MadeSample> samples;
  std::vector<Product> products;
};

constexpr std::int64_t kPictureRows = 256;  // (224 / 14)^2 patches
constexpr std::int64_t kPatchCols = 3 * 14 * 14;

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
    rows += kText[i] + (kPicture[i] ? kPictureRows : 0);
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
  const test::MadeBatch batch =
      test::make_batch(c.samples, c.config.llm.spec.vocabulary, {0, kPictureRows, kPatchCols, kPictureRows, 1});
  c.config.train.tokens_per_microbatch = batch.rows;  // one block
  reset_peak();
  const std::int64_t before = app::resident_bytes();
  const auto world = comm::make_self();
  app::Model model = app::build_model(c.config);
  make_stores(model, *world, stream);
  initialize_model(model, 1, stream);
  const app::PlanContext context{&c.config, &model, nullptr, true};
  std::int64_t number = 0;
  const auto plan = [&] { return app::plan_step(context, batch.metas, number++, batch.samples); };
  app::Engine engine(c.config, *world, model, test::caps_of(*plan()), stream);
  std::vector<run::OptimizedParam> params = run::optimized_params(model.placed(), model.uses);
  for (run::OptimizedParam& p : params) p.weight_decay *= 0.1;
  run::Optimizer optimizer(std::move(params), {.max_grad_norm = c.config.train.max_grad_norm}, nullptr, stream);
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

  const double floor = gemm_seconds + bytes / limits.in_place;
  bench.rate(step_name, c.config.encoders.empty() ? "tok/s" : "rows/s", static_cast<double>(batch.rows), seconds,
             "floor: products and AdamW", static_cast<double>(batch.rows) / floor);
  const double peak = static_cast<double>(app::peak_resident_bytes() - before) / 1e9;
  bench.add({memory_name, "GB", peak, peak, "estimate", static_cast<double>(expected_bytes(model, engine, stream)) / 1e9});
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
