// Whole small models: pictures, sound and text in one step.
#include "tests/models/tiny_model.h"

#include "kernels/backend.h"

#include <catch2/catch.hpp>

#include <cmath>

using namespace mmt;
using namespace mmt::test;

namespace {

/// Difference quotients of the whole model's objective along one direction of each parameter.
std::vector<std::string> model_gradcheck(const Model& model, const FourBlocks& b, const ModelPass& pass) {
  std::vector<std::string> complaints;
  unsigned seed = 900;
  for (const auto& [name, g] : pass.grads) {
    Model moved{{}, {}, model.values};
    Values direction = random_values(static_cast<std::int64_t>(g.size()), ++seed);
    const double length = norm2(direction);
    for (double& d : direction) d /= length;
    const auto objective = [&](double step) {
      NamedValues values = model.values;
      for (std::size_t i = 0; i < g.size(); ++i) values.at(name)[i] += step * direction[i];
      std::vector<Values> features;
      for (std::size_t k = 0; k < model.encoders.size(); ++k)
        features.push_back(run_pass(model.encoders[k], values, b.media[k], reference_options(), {}, {}, false).out);
      return run_pass(model.llm, values, b.text, reference_options(), features, {}, false).objective;
    };
    const double h = 1e-3, near = (objective(h) - objective(-h)) / (2 * h),
                 far = (objective(2 * h) - objective(-2 * h)) / (4 * h), numeric = (4 * near - far) / 3;
    const double analytic = dot(g, direction);
    // As in the harness: 1e-7 of what a random direction sees, and the noise of the quotient (here through a deeper
    // model, whose fifth derivative times h^4 is larger).
    const double tolerance =
        1e-7 * norm2(g) / std::sqrt(static_cast<double>(g.size())) + 3e-11 * std::abs(pass.objective);
    if (!(std::abs(numeric - analytic) <= tolerance))
      complaints.push_back(fmt::format("{}: quotient {:.12g}, gradient {:.12g}", name, numeric, analytic));
  }
  return complaints;
}

struct Pattern {
  const char* name;
  Trainable trainable;
};
const std::vector<Pattern>& patterns() {
  static const std::vector<Pattern> list{
      {"all", all_train},
      {"encoders frozen", [](const std::string& p) { return contains(p, "projector") || contains(p, "llm/"); }},
      {"projectors only", [](const std::string& p) { return contains(p, "projector"); }},
      {"llm only", [](const std::string& p) { return contains(p, "llm/"); }},
      {"encoders only", [](const std::string& p) { return !contains(p, "projector") && !contains(p, "llm/"); }},
      {"one matrix", [](const std::string& p) { return p == "eyes/encoder.layers.1.self_attn.k_proj.weight"; }},
      {"norms only", [](const std::string& p) { return contains(p, "norm"); }},
      {"one picture projector", [](const std::string& p) { return contains(p, "eyes.projector"); }},
      {"head only", [](const std::string& p) { return contains(p, "lm_head"); }},
      {"nothing", none_train}};
  return list;
}

}  // namespace

TEST_CASE("gradients of a model of pictures sound and text against difference quotients") {
  const Model model = eyes_and_ears(DType::f64);
  const FourBlocks b = blocks_of({0, 1, 2, 3});
  const ModelPass pass = run_model(model, b.media, b.text, reference_options());
  const auto complaints = model_gradcheck(model, b, pass);
  INFO(join(complaints));
  CHECK(complaints.empty());
  CHECK(pass.grads.size() == 100);  // 41 of the eyes, 38 of the ears (frozen positions), 21 of the decoder
}

TEST_CASE("frozen patterns of a whole model have the same gradients and dead edges") {
  const FourBlocks b = blocks_of({0, 1, 2, 3});
  const ModelPass whole = run_model(eyes_and_ears(DType::f64), b.media, b.text, reference_options());
  for (const Pattern& pattern : patterns()) {
    INFO(pattern.name);
    const Model model = eyes_and_ears(DType::f64, pattern.trainable);
    for (const bool recompute : {false, true}) {
      RunOptions options = reference_options();
      options.recompute = options.delayed_weights = recompute;
      const ModelPass pass = run_model(model, b.media, b.text, options);
      CHECK(pass.loss == whole.loss);
      for (const auto& [name, g] : pass.grads) {
        INFO(name);
        CHECK(g == whole.grads.at(name));
      }
      std::size_t trains = 0;
      for (const auto& [name, g] : whole.grads) trains += pattern.trainable(name) ? 1 : 0;
      CHECK(pass.grads.size() == trains);
    }
  }
  // Which edges carry gradients, and who needs a backward.
  const Model frozen = eyes_and_ears(DType::f64, patterns()[3].trainable);
  CHECK_FALSE(models::output_needs_grad(frozen.encoders[0]));
  CHECK_FALSE(frozen.encoders[0].needs_backward());
  const Model one = eyes_and_ears(DType::f64, patterns()[7].trainable);
  CHECK(models::output_needs_grad(one.encoders[0]));
  CHECK_FALSE(models::output_needs_grad(one.encoders[1]));
  CHECK(one.llm.needs_backward());
  CHECK_FALSE(one.llm.trains());
  CHECK(one.llm.units[0]->plan().inputs[0].needs_grad);
  CHECK_FALSE(one.llm.units[0]->plan().inputs[1].needs_grad);
  const Model head = eyes_and_ears(DType::f64, patterns()[8].trainable);
  CHECK_FALSE(head.llm.units[1]->plan().needs_backward());
  CHECK_FALSE(head.llm.units.back()->plan().inputs[0].needs_grad);
  CHECK_FALSE(eyes_and_ears(DType::f64, none_train).llm.needs_backward());
}

