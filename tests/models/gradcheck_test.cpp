// Every unit of every family against difference quotients in f64, with everything trainable. Frozen patterns are held
// against these gradients bit for bit in frozen_test.cpp.
#include "tests/models/tiny.h"

#include "kernels/backend.h"

#include <catch2/catch.hpp>

using namespace mmt;
using namespace mmt::test;

namespace {

void check(const run::Stage& stage, const BlockData& data, double loss_scale = 1.0) {
  NamedValues values;
  add_random_values(values, stage);
  RunOptions options = reference_options();
  options.loss_scale = loss_scale;
  const Edges e = edges_of(stage, data);
  const auto complaints = gradcheck(stage, values, data, options, e.in, e.d_out);
  INFO(join(complaints));
  CHECK(complaints.empty());
}

}  // namespace

TEST_CASE("gradients of a decoder block of every family") {
  const std::string family = GENERATE("llama", "qwen2", "qwen3", "mistral", "gpt2", "mrope");
  INFO(family);
  const LlmSpec s = tiny_llm(family, 3);
  check(models::build_llm(s, {}, setting(DType::f64), {2, 3}), llm_block_data(s));
}

TEST_CASE("gradients of an encoder block of every family") {
  const std::string kind = GENERATE("clip", "siglip", "qwen2_vl", "whisper");
  INFO(kind);
  const EncoderSpec s = tiny_encoder(kind, 3);
  check(models::build_encoder(s, 32, setting(DType::f64), {2, 3}), encoder_block_data(s));
}

TEST_CASE("gradients of the embedding with ports and learned positions") {
  const std::string family = GENERATE("llama", "gpt2");
  INFO(family);
  const LlmSpec s = tiny_llm(family);
  check(models::build_llm(s, {{"eyes", true}, {"ears", true}}, setting(DType::f64), {0, 1}), llm_block_data(s, 2));
}

TEST_CASE("gradients of the head with rms norm and layer norm") {
  const std::string family = GENERATE("llama", "gpt2");
  INFO(family);
  const LlmSpec s = tiny_llm(family);
  check(models::build_llm(s, {}, setting(DType::f64), {3, -1}), llm_block_data(s), 0.125);
}

TEST_CASE("gradients of the head over several chunks of rows") {
  LlmSpec s = tiny_llm("llama");
  s.hidden = 16;
  s.vocabulary = 5;
  s.heads = 1;
  const BlockData data = BlockData::text({{{.text = 1}, {.text = 700, .supervised = true}}}, 5, 0);
  check(models::build_llm(s, {}, setting(DType::f64), {3, -1}), data, 1e-2);
}

TEST_CASE("gradients of the vision embedding with and without class row and pre-norm") {
  EncoderSpec s = tiny_encoder("clip");
  SECTION("clip") {}
  SECTION("siglip") { s = tiny_encoder("siglip"); }
  SECTION("class row without norm") { s.pre_norm = false; }
  SECTION("norm without class row") { s.class_token = false; }
  check(models::build_encoder(s, 32, setting(DType::f64), {0, 1}), encoder_block_data(s));
}

TEST_CASE("gradients of the stem and of all projectors of a tower that merges patches") {
  EncoderSpec s = tiny_encoder("qwen2_vl");
  check(models::build_encoder(s, 24, setting(DType::f64), {0, 1}), encoder_block_data(s));
  s.projector.kind = GENERATE("merger", "none", "linear", "mlp2");
  INFO(s.projector.kind);
  check(models::build_encoder(s, 24, setting(DType::f64), {3, -1}), encoder_block_data(s));
}

TEST_CASE("gradients of the audio stem over packed clips of odd lengths") {
  EncoderSpec s = tiny_encoder("whisper");
  SECTION("frozen positions") {}
  SECTION("trained positions") { s.train_positions = true; }
  SECTION("frames behind the clips") { s = tiny_encoder("qwen2_audio"); }
  check(models::build_encoder(s, 32, setting(DType::f64), {0, 1}), encoder_block_data(s));
}

TEST_CASE("gradients of the exit with and without norm and of both projectors") {
  EncoderSpec s = tiny_encoder("clip");
  const std::string projector = GENERATE("none", "linear", "mlp2", "merger");
  s.projector.kind = projector;
  s.post_norm = GENERATE(false, true);
  s.select = GENERATE("patch", "full");
  INFO(projector << " " << s.post_norm << " " << s.select);
  check(models::build_encoder(s, 24, setting(DType::f64), {3, -1}), encoder_block_data(s));
}

TEST_CASE("gradients of the mean of rows that leave with and without norm") {
  EncoderSpec s = tiny_encoder("qwen2_audio");
  s.projector.kind = GENERATE("none", "linear");
  s.post_norm = GENERATE(false, true);
  s.pool = GENERATE(2, 3);
  INFO(s.projector.kind << " " << s.post_norm << " " << s.pool);
  check(models::build_encoder(s, 24, setting(DType::f64), {3, -1}), encoder_block_data(s));
}

TEST_CASE("gradients of a whole decoder with a tied head") {
  const std::string family = GENERATE("llama", "gpt2", "mistral");
  INFO(family);
  LlmSpec s = tiny_llm(family);
  s.tie_embeddings = true;
  check(models::build_llm(s, {{"eyes", true}}, setting(DType::f64)), llm_block_data(s, 1), 0.25);
}

TEST_CASE("gradients of the newline behind lines of a picture in tiles") {
  EncoderSpec s = tiny_encoder("clip tiles");
  s.projector.kind = GENERATE("linear", "mlp2");
  s.post_norm = GENERATE(false, true);
  INFO(s.projector.kind << " " << s.post_norm);
  check(models::build_encoder(s, 24, setting(DType::f64), {3, -1}), encoder_block_data(s));
}

TEST_CASE("gradients of whole encoders with projectors") {
  const std::string kind = GENERATE("clip", "siglip", "qwen2_vl", "whisper", "qwen2_audio", "clip tiles");
  INFO(kind);
  EncoderSpec s = tiny_encoder(kind);
  if (kind == "clip") s.feature_layer = -2;
  check(models::build_encoder(s, 24, setting(DType::f64)), encoder_block_data(s));
}

TEST_CASE("the gradient check notices gradients that are wrong by a part in a million") {
  const LlmSpec s = tiny_llm("llama", 3);
  const run::Stage stage = models::build_llm(s, {}, setting(DType::f64), {2, 3});
  const BlockData data = llm_block_data(s);
  NamedValues values;
  add_random_values(values, stage);
  const Edges e = edges_of(stage, data);
  const auto complaints =
      gradcheck(stage, values, data, reference_options(), e.in, e.d_out, {.elements = 2, .scale_of_bug = 1.000001});
  // Each parameter and the input, by its direction or one of its elements.
  CHECK(complaints.size() >= stage.units[0]->plan().params.size() + 1);
}
