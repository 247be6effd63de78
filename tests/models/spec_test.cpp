// Specs: defaults of the families, every mistake reported at once, what is derived.
#include "tests/models/tiny.h"

#include "models/loss.h"

#include <catch2/catch.hpp>

using namespace mmt;
using namespace mmt::test;

namespace {

std::vector<std::string> fields(const std::vector<models::SpecProblem>& problems) {
  std::vector<std::string> list;
  for (const models::SpecProblem& p : problems) list.push_back(p.field);
  return list;
}

}  // namespace

TEST_CASE("every mistake of a spec is reported with its field") {
  LlmSpec llm = tiny_llm("llama");
  CHECK(models::validate(llm).empty());
  llm.hidden = 0;
  llm.kv_heads = 3;
  llm.activation = "gelu";
  llm.head_dim = 20;
  llm.mrope_section = {1, 2};
  llm.window_from_layer = 9;
  CHECK(fields(models::validate(llm)) ==
        std::vector<std::string>{"hidden", "activation", "kv_heads", "head_dim", "mrope_section", "window_from_layer"});
  EncoderSpec eyes = tiny_encoder("clip");
  CHECK(models::validate(eyes).empty());
  eyes.heads = 5;
  eyes.image_size = 1;
  eyes.select = "class";
  eyes.feature_layer = -4;
  eyes.projector.kind = "mlp3";
  eyes.activation = "relu";
  const auto problems = models::validate(eyes);
  CHECK(fields(problems) ==
        std::vector<std::string>{"activation", "heads", "image_size", "select", "feature_layer", "projector.kind"});
  CHECK(problems[0].message == "'relu' is not one of gelu, gelu_tanh, gelu_quick, silu");
  CHECK(problems[2].message == "1 is less than one patch of 2");
  CHECK(problems[5].message == "'mlp3' is not one of none, linear, mlp2, merger");

  eyes = tiny_encoder("siglip");
  eyes.post_norm = true;
  eyes.feature_layer = -2;
  CHECK(fields(models::validate(eyes)) == std::vector<std::string>{"post_norm"});
  eyes = tiny_encoder("qwen2_vl");
  CHECK(models::validate(eyes).empty());
  CHECK(eyes.min_pixels == 4 * 16);
  CHECK(eyes.max_pixels == 1280 * 16);
  eyes.max_pixels = 8;
  eyes.class_token = eyes.post_norm = true;
  CHECK(fields(models::validate(eyes)) == std::vector<std::string>{"max_pixels", "class_token", "post_norm"});
  eyes = tiny_encoder("clip tiles");
  CHECK(models::validate(eyes).empty());
  CHECK(models::tile_side(eyes) == 3);
  CHECK(models::most_tiles(eyes) == 3);
  CHECK(models::most_tiles(tiny_encoder("clip")) == 1);
  eyes.pinpoints = {{6, 7}, {0, 6}, {600, 600}};
  eyes.select = "full";
  eyes.projector.kind = "none";
  CHECK(fields(models::validate(eyes)) == std::vector<std::string>{"anyres.pinpoints", "anyres.pinpoints",
                                                                   "anyres.pinpoints", "select", "projector.kind"});
  eyes = tiny_encoder("qwen2_audio");
  CHECK(models::validate(eyes).empty());
  eyes.pool = 17;
  CHECK(fields(models::validate(eyes)) == std::vector<std::string>{"pool"});
  eyes.pool = 0;
  CHECK(fields(models::validate(eyes)) == std::vector<std::string>{"pool"});
  eyes = tiny_encoder("whisper");
  eyes.modality = "image";
  CHECK(fields(models::validate(eyes)) == std::vector<std::string>{"kind"});
  CHECK_THROWS_AS(models::llm_preset("bert"), ConfigError);
  CHECK_THROWS_WITH(models::encoder_preset("vit"),
                    "kind: 'vit' is not one of clip, siglip, qwen2_vl, whisper, qwen2_audio");
  CHECK(fields(models::validate_tp(tiny_llm("qwen3"), 3)) == std::vector<std::string>{"tp"});
  CHECK(models::validate_tp(tiny_llm("qwen3"), 4).empty());  // two key heads, each on two ranks
}

TEST_CASE("derived sizes and counts of the published models") {
  LlmSpec llama = models::llm_preset("llama");
  llama.vocabulary = 32000;
  llama.hidden = 4096;
  llama.intermediate = 11008;
  llama.layers = 32;
  llama.heads = 32;
  models::resolve(llama);
  CHECK(models::validate(llama).empty());
  CHECK(llama.head_dim == 128);
  CHECK(models::count_parameters(models::build_llm(llama, {}, setting(DType::bf16))).total == 6738415616);

  LlmSpec qwen = models::llm_preset("qwen2");  // 0.5B
  qwen.vocabulary = 151936;
  qwen.hidden = 896;
  qwen.intermediate = 4864;
  qwen.layers = 24;
  qwen.heads = 14;
  qwen.kv_heads = 2;
  qwen.tie_embeddings = true;
  models::resolve(qwen);
  CHECK(models::count_parameters(models::build_llm(qwen, {}, setting(DType::bf16))).total == 494032768);

  EncoderSpec clip = models::encoder_preset("clip");  // ViT-L/14 at 336
  clip.name = "eyes";
  clip.hidden = 1024;
  clip.layers = 24;
  clip.heads = 16;
  clip.projector.kind = "none";
  models::resolve(clip, 4096);
  CHECK(models::validate(clip).empty());
  CHECK(models::position_rows(clip) == 577);
  clip.post_norm = true;
  CHECK(models::count_parameters(models::build_encoder(clip, 4096, setting(DType::bf16))).total == 303507456);

  EncoderSpec qwen_eyes = models::encoder_preset("qwen2_vl");  // of the 2B model, with its merger
  qwen_eyes.name = "eyes";
  qwen_eyes.hidden = 1280;
  qwen_eyes.layers = 32;
  qwen_eyes.heads = 16;
  models::resolve(qwen_eyes, 1536);
  CHECK(models::validate(qwen_eyes).empty());
  CHECK(qwen_eyes.max_pixels == 1003520);
  CHECK(models::count_parameters(models::build_encoder(qwen_eyes, 1536, setting(DType::bf16))).total == 665271296);

  EncoderSpec whisper = models::encoder_preset("whisper");  // large-v3's encoder
  whisper.name = "ears";
  whisper.hidden = 1280;
  whisper.layers = 32;
  whisper.heads = 20;
  whisper.mels = 128;
  whisper.projector.kind = "none";
  models::resolve(whisper, 4096);
  const models::ParamCount count = models::count_parameters(models::build_encoder(whisper, 4096, setting(DType::bf16)));
  CHECK(count.total == 636968960);
  CHECK(count.total - count.trainable == 1500 * 1280);  // the positions are frozen
}