TEST_CASE("loss and gradients of packed samples are the sums of theirs alone") {
  const Model model = eyes_and_ears(DType::f64);
  const FourBlocks together = blocks_of({0, 1, 2, 3});
  const ModelPass packed = run_model(model, together.media, together.text, reference_options());
  ModelPass sum;
  for (const std::size_t s : {0, 1, 2, 3}) {
    const FourBlocks alone = blocks_of({s});
    const ModelPass pass = run_model(model, alone.media, alone.text, reference_options());
    sum.objective += pass.objective;
    sum.loss.insert(sum.loss.end(), pass.loss.begin(), pass.loss.end());
    for (const auto& [name, g] : pass.grads) {
      Values& total = sum.grads[name];
      if (total.empty()) total.assign(g.size(), 0.0);
      for (std::size_t i = 0; i < g.size(); ++i) total[i] += g[i];
    }
  }
  CHECK(packed.objective == Approx(sum.objective).epsilon(1e-14));
  // Rows of the scalar kernels do not know what they are packed with.
  CHECK(packed.loss == sum.loss);
  for (const auto& [name, g] : packed.grads) {
    INFO(name);
    // Sums in another order: a few rounding errors of f64 on the scale of the gradient (a key bias without rotary has a
    // true gradient of zero: it is judged by the scale of the queries' one).
    const double scale = contains(name, "k_proj.bias") ? 1.0 : norm2(g);
    CHECK(max_difference(g, sum.grads.at(name)) <= 1e-13 * scale);
  }
}

TEST_CASE("pictures and sounds of one block do not see each other") {
  const Model model = eyes_and_ears(DType::f64);
  const FourBlocks b = blocks_of({0, 1, 2, 3});
  for (std::size_t k = 0; k < 2; ++k) {
    BlockData changed = b.media[k];
    const plan::ItemPlan& second = changed.plan.items[1];
    for (std::int64_t i = 0; i < second.source.count * changed.source_cols; ++i)
      changed.source[static_cast<std::size_t>(second.source.first * changed.source_cols + i)] += 1.0;
    const Values before = run_pass(model.encoders[k], model.values, b.media[k], reference_options(), {}, {}, false).out;
    const Values after = run_pass(model.encoders[k], model.values, changed, reference_options(), {}, {}, false).out;
    const auto cut = static_cast<std::ptrdiff_t>(second.out.first * 32);
    CHECK(std::equal(before.begin(), before.begin() + cut, after.begin()));
    CHECK(max_difference(Values(before.begin() + cut, before.end()), Values(after.begin() + cut, after.end())) > 1e-3);
  }
}

TEST_CASE("the loss scale is the seed of every gradient") {
  const Model model = eyes_and_ears(DType::f64);
  const FourBlocks b = blocks_of({0, 2});
  const ModelPass one = run_model(model, b.media, b.text, reference_options());
  for (const double scale : {0.25, 0.0}) {
    RunOptions options = reference_options();
    options.loss_scale = scale;
    const ModelPass pass = run_model(model, b.media, b.text, options);
    CHECK(pass.loss == one.loss);
    // A power of two scales every rounding with it; 0 (no label in the whole batch) gives zeros.
    for (const auto& [name, g] : pass.grads)
      for (std::size_t i = 0; i < g.size(); ++i) REQUIRE(g[i] == one.grads.at(name)[i] * scale);
  }
}

