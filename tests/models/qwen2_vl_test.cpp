// Qwen2-VL against transformers: the tower with its merger, and the whole model with pictures of different sizes, rows
// and positions made by the planner (tests/data/models/make_qwen2_vl.py).
#include "tests/models/golden.h"
#include "tests/models/tiny_model.h"

#include "parallel/plan/step.h"

#include <catch2/catch.hpp>

#include <cmath>

using namespace mmt;
using namespace mmt::test;

namespace {

/// Our parameters that make up a tensor of transformers', in its order: q, k and v are one there.
std::vector<std::string> own_names(std::string name) {
  const bool visual = !name.starts_with("model.") && !name.starts_with("lm_head.");
  if (!visual) return {"llm/" + name};
  if (name.starts_with("visual.")) name.erase(0, 7);
  if (name.starts_with("merger.")) return {"eyes.projector/" + name.substr(7)};
  const std::size_t at = name.find("qkv");
  if (at == std::string::npos) return {"eyes/" + name};
  std::vector<std::string> names;
  for (const char* part : {"q", "k", "v"}) names.push_back("eyes/" + std::string(name).replace(at, 3, part));
  return names;
}

NamedValues fused_weights(const Golden& golden) {
  NamedValues values;
  for (const auto& [name, shape] : golden.shapes) {
    std::int64_t n = 1;
    for (const std::int64_t d : shape) n *= d;
    Values v = named_values(name, n, 0.3);
    if ((contains(name, "norm") || contains(name, "ln_q")) && name.ends_with("weight"))
      for (double& x : v) x += 1.0;
    const std::vector<std::string> parts = own_names(name);
    const auto size = std::ssize(v) / std::ssize(parts);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto first = v.begin() + static_cast<std::ptrdiff_t>(i) * size;
      values[parts[i]] = Values(first, first + size);
    }
  }
  return values;
}

void check_parameters(const std::vector<const run::Stage*>& stages, const Golden& golden) {
  std::map<std::string, std::vector<std::int64_t>> own, expected;
  for (const run::Stage* stage : stages)
    for (const run::ParamSpec& spec : models::parameters_of(*stage)) own[canonical_name(spec)] = spec.shape;
  for (const auto& [name, shape] : golden.shapes) {
    const std::vector<std::string> parts = own_names(name);
    for (const std::string& part : parts) {
      expected[part] = shape;
      expected[part][0] /= std::ssize(parts);
    }
  }
  CHECK(own == expected);
}

void check_golden_gradients(const NamedValues& grads, const Golden& golden) {
  std::size_t seen = 0;
  for (const auto& [name, expected] : golden.grads) {
    INFO(name);
    Values g;
    for (const std::string& part : own_names(name)) {
      REQUIRE(grads.count(part) == 1);
      g.insert(g.end(), grads.at(part).begin(), grads.at(part).end());
      ++seen;
    }
    const Values probe = named_values("probe " + name, static_cast<std::int64_t>(g.size()), 1.0);
    CHECK(std::abs(norm2(g) - expected.first) <= kGoldenTolerance * expected.first);
    CHECK(std::abs(dot(g, probe) - expected.second) <= kGoldenTolerance * expected.first);
  }
  CHECK(grads.size() == seen);
}

EncoderSpec golden_eyes(std::int64_t llm_hidden) {
  EncoderSpec s = tiny_encoder("qwen2_vl");
  s.intermediate = s.projector.hidden = 128;
  models::resolve(s, llm_hidden);
  REQUIRE(models::validate(s).empty());
  return s;
}

}  // namespace

