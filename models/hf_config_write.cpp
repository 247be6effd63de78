// config.json of modules that were not imported, as transformers 5 writes it.
#include "models/hf_config.h"

#include "core/error.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mmt::models {
namespace {

using Json = nlohmann::ordered_json;

/// transformers' name of an activation.
std::string activation_name(const std::string& name) {
  switch (*parse_activation(name)) {
    case Activation::gelu_erf: return "gelu";
    case Activation::gelu_tanh: return "gelu_pytorch_tanh";
    case Activation::gelu_quick: return "quick_gelu";
    case Activation::silu: return "silu";
  }
  return name;
}

[[noreturn]] void refuse(const std::string& module, const std::string& kind, const std::string& why) {
  throw ConfigError(
      fmt::format("{}: no model of transformers is a {} {}, so that it cannot be exported as one", module, kind, why));
}

/// What a family's class cannot express would be lost silently.
void check_family(const LlmSpec& s, bool has_tower) {
  const LlmSpec family = llm_preset(s.kind);
  if (s.kind == "gpt2") refuse(s.name, s.kind, "with these parameter names");
  if (s.norm != NormKind::rms) refuse(s.name, s.kind, "with layer norms");
  if (!s.gated) refuse(s.name, s.kind, "without gated MLP");
  if (!s.rotary) refuse(s.name, s.kind, "without rotary positions");
  if (!s.mrope_section.empty() && !has_tower)
    refuse(s.name, s.kind, "with three positions a row (mrope_section) and no tower");
  if (s.qk_norm != family.qk_norm) refuse(s.name, s.kind, s.qk_norm ? "with q and k norms" : "without q and k norms");
  const bool bias_key = s.kind == "llama" || s.kind == "qwen3";
  if (bias_key ? s.qkv_bias != s.o_bias : s.qkv_bias != family.qkv_bias || s.o_bias != family.o_bias)
    refuse(s.name, s.kind, "with these attention biases");
  if (s.mlp_bias && s.kind != "llama") refuse(s.name, s.kind, "with MLP biases");
  if (s.sliding_window > 0 && s.kind == "llama") refuse(s.name, s.kind, "with a sliding window");
  if (s.sliding_window > 0 && s.kind == "mistral" && s.window_from_layer > 0)
    refuse(s.name, s.kind, "with windows in some layers only");
}

Json rope_of(const LlmSpec& s) {
  Json rope = {{"rope_theta", s.rope_theta}, {"rope_type", "default"}};
  if (!s.rope_scaling) return rope;
  const RopeScaling& c = *s.rope_scaling;
  rope["factor"] = c.factor;
  switch (c.kind) {
    case RopeKind::llama3:
      rope["rope_type"] = "llama3";
      rope["low_freq_factor"] = c.low_freq_factor;
      rope["high_freq_factor"] = c.high_freq_factor;
      rope["original_max_position_embeddings"] = c.original_max_position;
      break;
    case RopeKind::linear: rope["rope_type"] = "linear"; break;
    case RopeKind::dynamic: rope["rope_type"] = "dynamic"; break;
    case RopeKind::yarn:
      rope["rope_type"] = "yarn";
      rope["original_max_position_embeddings"] = c.original_max_position;
      rope["beta_fast"] = c.beta_fast;
      rope["beta_slow"] = c.beta_slow;
      rope["truncate"] = c.truncate;
      if (c.attention_factor > 0) rope["attention_factor"] = c.attention_factor;
      if (c.mscale > 0) rope["mscale"] = c.mscale;
      if (c.mscale_all_dim > 0) rope["mscale_all_dim"] = c.mscale_all_dim;
  }
  return rope;
}

Json config_of(const LlmSpec& s, const std::string& dtype) {
  const bool qwen = s.kind == "qwen2" || s.kind == "qwen3";
  Json j = {{"architectures",
             {s.kind == "llama"     ? "LlamaForCausalLM"
              : s.kind == "mistral" ? "MistralForCausalLM"
              : s.kind == "qwen2"   ? "Qwen2ForCausalLM"
                                    : "Qwen3ForCausalLM"}},
            {"model_type", s.kind},
            {"dtype", dtype},
            {"vocab_size", s.vocabulary},
            {"hidden_size", s.hidden},
            {"intermediate_size", s.intermediate},
            {"num_hidden_layers", s.layers},
            {"num_attention_heads", s.heads},
            {"num_key_value_heads", s.kv_heads},
            {"head_dim", s.head_dim},
            {"hidden_act", activation_name(s.activation)},
            {"rms_norm_eps", s.norm_epsilon},
            {"tie_word_embeddings", s.tie_embeddings},
            {"rope_parameters", rope_of(s)}};
  if (s.rope_scaling && s.rope_scaling->kind == RopeKind::dynamic) {
    j["max_position_embeddings"] = s.rope_scaling->original_max_position;
  }
  if (s.kind == "llama" || s.kind == "qwen3") j["attention_bias"] = s.qkv_bias;
  if (s.kind == "llama") j["mlp_bias"] = s.mlp_bias;
  if (s.kind == "mistral") j["sliding_window"] = s.sliding_window > 0 ? Json(s.sliding_window) : Json(nullptr);
  if (qwen) {
    j["use_sliding_window"] = s.sliding_window > 0;
    j["sliding_window"] = s.sliding_window > 0 ? Json(s.sliding_window) : Json(nullptr);
    j["max_window_layers"] = s.sliding_window > 0 ? s.window_from_layer : s.layers;
    Json types = Json::array();
    for (int layer = 0; layer < s.layers; ++layer)
      types.push_back(s.sliding_window > 0 && layer >= s.window_from_layer ? "sliding_attention" : "full_attention");
    j["layer_types"] = types;
  }
  return j;
}

/// Of Qwen2-VL's tower with its merger, whose rows are as wide as the LLM's.
Json qwen2_vl_vision(const EncoderSpec& s, std::int64_t llm_hidden) {
  const ProjectorSpec& p = s.projector;
  if (p.kind != "merger" || !p.bias || activation_name(p.activation) != "gelu" || p.hidden != output_width(s))
    refuse(s.name, s.kind, "without the merger of its family (projector: kind, hidden, bias, activation)");
  if (s.intermediate % s.hidden != 0) refuse(s.name, s.kind, "with an MLP that is no multiple of its width");
  if (!s.key_bias || s.norm_epsilon != 1e-6 || s.patch_bias || s.rope_theta != 10000)
    refuse(s.name, s.kind, "with these parts (key_bias, norm_epsilon, patch_bias, rope_theta)");
  return {{"model_type", "qwen2_vl_vision"},
          {"depth", s.layers},
          {"embed_dim", s.hidden},
          {"hidden_size", llm_hidden},
          {"mlp_ratio", s.intermediate / s.hidden},
          {"num_heads", s.heads},
          {"in_channels", 3},
          {"patch_size", s.patch},
          {"spatial_merge_size", s.merge},
          {"temporal_patch_size", s.frames},
          {"hidden_act", activation_name(s.activation)}};
}

}  // namespace

