// config.json in the spellings of transformers 4 and 5, and what a file may leave out.
#include "models/hf_config.h"
#include "tests/support/message_of.h"

#include <catch2/catch.hpp>

#include <algorithm>

using namespace mmt;
using namespace mmt::models;
using mmt::test::message_of;

namespace {

HfConfig parse(const std::string& json) { return parse_hf_config(json, "m/config.json"); }

bool noted(const HfConfig& c, const std::string& text) {
  return std::ranges::find(c.defaults, text) != c.defaults.end();
}

}  // namespace

TEST_CASE("a Llama 3 of the hub is read with its rope scaling") {
  const HfConfig c = parse(R"({"model_type": "llama", "torch_dtype": "bfloat16", "vocab_size": 128256,
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 64, "hidden_act": "silu", "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
    "tie_word_embeddings": true, "attention_bias": false, "mlp_bias": false, "eos_token_id": [128001, 128008],
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3"}})");
  REQUIRE(c.llm.has_value());
  CHECK_FALSE(c.encoder.has_value());
  const LlmSpec& s = *c.llm;
  CHECK(s.kind == "llama");
  CHECK(s.vocabulary == 128256);
  CHECK(s.hidden == 2048);
  CHECK(s.intermediate == 8192);
  CHECK(s.layers == 16);
  CHECK(s.heads == 32);
  CHECK(s.kv_heads == 8);
  CHECK(s.head_dim == 64);
  CHECK(s.rope_theta == 500000.0);
  CHECK(s.tie_embeddings);
  CHECK_FALSE(s.qkv_bias);
  REQUIRE(s.rope_scaling.has_value());
  CHECK(s.rope_scaling->factor == 32.0);
  CHECK(s.rope_scaling->original_max_position == 8192);
  CHECK(c.dtype == "bfloat16");
  CHECK(c.defaults.empty());
}

TEST_CASE("transformers 5 writes rope_parameters layer_types and dtype") {
  const HfConfig c = parse(R"({"model_type": "qwen2", "dtype": "bfloat16", "vocab_size": 300, "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "hidden_act": "silu", "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "use_sliding_window": true,
    "sliding_window": 128, "max_window_layers": 1, "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]})");
  const LlmSpec& s = *c.llm;
  CHECK(s.rope_theta == 1e6);
  CHECK_FALSE(s.rope_scaling.has_value());
  CHECK(s.sliding_window == 128);
  CHECK(s.window_from_layer == 1);
  CHECK(s.qkv_bias);
  CHECK_FALSE(s.o_bias);
  CHECK(c.dtype == "bfloat16");
}

TEST_CASE("a window of a Qwen2 needs its flag and that of a Mistral does not") {
  const std::string sizes = R"("vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2)";
  const auto window = [&](const std::string& more) { return *parse("{" + sizes + ", " + more + "}").llm; };
  CHECK(window(R"("model_type": "qwen2", "sliding_window": 32768, "max_window_layers": 2)").sliding_window == 0);
  const LlmSpec flagged =
      window(R"("model_type": "qwen2", "sliding_window": 32, "max_window_layers": 2, "use_sliding_window": true)");
  CHECK(flagged.sliding_window == 32);
  CHECK(flagged.window_from_layer == 2);
  CHECK(window(R"("model_type": "mistral", "sliding_window": null)").sliding_window == 0);
  CHECK(window(R"("model_type": "mistral", "sliding_window": 16)").sliding_window == 16);
  CHECK(window(R"("model_type": "mistral")").sliding_window == 4096);  // the class's own
  CHECK(window(R"("model_type": "llama", "sliding_window": 16)").sliding_window == 0);
}

