// Tiny models of every family against transformers: names and shapes of a fresh save_pretrained, the loss, and every
// gradient by its norm and its product with a probe (tests/data/models/make_goldens.py).
#include "tests/models/golden.h"
#include "tests/models/tiny.h"

#include "kernels/backend.h"

#include <catch2/catch.hpp>

#include <cmath>

using namespace mmt;
using namespace mmt::test;

namespace {

NamedValues golden_weights(const run::Stage& stage) {
  NamedValues values;
  for (const run::ParamSpec& spec : models::parameters_of(stage)) {
    std::int64_t n = 1;
    for (const std::int64_t d : spec.shape) n *= d;
    Values& v = values[canonical_name(spec)];
    v = named_values(spec.name, n, 0.3);
    if (spec.init.kind == run::Init::Kind::ones)
      for (double& x : v) x += 1.0;
  }
  return values;
}

void check_names(const run::Stage& stage, const Golden& golden) {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const run::ParamSpec& spec : models::parameters_of(stage)) shapes[spec.name] = spec.shape;
  CHECK(shapes == golden.shapes);
}

void check_pass(const Pass& pass, const Golden& golden, const std::string& module) {
  CHECK(pass.objective == Approx(golden.objective).epsilon(1e-6));
  for (const auto& [name, expected] : golden.grads) {
    INFO(name);
    const auto found = pass.grads.find(module + "/" + name);
    REQUIRE(found != pass.grads.end());
    const Values& g = found->second;
    const Values probe = named_values("probe " + name, static_cast<std::int64_t>(g.size()), 1.0);
    // The key bias has a true gradient of zero without rotary positions: rounding noise in float32 there.
    const double scale = std::max(expected.first, contains(name, "k_proj.bias") ? 1.0 : 0.0);
    CHECK(std::abs(norm2(g) - expected.first) <= kGoldenTolerance * scale);
    CHECK(std::abs(dot(g, probe) - expected.second) <= kGoldenTolerance * scale);
  }
  CHECK(pass.grads.size() == golden.grads.size());
}

}  // namespace

TEST_CASE("decoders equal transformers in names loss and gradients") {
  const std::string name =
      GENERATE("llama", "llama3", "llama_linear", "llama_yarn", "qwen2", "qwen3", "mistral", "qwen2_tied");
  INFO(name);
  const bool scaled = name == "llama3" || name.starts_with("llama_");
  const std::string kind = scaled ? "llama" : name == "qwen2_tied" ? "qwen2" : name;
  LlmSpec s = models::llm_preset(kind);
  s.vocabulary = 37;
  s.hidden = 32;
  s.intermediate = 40;
  s.layers = 2;
  s.heads = 2;
  s.kv_heads = kind == "qwen2" || scaled ? 2 : 1;
  s.head_dim = kind == "qwen3" ? 24 : 16;
  s.tie_embeddings = name == "qwen2_tied";
  if (name == "mistral") s.sliding_window = 3;
  if (scaled) {
    s.rope_theta = 50;
    s.rope_scaling = models::RopeScaling{4, 1, 4, 32};
    if (name == "llama_linear") s.rope_scaling->kind = models::RopeKind::linear;
    if (name == "llama_yarn") {
      s.rope_scaling->kind = models::RopeKind::yarn;
      s.rope_scaling->beta_fast = 4;
    }
  }
  models::resolve(s);
  REQUIRE(models::validate(s).empty());
  const run::Stage stage = models::build_llm(s, {}, setting(DType::f64));
  const Golden golden = read_golden(name);
  check_names(stage, golden);

  const std::vector<std::int32_t> ids{3, 17, 5, 30, 2, 11, 36, 0, 8, 21, 9, 14};
  BlockData data = BlockData::text({{{.text = 4},
                                     {.text = 3, .supervised = true},
                                     {.text = 2},
                                     {.text = 1, .supervised = true},
                                     {.text = 1},
                                     {.text = 1, .supervised = true}}},
                                   37, 0, models::mask_windows(s));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    data.ids[0][i] = ids[i];
    if (data.labels[0][i] >= 0) data.labels[0][i] = ids[i];
    data.weights[0][i] = 1.0F;
  }
  check_pass(run_pass(stage, golden_weights(stage), data, reference_options(), {}, {}), golden, "llm");
}

TEST_CASE("vision encoders equal transformers in names features and gradients") {
  const std::string kind = GENERATE("clip", "siglip");
  INFO(kind);
  EncoderSpec s = tiny_encoder(kind);
  s.projector.kind = "none";
  const Golden golden = read_golden(kind);
  s.post_norm = true;
  check_names(models::build_encoder(s, 32, setting(DType::f64)), golden);
  if (kind == "clip") {
    s.post_norm = false;
    s.feature_layer = -2;
  }
  const run::Stage stage = models::build_encoder(s, 32, setting(DType::f64));
  BlockData data = BlockData::pictures({9, 9}, 12, s.class_token, false);
  const Values pixels = named_values("pixels", 2 * 3 * 6 * 6, 1.0);
  std::size_t at = 0;
  for (std::size_t image = 0; image < 2; ++image)
    for (std::size_t row = 0; row < 3; ++row)
      for (std::size_t col = 0; col < 3; ++col)
        for (std::size_t c = 0; c < 3; ++c)
          for (std::size_t y = 0; y < 2; ++y)
            for (std::size_t x = 0; x < 2; ++x)
              data.source[at++] = pixels[((image * 3 + c) * 6 + row * 2 + y) * 6 + col * 2 + x];
  const Values probe = named_values("probe out", data.plan.size.out * 32, 1.0);
  check_pass(run_pass(stage, golden_weights(stage), data, reference_options(), {}, probe), golden, s.name);
}

TEST_CASE("the audio encoder equals transformers in names features and gradients") {
  EncoderSpec s = tiny_encoder("whisper");
  s.projector.kind = "none";
  const Golden golden = read_golden("whisper");
  const run::Stage stage = models::build_encoder(s, 32, setting(DType::f64));
  check_names(stage, golden);
  BlockData data = BlockData::clips({24, 24}, 5);
  const Values frames = named_values("frames", 2 * 5 * 24, 1.0);
  for (std::size_t clip = 0; clip < 2; ++clip)
    for (std::size_t t = 0; t < 24; ++t)
      for (std::size_t m = 0; m < 5; ++m) data.source[(clip * 24 + t) * 5 + m] = frames[(clip * 5 + m) * 24 + t];
  const Values probe = named_values("probe out", data.plan.size.out * 32, 1.0);
  NamedValues weights = golden_weights(stage);
  check_pass(run_pass(stage, weights, data, reference_options(), {}, probe), golden, s.name);
}