TEST_CASE("costs count the products that the frozen pattern needs") {
  LlmSpec s = tiny_llm("qwen3", 3);  // hidden 32, heads 4 and 2 of 16, inner 40
  const auto cost = [&](Trainable f) {
    return models::build_llm(s, {}, setting(DType::f32, std::move(f)), {2, 3}).units[0]->plan().cost;
  };
  const std::int64_t products = 2 * (32 * 64 + 2 * 32 * 32 + 64 * 32 + 3 * 32 * 40);
  const std::int64_t tile = 2 * 48 * 64 * 16 * 4;
  const plan::LayerCost all = cost(all_train);
  CHECK(all.forward.per_row == products);
  CHECK(all.backward_input.per_row == products);
  CHECK(all.backward_weight.per_row == products);
  CHECK(all.forward.per_tile == 2 * tile);
  CHECK(all.backward_input.per_tile == 5 * tile);
  // A frozen block on top of trainable ones needs the input gradients only, one below nothing.
  const plan::LayerCost above = cost([](const std::string& p) { return contains(p, "layers.0."); });
  CHECK(above.backward_input.per_row == products);
  CHECK(above.backward_weight.per_row == 0);
  const plan::LayerCost below = cost([](const std::string& p) { return contains(p, "layers.2."); });
  CHECK(below.backward_input.per_row == 0);
  CHECK(below.backward_input.per_tile == 0);
  // A trainable value projection at the bottom: gradients down to it, through the MLP and attention's output.
  const plan::LayerCost value = cost([](const std::string& p) { return contains(p, "layers.1.self_attn.v_proj"); });
  CHECK(value.backward_input.per_row == 2 * (64 * 32 + 3 * 32 * 40));
  CHECK(value.backward_weight.per_row == 2 * 32 * 32);
  CHECK(value.backward_input.per_tile == 3 * tile);
  // The head's work is booked in its forward.
  const auto head = [&](Trainable f) {
    return models::build_llm(s, {}, setting(DType::f32, std::move(f)), {4, -1})
        .units[0]
        ->plan()
        .cost.forward.per_supervised;
  };
  CHECK(head(all_train) == 3 * 2 * 32 * 37);
  CHECK(head([](const std::string& p) { return !contains(p, "lm_head"); }) == 2 * 2 * 32 * 37);
  CHECK(head(none_train) == 2 * 32 * 37);
}

TEST_CASE("masks of layers with windows") {
  LlmSpec s = tiny_llm("mistral", 4);
  CHECK(models::mask_windows(s) == std::vector<std::int32_t>{0, 3});
  CHECK(models::mask_of_layer(s, 0) == 0);
  CHECK(models::mask_of_layer(s, 3) == 1);
  s.window_from_layer = 0;
  CHECK(models::mask_windows(s) == std::vector<std::int32_t>{3});
  CHECK(models::mask_of_layer(s, 3) == 0);
  s.sliding_window = 0;
  CHECK(models::mask_windows(s) == std::vector<std::int32_t>{0});
}

TEST_CASE("stages of a pipeline hold their layers and know their gradients") {
  const LlmSpec s = tiny_llm("llama", 4);
  const Trainable top = [](const std::string& p) { return contains(p, "layers.3.") || contains(p, "layers.1."); };
  const run::Stage first = models::build_llm(s, {}, setting(DType::f32, top), {0, 3});
  const run::Stage last = models::build_llm(s, {}, setting(DType::f32, top), {3, -1});
  CHECK(first.units.size() == 3);
  CHECK(last.units.size() == 3);
  CHECK(last.ports().size() == 1);
  CHECK(last.ports()[0].name == "x");
  CHECK(first.units[2]->plan().output.needs_grad);
  CHECK_FALSE(first.units[1]->plan().output.needs_grad);
  CHECK(last.units[0]->plan().inputs[0].needs_grad);
}

TEST_CASE("loss weights by token and by sample") {
  using models::LossWeighting;
  CHECK(models::sample_weight(LossWeighting::token, 5) == 5.0);
  CHECK(models::sample_weight(LossWeighting::sample, 5) == 1.0);
  CHECK(models::sample_weight(LossWeighting::sample, 0) == 0.0);
  CHECK(models::label_weight(LossWeighting::sample, 4) == 0.25);
  CHECK(models::parse_loss_weighting("sample") == LossWeighting::sample);
  CHECK_FALSE(models::parse_loss_weighting("mean").has_value());
  std::vector<float> w(4, -1.0F);
  models::fill_label_weights(LossWeighting::sample, w);
  CHECK(w == std::vector<float>(4, 0.25F));
}