TEST_CASE("what a file leaves out is the default of its type and is noted") {
  const HfConfig llama = parse(R"({"model_type": "llama", "vocab_size": 32064})");
  CHECK(llama.llm->hidden == 4096);
  CHECK(llama.llm->intermediate == 11008);
  CHECK(llama.llm->kv_heads == 32);
  CHECK(llama.llm->head_dim == 128);
  CHECK(llama.llm->norm_epsilon == 1e-6);
  CHECK(noted(llama, "hidden_size 4096"));
  CHECK(noted(llama, "tie_word_embeddings false"));
  CHECK_FALSE(noted(llama, "vocab_size 32064"));
  const HfConfig qwen3 = parse(R"({"model_type": "qwen3", "hidden_size": 1024, "num_attention_heads": 16})");
  CHECK(qwen3.llm->head_dim == 128);  // not hidden / heads
  CHECK(qwen3.llm->qk_norm);
  const HfConfig clip = parse(R"({"model_type": "clip_vision_model"})");
  CHECK(clip.encoder->patch == 32);
  CHECK(clip.encoder->activation == "gelu_quick");
  const HfConfig whisper = parse(R"({"model_type": "whisper"})");
  CHECK(whisper.encoder->hidden == 384);
  CHECK(whisper.encoder->max_positions == 1500);
}

TEST_CASE("a LLaVA has a tower a projector and an LLM") {
  // As llava-1.5-7b-hf has it: the text_config of five keys.
  const HfConfig c = parse(R"({"model_type": "llava", "image_token_index": 32000, "projector_hidden_act": "gelu",
    "vision_feature_layer": -2, "vision_feature_select_strategy": "default", "vocab_size": 32064,
    "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "rms_norm_eps": 1e-05,
      "torch_dtype": "float16", "vocab_size": 32064},
    "vision_config": {"hidden_size": 1024, "image_size": 336, "intermediate_size": 4096,
      "model_type": "clip_vision_model", "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14}})");
  REQUIRE(c.llm.has_value());
  REQUIRE(c.encoder.has_value());
  CHECK(c.has_projector);
  CHECK(c.llm->hidden == 4096);
  CHECK(c.llm->vocabulary == 32064);
  CHECK(c.encoder->kind == "clip");
  CHECK(c.encoder->feature_layer == -2);
  CHECK(c.encoder->select == "patch");
  CHECK(c.encoder->projector.kind == "mlp2");
  CHECK(c.encoder->projector.hidden == 4096);
  CHECK(noted(c, "text_config.hidden_size 4096"));
  // Without a vision_config the tower is CLIP ViT-L/14-336.
  const HfConfig bare = parse(R"({"model_type": "llava"})");
  CHECK(bare.encoder->layers == 24);
  CHECK(bare.encoder->image_size == 336);
  // The whole model ties, the text_config does not.
  CHECK(parse(R"({"model_type": "llava", "tie_word_embeddings": true})").llm->tie_embeddings);
  CHECK(parse(R"({"model_type": "llava", "text_config": {"tie_word_embeddings": true}})").llm->tie_embeddings);
}