TEST_CASE("the tower that merges patches equals transformers in names features and gradients") {
  const Golden golden = read_golden("qwen2_vl_tower");
  const EncoderSpec s = golden_eyes(24);
  const run::Stage stage = models::build_encoder(s, 24, setting(DType::f64));
  check_parameters({&stage}, golden);
  BlockData data = BlockData::grids({{1, 2, 3}, {2, 1, 2}}, 2, 24);
  data.source = named_values("pixels", 40 * 24, 1.0);
  const Values probe = named_values("probe out", 10 * 24, 1.0);
  const Pass pass = run_pass(stage, fused_weights(golden), data, reference_options(), {}, probe);
  CHECK(pass.objective == Approx(golden.objective).epsilon(1e-6));
  check_golden_gradients(pass.grads, golden);
  // The two frames of the film as one: another function.
  BlockData one = BlockData::grids({{1, 2, 3}, {1, 2, 2}}, 2, 24);
  one.source = data.source;
  one.plan.positions = data.plan.positions;
  const Pass joined = run_pass(stage, fused_weights(golden), one, reference_options(), {}, probe);
  CHECK(joined.objective != Approx(golden.objective).epsilon(1e-4));
}

TEST_CASE("a decoder with pictures and three positions a row equals transformers in loss and gradients") {
  const Golden golden = read_golden("qwen2_vl");
  LlmSpec llm = models::llm_preset("qwen2");
  llm.vocabulary = 44;
  llm.hidden = 32;
  llm.intermediate = 40;
  llm.layers = 2;
  llm.heads = 2;
  llm.kv_heads = 1;
  llm.rope_theta = 1e6;
  llm.mrope_section = {2, 3, 3};
  models::resolve(llm);
  REQUIRE(models::validate(llm).empty());
  Model model = make_model({golden_eyes(32)}, llm, DType::f64);
  check_parameters({&model.encoders[0], &model.llm}, golden);
  model.values = fused_weights(golden);

  plan::SampleMeta s;
  const auto picture = [&](std::int64_t height, std::int64_t width) {
    const std::int64_t rows = height * width;
    s.items.push_back(
        {.encoder = 0, .source_rows = 4 * rows, .inner_rows = 4 * rows, .rows = rows, .grid = {1, height, width}});
  };
  picture(2, 3);
  picture(1, 2);
  s.runs = {{-1, 2, 0}, {0, 6, 0}, {-1, 4, 0}, {1, 2, 0}, {-1, 3, 2}, {-1, 2, 1}, {-1, 1, 0}};
  s.rows = 20;
  s.supervised = 3;
  const std::int32_t block[] = {0};
  const auto text_of = [&](int num_positions) {
    BlockData text;
    text.plan =
        plan::llm_rows(std::span(&s, 1), block, {.num_encoders = 1, .windows = {0}, .num_positions = num_positions});
    text.ids = {{3, 42, -1, -1, -1, -1, -1, -1, 43, 17, 5, 42, -1, -1, 43, 30, 2, 11, 36, 8}};
    text.labels = {std::vector<std::int32_t>(20, -100)};
    for (const std::size_t i : {16U, 17U, 19U}) text.labels[0][i] = text.ids[0][i];
    text.weights = {std::vector<float>(20, 1.0F)};
    text.port_rows = {8};
    return text;
  };
  const BlockData text = text_of(3);
  CHECK(text.plan.positions == golden.positions);
  BlockData pictures;
  pictures.plan = plan::encoder_rows(std::span(&s, 1), block, 0, {.name = "eyes", .merge = 2, .grid = true});
  pictures.source_cols = 24;
  pictures.source = named_values("pixels", 32 * 24, 1.0);
  const ModelPass pass = run_model(model, {pictures}, text, reference_options());
  CHECK(pass.objective == Approx(golden.objective).epsilon(1e-6));
  check_golden_gradients(pass.grads, golden);
  // Rows that turn by their place in the sample are another function.
  BlockData counted = text;
  const plan::RowsPlan places = text_of(1).plan;
  for (std::size_t i = 0; i < counted.plan.positions.size(); ++i) counted.plan.positions[i] = places.positions[i / 3];
  CHECK(run_model(model, {pictures}, counted, reference_options()).objective != Approx(golden.objective).epsilon(1e-4));
}