std::string hf_config_of(const LlmSpec& s, const std::string& dtype) {
  check_family(s, false);
  return config_of(s, dtype).dump(2) + "\n";
}

std::string hf_config_of(const EncoderSpec& tower, const LlmSpec& llm, const std::string& dtype) {
  if (llm.kind != "qwen2") refuse(llm.name, llm.kind, "with three positions a row (mrope_section)");
  check_family(llm, true);
  Json text = config_of(llm, dtype);
  text.erase("architectures");
  text.erase("head_dim");  // the class takes hidden / heads
  if (llm.head_dim * llm.heads != llm.hidden)
    refuse(llm.name, llm.kind, "with heads of another width than hidden / heads");
  text["model_type"] = "qwen2_vl_text";
  text["rope_parameters"]["mrope_section"] = llm.mrope_section;
  const Json j = {{"architectures", {"Qwen2VLForConditionalGeneration"}},
                  {"model_type", "qwen2_vl"},
                  {"dtype", dtype},
                  {"tie_word_embeddings", llm.tie_embeddings},
                  {"text_config", text},
                  {"vision_config", qwen2_vl_vision(tower, llm.hidden)}};
  return j.dump(2) + "\n";
}

std::string hf_config_of(const EncoderSpec& s, std::int64_t llm_hidden, const std::string& dtype) {
  if (s.kind == "qwen2_vl") {
    Json j = {{"architectures", {"Qwen2VisionTransformerPretrainedModel"}}, {"dtype", dtype}};
    j.update(qwen2_vl_vision(s, llm_hidden));
    return j.dump(2) + "\n";
  }
  if (s.modality == "audio") {
    if (!s.post_norm || s.key_bias || s.norm_epsilon != 1e-5 || s.pool != encoder_preset(s.kind).pool)
      refuse(s.name, s.kind, "with these parts (post_norm, key_bias, norm_epsilon, pool)");
  } else if (!s.key_bias) {
    refuse(s.name, s.kind, "without key biases");
  }
  if (s.modality == "audio") {
    const bool whisper = s.kind == "whisper";
    const Json j = {{"architectures", {whisper ? "WhisperEncoder" : "Qwen2AudioEncoder"}},
                    {"model_type", whisper ? "whisper" : "qwen2_audio_encoder"},
                    {"dtype", dtype},
                    {"d_model", s.hidden},
                    {"encoder_ffn_dim", s.intermediate},
                    {"encoder_layers", s.layers},
                    {"encoder_attention_heads", s.heads},
                    {"num_mel_bins", s.mels},
                    {"max_source_positions", s.max_positions},
                    {"activation_function", activation_name(s.activation)}};
    return j.dump(2) + "\n";
  }
  const EncoderSpec family = encoder_preset(s.kind);
  if (s.class_token != family.class_token || s.patch_bias != family.patch_bias || s.pre_norm != family.pre_norm)
    refuse(s.name, s.kind, "with these parts (class_token, patch_bias, pre_norm)");
  const bool clip = s.kind == "clip";
  Json j = {{"architectures", {clip ? "CLIPVisionModel" : "SiglipVisionModel"}},
            {"model_type", clip ? "clip_vision_model" : "siglip_vision_model"},
            {"dtype", dtype},
            {"hidden_size", s.hidden},
            {"intermediate_size", s.intermediate},
            {"num_hidden_layers", s.layers},
            {"num_attention_heads", s.heads},
            {"num_channels", 3},
            {"image_size", s.image_size},
            {"patch_size", s.patch},
            {"hidden_act", activation_name(s.activation)},
            {"layer_norm_eps", s.norm_epsilon}};
  if (!clip) j["vision_use_head"] = false;  // its pooling is no part of a trained tower
  return j.dump(2) + "\n";
}

}  // namespace mmt::models