TEST_CASE("a LLaVA-NeXT is a LLaVA with sizes that pictures are cut from") {
  // As llava-v1.6-mistral-7b-hf has it.
  const HfConfig c = parse(R"({"model_type": "llava_next", "image_token_index": 32000, "projector_hidden_act": "gelu",
    "image_grid_pinpoints": [[336, 672], [672, 336]], "vision_feature_layer": -2, "use_image_newline_parameter": true,
    "vision_feature_select_strategy": "default", "vocab_size": 32064, "tie_word_embeddings": false,
    "text_config": {"model_type": "mistral", "intermediate_size": 14336, "max_position_embeddings": 32768,
      "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null,
      "vocab_size": 32064},
    "vision_config": {"hidden_size": 1024, "image_size": 336, "intermediate_size": 4096,
      "model_type": "clip_vision_model", "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14}})");
  CHECK(c.llm->kind == "mistral");
  CHECK(c.llm->sliding_window == 0);
  CHECK(c.has_projector);
  CHECK(c.encoder->feature_layer == -2);
  CHECK(c.encoder->pinpoints == std::vector<std::array<int, 2>>{{336, 672}, {672, 336}});
  CHECK(memory_prefix(c, HfPart::projector) == "model.multi_modal_projector.");
  const HfConfig bare = parse(R"({"model_type": "llava_next"})");
  CHECK(bare.encoder->pinpoints.size() == 5);
  CHECK(noted(bare, "image_grid_pinpoints [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]"));
  const auto message = [](const std::string& more) {
    return message_of<ConfigError>([&] { parse(R"({"model_type": "llava_next", )" + more + "}"); });
  };
  CHECK_THAT(message(R"("image_grid_pinpoints": [])"), Catch::Contains("m/config.json: image_grid_pinpoints"));
  CHECK_THAT(message(R"("image_grid_pinpoints": [[336]])"), Catch::Contains("image_grid_pinpoints: expected a list"));
  CHECK_THAT(message(R"("image_grid_pinpoints": [[336, 0]])"), Catch::Contains("image_grid_pinpoints: expected pairs"));
  CHECK_THAT(message(R"("image_grid_pinpoints": [[336, 1e30]])"), Catch::Contains("expected pairs"));
  CHECK_THAT(message(R"("vision_feature_select_strategy": "full")"), Catch::Contains("class rows of tiles"));
}

TEST_CASE("mistakes in a config.json name the file and the key") {
  const auto message = [](const std::string& json) { return message_of<ConfigError>([&] { parse(json); }); };
  CHECK_THAT(message("{"), Catch::StartsWith("m/config.json:1:"));
  CHECK_THAT(message("[]"), Catch::Contains("not an object"));
  CHECK_THAT(message("{}"), Catch::Contains("model_type is missing"));
  CHECK_THAT(message(R"({"model_type": 3})"), Catch::Contains("m/config.json: model_type: expected a string"));
  CHECK_THAT(message(R"({"model_type": "gpt2"})"), Catch::Contains("llama, mistral, qwen2, qwen3"));
  CHECK_THAT(message(R"({"model_type": "llama", "hidden_size": -4})"), Catch::Contains("hidden_size: expected"));
  CHECK_THAT(message(R"({"model_type": "llama", "hidden_size": 1e30})"), Catch::Contains("hidden_size: expected"));
  CHECK_THAT(message(R"({"model_type": "llama", "hidden_size": 4.5})"), Catch::Contains("hidden_size: expected"));
  CHECK_THAT(message(R"({"model_type": "llama", "hidden_size": 100})"), Catch::Contains("do not divide"));
  CHECK_THAT(message(R"({"model_type": "llama", "hidden_act": "relu"})"), Catch::Contains("\"relu\""));
  CHECK_THAT(message(R"({"model_type": "llama", "rope_scaling": {"type": "other", "factor": 2}})"),
             Catch::Contains("rope_scaling.type: \"other\""));
  CHECK_THAT(message(R"({"model_type": "llama", "rope_parameters": []})"),
             Catch::Contains("rope_parameters: expected"));
  CHECK_THAT(message(R"({"model_type": "qwen2", "num_hidden_layers": 2, "layer_types": ["full_attention"]})"),
             Catch::Contains("1 entries for 2 layers"));
  CHECK_THAT(message(R"({"model_type": "qwen2", "num_hidden_layers": 2,
                         "layer_types": ["sliding_attention", "full_attention"]})"),
             Catch::Contains("not supported"));
  CHECK_THAT(message(R"({"model_type": "llava", "vision_feature_layer": [-2, -5]})"), Catch::Contains("a list"));
  CHECK_THAT(message(R"({"model_type": "llava", "text_config": {"model_type": "gemma"}})"),
             Catch::Contains("text_config.model_type: \"gemma\""));
  CHECK_THAT(message(R"({"model_type": "llava", "vision_config": {"model_type": "siglip_vision_model"}})"),
             Catch::Contains("drops the first patch"));
}

TEST_CASE("a written config.json is read back as the same spec") {
  LlmSpec s = llm_preset(GENERATE("llama", "mistral", "qwen2", "qwen3"));
  s.vocabulary = 500;
  s.hidden = 64;
  s.layers = 3;
  s.heads = 4;
  s.kv_heads = 2;
  s.rope_theta = 12345;
  if (s.kind == "llama") s.rope_scaling = RopeScaling{8, 1, 4, 64};
  if (s.kind != "llama") s.sliding_window = 48;
  if (s.kind == "qwen2") s.window_from_layer = 2;
  resolve(s);
  const HfConfig c = parse(hf_config_of(s, "bfloat16"));
  const LlmSpec& r = *c.llm;
  CHECK(r.kind == s.kind);
  CHECK(r.vocabulary == s.vocabulary);
  CHECK(r.hidden == s.hidden);
  CHECK(r.intermediate == s.intermediate);
  CHECK(r.layers == s.layers);
  CHECK(r.heads == s.heads);
  CHECK(r.kv_heads == s.kv_heads);
  CHECK(r.head_dim == s.head_dim);
  CHECK(r.norm_epsilon == s.norm_epsilon);
  CHECK(r.rope_theta == s.rope_theta);
  CHECK(r.rope_scaling.has_value() == s.rope_scaling.has_value());
  CHECK(r.sliding_window == s.sliding_window);
  CHECK(r.window_from_layer == s.window_from_layer);
  CHECK(r.qkv_bias == s.qkv_bias);
  CHECK(c.defaults.empty());

  LlmSpec odd = s;
  odd.norm = NormKind::layer;
  CHECK_THROWS_AS(hf_config_of(odd, "bfloat16"), ConfigError);
  odd = s;
  odd.mrope_section = {2, 3, 3};
  CHECK_THROWS_AS(hf_config_of(odd, "bfloat16"), ConfigError);
}