TEST_CASE("evaluation gives the training loss and the arg max of the logits") {
  const Model model = eyes_and_ears(DType::f64);
  const FourBlocks b = blocks_of({0, 1, 2, 3});
  const ModelPass pass = run_model(model, b.media, b.text, reference_options());
  Values seen;
  const std::function<void(std::int64_t, const Tensor&)> sink = [&](std::int64_t first, const Tensor& logits) {
    CHECK(first == static_cast<std::int64_t>(seen.size()) / 37);
    const Values v = values_of(logits);
    seen.insert(seen.end(), v.begin(), v.end());
  };
  for (const bool with_logits : {false, true}) {
    RunOptions options = reference_options();
    options.mode = run::Mode::eval;
    if (with_logits) options.logits = &sink;
    Params params(model.llm, model.values);
    StageRun run(model.llm, params, b.text, options);
    run.forward(pass.features);
    CHECK(run.loss() == pass.loss);
    if (!with_logits) continue;
    REQUIRE(seen.size() == run.loss().size() * 37);
    for (std::size_t r = 0; r < run.loss().size(); ++r) {
      const auto row = seen.begin() + static_cast<std::ptrdiff_t>(r * 37);
      CHECK(run.predicted()[r] == std::max_element(row, row + 37) - row);
    }
  }
}

TEST_CASE("a generation with a key and value cache gives the logits of the whole sequence") {
  for (const char* family : {"llama", "qwen3", "mistral", "gpt2"}) {
    INFO(family);
    const LlmSpec s = tiny_llm(family);
    const run::Stage stage = models::build_llm(s, {}, setting(DType::f64));
    NamedValues values;
    add_random_values(values, stage);
    const std::int64_t total = 9;
    const BlockData whole = BlockData::text({{{.text = 9}}}, 37, 0, models::mask_windows(s));
    const std::vector<std::int32_t> ids = whole.ids[0];
    Values logits;
    const std::function<void(std::int64_t, const Tensor&)> sink = [&](std::int64_t, const Tensor& t) {
      const Values v = values_of(t);
      logits.insert(logits.end(), v.begin(), v.end());
    };
    // Rows [first, last) of the sequence, all of them asked for their logits.
    const auto run_rows = [&](std::int64_t first, std::int64_t last, run::KvCache* cache) {
      BlockData data;
      data.plan.size.rows = data.plan.size.supervised = last - first;
      data.plan.masks.resize(stage.windows.size());
      std::vector<std::int32_t> places;
      for (std::int64_t r = first; r < last; ++r) {
        places.push_back(static_cast<std::int32_t>(r));
        data.plan.supervised_rows.push_back(static_cast<std::int32_t>(r - first));
        for (MaskWords& m : data.plan.masks)
          m.push(1, 0, row_class::kAll, row_class::kText, static_cast<std::int32_t>(r));
      }
      data.plan.positions = places;
      MaskWords keys;
      for (std::int64_t r = 0; r < last; ++r)
        keys.push(1, 0, row_class::kAll, row_class::kText, static_cast<std::int32_t>(r));
      for (std::size_t m = 0; m < stage.windows.size(); ++m)
        data.plan.tiles.push_back(make_tile_plan(query_side(data.plan.masks[m]),
                                                 cache == nullptr ? key_side(data.plan.masks[m]) : key_side(keys),
                                                 stage.windows[m]));
      RunOptions options = reference_options();
      options.mode = run::Mode::eval;
      options.logits = &sink;
      options.cache = cache;
      options.cache_rows = Tensor(places.data(), DType::i32, {last - first});
      Params params(stage, values);
      StageRun run(stage, params, data, options);
      for (std::int64_t r = first; r < last; ++r)
        run.rows().ids.as<std::int32_t>()[r - first] = ids[static_cast<std::size_t>(r)];
      for (run::MaskRows& m : run.rows().masks) {
        if (cache == nullptr) continue;
        m.key_words = Tensor(keys.key.data(), DType::u64, {last});
        m.key_order = Tensor(keys.order.data(), DType::i32, {last});
      }
      run.forward();
    };
    run_rows(0, total, nullptr);
    const Values expected = std::exchange(logits, {});
    std::vector<OwnedTensor> memory;
    std::vector<run::KvCache> cache(stage.units.size());
    for (run::KvCache& c : cache) {
      const std::int64_t width = s.kv_heads * s.head_dim;
      memory.emplace_back(DType::f64, std::initializer_list<std::int64_t>{12, width});
      c.keys = memory.back();
      memory.emplace_back(DType::f64, std::initializer_list<std::int64_t>{12, width});
      c.values = memory.back();
    }
    run_rows(0, 4, cache.data());
    run_rows(4, 5, cache.data());
    run_rows(5, 8, cache.data());
    run_rows(8, 9, cache.data());
    CHECK(max_difference(logits, expected) <= 1e-12);
  }
}