TEST_CASE("every kind of rope scaling is written and read back") {
  LlmSpec s = llm_preset("llama");
  s.vocabulary = 500;
  s.hidden = 64;
  s.layers = 1;
  s.heads = 4;
  RopeScaling c;
  c.factor = 3;
  c.kind = GENERATE(RopeKind::llama3, RopeKind::linear, RopeKind::dynamic, RopeKind::yarn);
  if (c.kind != RopeKind::linear) c.original_max_position = 4096;
  if (c.kind == RopeKind::yarn) {
    c.beta_fast = 20;
    c.truncate = false;
    c.mscale = 0.9;
    c.mscale_all_dim = 0.7;
    c.attention_factor = GENERATE(0.0, 1.5);
  }
  s.rope_scaling = c;
  resolve(s);
  const HfConfig read = parse(hf_config_of(s, "bfloat16"));
  CHECK(read.llm->rope_scaling == s.rope_scaling);
  CHECK(read.defaults.empty());
}

TEST_CASE("the original length of rope scaling is the model's where it is not named") {
  const std::string head = R"({"model_type": "llama", "max_position_embeddings": 2048, "rope_scaling": )";
  CHECK(parse(head + R"({"type": "dynamic", "factor": 2.0}})").llm->rope_scaling->original_max_position == 2048);
  CHECK(parse(head + R"({"type": "yarn", "factor": 2.0}})").llm->rope_scaling->original_max_position == 2048);
  CHECK(parse(head + R"({"type": "linear", "factor": 2.0}})").llm->rope_scaling->kind == RopeKind::linear);
}

TEST_CASE("a written config.json of a tower is read back as the same spec") {
  EncoderSpec s = encoder_preset(GENERATE("clip", "siglip", "whisper", "qwen2_vl", "qwen2_audio"));
  s.hidden = 64;
  s.layers = 3;
  s.heads = 4;
  resolve(s, 64);
  const HfConfig c = parse(hf_config_of(s, 48, "float32"));
  const EncoderSpec r = *c.encoder;
  CHECK(c.has_projector == (s.kind == "qwen2_vl"));
  CHECK(r.kind == s.kind);
  CHECK(r.hidden == s.hidden);
  CHECK(r.intermediate == s.intermediate);
  CHECK(r.layers == s.layers);
  CHECK(r.heads == s.heads);
  CHECK(r.activation == s.activation);
  CHECK(r.patch == s.patch);
  CHECK(r.image_size == s.image_size);
  CHECK(r.mels == s.mels);
  CHECK(r.max_positions == s.max_positions);
  CHECK(r.pool == s.pool);
  CHECK(r.merge == s.merge);
  CHECK(r.frames == s.frames);
}

TEST_CASE("a written config.json of a whole Qwen2-VL is read back as the same specs") {
  EncoderSpec tower = encoder_preset("qwen2_vl");
  tower.name = "eyes";
  tower.hidden = 64;
  tower.intermediate = 192;
  tower.layers = 3;
  tower.heads = 4;
  LlmSpec llm = llm_preset("qwen2");
  llm.vocabulary = 100;
  llm.hidden = 48;
  llm.layers = 2;
  llm.heads = 3;
  llm.kv_heads = 1;
  llm.tie_embeddings = true;
  llm.mrope_section = {2, 3, 3};
  resolve(tower, llm.hidden);
  resolve(llm);
  const HfConfig c = parse(hf_config_of(tower, llm, "bfloat16"));
  CHECK(c.encoder->intermediate == 192);
  CHECK(c.encoder->projector.hidden == tower.projector.hidden);
  CHECK(c.llm->mrope_section == llm.mrope_section);
  CHECK(c.llm->hidden == 48);
  CHECK(c.llm->intermediate == llm.intermediate);
  CHECK(c.llm->tie_embeddings);
  CHECK(c.llm->qkv_bias);
  tower.intermediate = 160;
  CHECK_THROWS_WITH(hf_config_of(tower, llm, "bfloat16"), Catch::Contains("no multiple of its width"));
  tower.intermediate = 192;
  llm.kind = "llama";
  CHECK_THROWS_WITH(hf_config_of(tower, llm, "bfloat16"), Catch::Contains("a llama with three positions"));
  llm.kind = "qwen2";
  tower.projector.kind = "mlp2";
  CHECK_THROWS_WITH(hf_config_of(tower, llm, "bfloat16"), Catch::Contains("without the merger"));
}

TEST_CASE("a Qwen2-VL is read flat and nested") {
  const std::string vision = R"("vision_config": {"depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "num_heads": 16,
    "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "hidden_size": 1536)";
  const std::string text = R"("hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
    "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936)";
  // As the hub has it (transformers 4), and as transformers 5 writes it.
  const HfConfig flat = parse(R"({"model_type": "qwen2_vl", "tie_word_embeddings": true, "use_sliding_window": false,
    "sliding_window": 32768, "rope_theta": 1000000.0, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, )" +
                              text + ", " + vision + R"(, "in_chans": 3, "model_type": "qwen2_vl"}})");
  const HfConfig nested = parse(R"({"model_type": "qwen2_vl", "tie_word_embeddings": true, "text_config":
    {"model_type": "qwen2_vl_text", "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0,
    "mrope_section": [16, 24, 24]}, )" +
                                text + "}, " + vision + R"(, "in_channels": 3}})");
  for (const HfConfig* c : {&flat, &nested}) {
    CHECK(c->llm->kind == "qwen2");
    CHECK(c->llm->hidden == 1536);
    CHECK(c->llm->mrope_section == std::vector<int>{16, 24, 24});
    CHECK(c->llm->rope_theta == 1e6);
    CHECK(c->llm->tie_embeddings);
    CHECK(c->llm->qkv_bias);
    CHECK(c->llm->sliding_window == 0);
    CHECK(c->encoder->kind == "qwen2_vl");
    CHECK(c->encoder->hidden == 1280);
    CHECK(c->encoder->intermediate == 5120);
    CHECK(c->encoder->layers == 32);
    CHECK(c->encoder->merge == 2);
    CHECK(c->encoder->frames == 2);
    CHECK(c->encoder->projector.kind == "merger");
    CHECK(c->encoder->projector.hidden == 5120);
    CHECK(validate(*c->llm).empty());
  }
  CHECK_THAT(message_of<ConfigError>([&] {
               parse(R"({"model_type": "qwen2_vl", "hidden_size": 64, "num_attention_heads": 4, )" + vision + "}}");
             }),
             Catch::Contains("vision_config.hidden_size"));
}

TEST_CASE("a Qwen2-Audio has an audio tower that pools a projector and a Qwen2") {
  // As the hub has it: most of the LLM's sizes are left open.
  const std::string text = R"("text_config": {"model_type": "qwen2", "bos_token_id": 151643, "intermediate_size": 11008,
    "max_position_embeddings": 8192, "rope_theta": 10000, "rms_norm_eps": 1e-05, "sliding_window": 32768,
    "use_mrope": false, "vocab_size": 156032})";
  const HfConfig c = parse(R"({"model_type": "qwen2_audio", "architectures": ["Qwen2AudioForConditionalGeneration"],
    "audio_token_index": 151646, "vocab_size": 156032, "audio_config": {"model_type": "qwen2_audio_encoder",
    "num_mel_bins": 128, "encoder_layers": 32, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "d_model": 1280,
    "activation_function": "gelu", "scale_embedding": false, "max_source_positions": 1500}, )" +
                           text + "}");
  REQUIRE((c.llm.has_value() && c.encoder.has_value()));
  CHECK(c.has_projector);
  CHECK(c.llm->kind == "qwen2");
  CHECK(c.llm->hidden == 4096);
  CHECK(c.llm->layers == 32);
  CHECK(c.llm->kv_heads == 32);
  CHECK(c.llm->vocabulary == 156032);
  CHECK(c.llm->norm_epsilon == 1e-5);
  CHECK(c.llm->sliding_window == 0);
  CHECK_FALSE(c.llm->tie_embeddings);
  CHECK(noted(c, "text_config.hidden_size 4096"));
  EncoderSpec e = *c.encoder;
  CHECK(e.kind == "qwen2_audio");
  CHECK(e.modality == "audio");
  CHECK(e.pool == 2);
  CHECK(e.post_norm);
  CHECK_FALSE(e.key_bias);
  CHECK(e.projector.kind == "linear");
  e.name = "ears";
  resolve(e, c.llm->hidden);
  CHECK(validate(e).empty());
  // An audio_config of a type alone, or none: the sizes of the published tower.
  for (const char* audio : {R"("audio_config": {"model_type": "qwen2_audio_encoder"})", R"("audio_token_id": 3)"}) {
    const HfConfig bare = parse(R"({"model_type": "qwen2_audio", )" + std::string(audio) + "}");
    CHECK(bare.encoder->hidden == 1280);
    CHECK(bare.encoder->heads == 20);
    CHECK(bare.encoder->mels == 128);
    CHECK(bare.llm->kind == "qwen2");
  }
  CHECK(parse(R"({"model_type": "qwen2_audio_encoder", "d_model": 64})").encoder->hidden == 64);
  CHECK_THAT(message_of<ConfigError>(
                 [] { parse(R"({"model_type": "qwen2_audio", "audio_config": {"model_type": "whisper"}})"); }),
             Catch::Contains("audio_config.model_type"));
  CHECK_THAT(
      message_of<ConfigError>([] { parse(R"({"model_type": "qwen2_audio", "text_config": {"model_type": "bert"}})"); }),
      Catch::Contains("text_config.model_type"));
  CHECK_THROWS_WITH(parse(R"({"model_type": "qwen2_audio_encoder", "encoder_layers": 5000})"), Catch::Contains("4096"));
  e.pool = 4;
  CHECK_THROWS_WITH(hf_config_of(e, 4096, "float32"), Catch::Contains("pool"));
}

TEST_CASE("layers are called in memory as the class that loads the folder has them") {
  const auto prefix = [](const std::string& json, HfPart part) { return memory_prefix(parse(json), part); };
  // As named_parameters of transformers 5.24 shows them.
  CHECK(prefix(R"({"model_type": "llama"})", HfPart::llm).empty());
  CHECK(prefix(R"({"model_type": "llava"})", HfPart::llm) == "model.language_model.");
  CHECK(prefix(R"({"model_type": "llava"})", HfPart::vision) == "model.vision_tower.");
  CHECK(prefix(R"({"model_type": "llava"})", HfPart::projector) == "model.multi_modal_projector.");
  CHECK(prefix(R"({"model_type": "clip_vision_model"})", HfPart::vision).empty());
  CHECK(prefix(R"({"model_type": "clip"})", HfPart::vision) == "vision_model.");
  CHECK(prefix(R"({"model_type": "whisper", "architectures": ["WhisperModel"]})", HfPart::audio) == "encoder.");
  CHECK(prefix(R"({"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]})", HfPart::audio) ==
        "model.encoder.");
  CHECK(prefix(R"({"model_type": "whisper", "architectures": ["WhisperEncoder"]})", HfPart::audio).empty());
  CHECK(prefix(R"({"model_type": "qwen2_audio"})", HfPart::llm) == "model.language_model.");
  CHECK(prefix(R"({"model_type": "qwen2_audio"})", HfPart::audio) == "model.audio_tower.");
  CHECK(prefix(R"({"model_type": "qwen2_audio"})", HfPart::projector) == "model.multi_modal_projector.");
  CHECK(prefix(R"({"model_type": "qwen2_audio_encoder"})", HfPart::audio).empty());
}
