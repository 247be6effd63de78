#include "models/hf_config.h"

#include "core/data/json_guard.h"
#include "core/error.h"
#include "core/files.h"
#include "models/hf_json.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

namespace mmt::models {
namespace {

constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{16} << 20;
constexpr int kMaxConfigDepth = 32;

/// What the class of a model_type in transformers takes for keys that a file lacks.
struct LlmFamily {
  const char *model_type, *kind;
  std::int64_t vocabulary, hidden, intermediate;
  int layers, heads;
  int kv_heads;  ///< 0: heads
  int head_dim;  ///< 0: hidden / heads
  double norm_epsilon, rope_theta;
};
constexpr LlmFamily kLlms[] = {
    {"llama", "llama", 32000, 4096, 11008, 32, 32, 0, 0, 1e-6, 1e4},
    {"mistral", "mistral", 32000, 4096, 14336, 32, 32, 8, 0, 1e-6, 1e4},
    {"qwen2", "qwen2", 151936, 4096, 22016, 32, 32, 32, 0, 1e-6, 1e4},
    {"qwen3", "qwen3", 151936, 4096, 22016, 32, 32, 32, 128, 1e-6, 1e4},
    {"qwen2_vl_text", "qwen2", 152064, 8192, 29568, 80, 64, 8, 0, 1e-5, 1e6},
};
constexpr int kMistralWindow = 4096, kQwenWindow = 4096, kQwenWindowFrom = 28;

struct TowerFamily {
  const char *model_type, *kind;
  std::int64_t hidden, intermediate;
  int layers, heads, patch, image_size;
  const char* activation;
  double norm_epsilon;
};
constexpr TowerFamily kTowers[] = {
    {"clip_vision_model", "clip", 768, 3072, 12, 12, 32, 224, "quick_gelu", 1e-5},
    {"siglip_vision_model", "siglip", 768, 3072, 12, 12, 16, 224, "gelu_pytorch_tanh", 1e-6},
};

std::string activation_of(const HfJson& j, const char* key, const char* fallback) {
  const std::string name = j.text(key, fallback);
  const auto known = parse_activation(name);
  if (!known) j.refuse(key, fmt::format("the activation \"{}\" is not supported", name));
  return std::string(name_of(*known));
}

/// Every layer is planned before a file is looked at.
int layers_of(const HfJson& j, const char* key, int fallback) {
  constexpr int kMostLayers = 4096;
  const int layers = j.number(key, fallback);
  if (layers > kMostLayers) j.refuse(key, fmt::format("{} is above {}", layers, kMostLayers));
  return layers;
}

/// Positions: `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling`.
void read_rope(const HfJson& j, const LlmFamily& family, LlmSpec& s) {
  const bool joined = j.has("rope_parameters");
  const char* const place = joined ? "rope_parameters" : "rope_scaling";
  const HfJson rope = j.object(place);
  s.rope_theta =
      joined && rope.has("rope_theta") ? rope.real("rope_theta", 0) : j.real("rope_theta", family.rope_theta);
  if (!(s.rope_theta > 0)) j.refuse("rope_theta", fmt::format("{} is not above 0", s.rope_theta));
  if (!joined && !j.has("rope_scaling")) return;
  const std::string type = rope.has("rope_type") ? rope.text("rope_type", "")
                           : rope.has("type")    ? rope.text("type", "")
                                                 : "default";
  // Qwen2-VL: one frequency in three turns by frame, row or column (a type of its own in transformers 4).
  s.mrope_section = rope.counts("mrope_section");
  if (type == "default" || (type == "mrope" && !s.mrope_section.empty())) return;
  RopeScaling c;
  const std::int64_t longest = j.has("max_position_embeddings") ? j.count("max_position_embeddings", 1) : 0;
  const auto original = [&] {
    const std::int64_t fallback = longest > 0 ? longest : c.original_max_position;
    c.original_max_position = rope.count("original_max_position_embeddings", fallback);
  };
  c.factor = rope.real("factor", c.factor);
  if (type == "llama3") {
    c.low_freq_factor = rope.real("low_freq_factor", c.low_freq_factor);
    c.high_freq_factor = rope.real("high_freq_factor", c.high_freq_factor);
    original();
    s.rope_scaling = c;
    return;
  }
  if (type == "linear") {
    c.kind = RopeKind::linear;
    s.rope_scaling = c;
    return;
  }
  if (type == "dynamic") {  // the length that does not stretch yet is the model's
    c.kind = RopeKind::dynamic;
    if (longest > 0) c.original_max_position = longest;
    s.rope_scaling = c;
    return;
  }
  if (type == "yarn") {
    c.kind = RopeKind::yarn;
    original();
    c.beta_fast = rope.real("beta_fast", c.beta_fast);
    c.beta_slow = rope.real("beta_slow", c.beta_slow);
    c.truncate = rope.flag("truncate", c.truncate);
    if (rope.has("attention_factor")) c.attention_factor = rope.real("attention_factor", 0);
    if (rope.has("mscale")) c.mscale = rope.real("mscale", 0);
    if (rope.has("mscale_all_dim")) c.mscale_all_dim = rope.real("mscale_all_dim", 0);
    s.rope_scaling = c;
    return;
  }
  rope.refuse(rope.has("rope_type") ? "rope_type" : "type", fmt::format("\"{}\" is not supported", type));
}

/// `layer_types` (transformers 5), else the flags of earlier files.
void read_windows(const HfJson& j, const LlmFamily& family, LlmSpec& s) {
  const bool mistral = std::string_view(family.kind) == "mistral";
  int window = 0, from = 0;
  if (j.has("layer_types")) {
    const std::vector<std::string> types = j.texts("layer_types");
    if (static_cast<int>(types.size()) < s.layers)
      j.refuse("layer_types", fmt::format("{} entries for {} layers", types.size(), s.layers));
    const auto last = types.begin() + s.layers;
    for (auto it = types.begin(); it != last; ++it) {
      if (*it != "full_attention" && *it != "sliding_attention")
        j.refuse("layer_types", fmt::format("\"{}\" is not supported", *it));
    }
    const auto first = std::find(types.begin(), last, "sliding_attention");
    if (std::find(first, last, "full_attention") != last)
      j.refuse("layer_types", "layers with a window followed by layers without one are not supported");
    if (first == last) return;
    from = static_cast<int>(first - types.begin());
    window = j.number("sliding_window", mistral ? kMistralWindow : kQwenWindow);
  } else if (mistral) {
    if (j.is_null("sliding_window")) return;
    window = j.number("sliding_window", kMistralWindow);
  } else if (std::string_view(family.kind).starts_with("qwen")) {
    if (!j.flag("use_sliding_window", false) || j.is_null("sliding_window")) return;
    window = j.number("sliding_window", kQwenWindow);
    from = static_cast<int>(std::clamp<std::int64_t>(j.whole("max_window_layers", kQwenWindowFrom), 0, s.layers));
  }
  if (from >= s.layers) return;  // no layer has it
  s.sliding_window = window;
  s.window_from_layer = from;
}

LlmSpec read_llm(const HfJson& j, const LlmFamily& family) {
  LlmSpec s = llm_preset(family.kind);
  s.vocabulary = j.count("vocab_size", family.vocabulary);
  s.hidden = j.count("hidden_size", family.hidden);
  s.intermediate = j.count("intermediate_size", family.intermediate);
  s.layers = layers_of(j, "num_hidden_layers", family.layers);
  s.heads = j.number("num_attention_heads", family.heads);
  s.kv_heads = j.number("num_key_value_heads", family.kv_heads > 0 ? family.kv_heads : s.heads);
  if (family.head_dim == 0 && !j.has("head_dim")) {
    if (s.hidden % s.heads != 0)
      j.refuse("num_attention_heads", fmt::format("{} heads do not divide hidden_size {}", s.heads, s.hidden));
    s.head_dim = static_cast<int>(s.hidden / s.heads);
  } else {
    s.head_dim = j.number("head_dim", family.head_dim);
  }
  s.norm_epsilon = j.real("rms_norm_eps", family.norm_epsilon);
  s.activation = activation_of(j, "hidden_act", "silu");
  s.tie_embeddings = j.flag("tie_word_embeddings", false);
  const std::string_view kind = family.kind;
  if (kind == "llama" || kind == "qwen3") {
    const bool bias = j.flag("attention_bias", false);
    s.qkv_bias = s.o_bias = bias;
  }
  if (kind == "llama") s.mlp_bias = j.flag("mlp_bias", false);
  read_rope(j, family, s);
  read_windows(j, family, s);
  return s;
}

EncoderSpec read_tower(const HfJson& j, const TowerFamily& family) {
  EncoderSpec s = encoder_preset(family.kind);
  s.hidden = j.count("hidden_size", family.hidden);
  s.intermediate = j.count("intermediate_size", family.intermediate);
  s.layers = layers_of(j, "num_hidden_layers", family.layers);
  s.heads = j.number("num_attention_heads", family.heads);
  s.patch = j.number("patch_size", family.patch);
  s.image_size = j.number("image_size", family.image_size);
  s.activation = activation_of(j, "hidden_act", family.activation);
  s.norm_epsilon = j.real("layer_norm_eps", family.norm_epsilon);
  if (j.has("num_channels") && j.count("num_channels", 3) != 3) j.refuse("num_channels", "only 3 are supported");
  return s;
}

/// Encoders of sound have one set of keys.
struct SoundFamily {
  const char *model_type, *kind;
  std::int64_t hidden, intermediate;
  int layers, heads, mels;
};
constexpr SoundFamily kSounds[] = {
    {"whisper", "whisper", 384, 1536, 4, 6, 80},
    {"qwen2_audio_encoder", "qwen2_audio", 1280, 5120, 32, 20, 128},
};

EncoderSpec read_sound_tower(const HfJson& j, const SoundFamily& family) {
  EncoderSpec s = encoder_preset(family.kind);
  s.hidden = j.count("d_model", family.hidden);
  s.intermediate = j.count("encoder_ffn_dim", family.intermediate);
  s.layers = layers_of(j, "encoder_layers", family.layers);
  s.heads = j.number("encoder_attention_heads", family.heads);
  s.mels = j.number("num_mel_bins", family.mels);
  s.max_positions = j.number("max_source_positions", 1500);
  s.activation = activation_of(j, "activation_function", "gelu");
  return s;
}

template <class Family, std::size_t N> const Family* family_of(const Family (&families)[N], std::string_view type) {
  const auto* found = std::ranges::find(families, type, [](const Family& f) { return std::string_view(f.model_type); });
  return found == std::end(families) ? nullptr : found;
}

/// A whole model ties when it says so or its text_config does.
void tie_if_either(const HfJson& j, LlmSpec& s) {
  if (j.has("tie_word_embeddings")) s.tie_embeddings = j.flag("tie_word_embeddings", false) || s.tie_embeddings;
}

/// The LLM under `text_config`: of the type that stands there, else `fallback`.
LlmSpec read_text_config(const HfJson& j, const char* fallback) {
  const HfJson text = j.object("text_config");
  const std::string type = text.text("model_type", fallback);
  const LlmFamily* family = family_of(kLlms, type);
  if (family == nullptr) text.refuse("model_type", fmt::format("\"{}\" is not supported as the LLM of a model", type));
  LlmSpec s = read_llm(text, *family);
  tie_if_either(j, s);
  return s;
}

void read_llava(const HfJson& j, HfConfig& c) {
  c.llm = read_text_config(j, "llama");
  const HfJson vision = j.object("vision_config");
  const std::string type = vision.text("model_type", "clip_vision_model");
  const TowerFamily* family = family_of(kTowers, type);
  if (family == nullptr)
    vision.refuse("model_type", fmt::format("\"{}\" is not supported as the tower of a llava", type));
  // Without a vision_config, the tower is CLIP ViT-L/14 at 336 pixels.
  constexpr TowerFamily kDefault = {"clip_vision_model", "clip", 1024, 4096, 24, 16, 14, 336, "quick_gelu", 1e-5};
  EncoderSpec s = read_tower(vision, j.has("vision_config") ? *family : kDefault);
  if (j.is_list("vision_feature_layer"))
    j.refuse("vision_feature_layer", "a list (features of several layers) is not supported");
  s.feature_layer = static_cast<int>(j.whole("vision_feature_layer", -2));
  const std::string select = j.text("vision_feature_select_strategy", "default");
  if (select != "default" && select != "full")
    j.refuse("vision_feature_select_strategy", fmt::format("\"{}\" is neither default nor full", select));
  s.select = select == "full" && s.class_token ? "full" : "patch";
  if (!s.class_token && select == "default")
    j.refuse("vision_feature_select_strategy", "\"default\" drops the first patch of a tower without class token");
  s.projector.kind = "mlp2";
  s.projector.hidden = c.llm->hidden;
  s.projector.activation = activation_of(j, "projector_hidden_act", "gelu");
  s.projector.bias = j.flag("multimodal_projector_bias", true);
  c.encoder = s;
  c.has_projector = true;
}

/// A llava whose pictures are cut into tiles.
void read_llava_next(const HfJson& j, HfConfig& c) {
  read_llava(j, c);
  EncoderSpec& s = *c.encoder;
  s.pinpoints = j.pairs("image_grid_pinpoints", {{336, 672}, {672, 336}, {672, 672}, {1008, 336}, {336, 1008}});
  if (s.pinpoints.empty()) j.refuse("image_grid_pinpoints", "is empty");
  if (s.select == "full" && s.class_token)
    j.refuse("vision_feature_select_strategy", "\"full\" leaves no room for the class rows of tiles");
}

void read_qwen2_audio(const HfJson& j, HfConfig& c) {
  c.llm = read_text_config(j, "qwen2");
  const HfJson audio = j.object("audio_config");
  const SoundFamily& family = *family_of(kSounds, "qwen2_audio_encoder");
  const std::string type = audio.text("model_type", family.model_type);
  if (type != family.model_type)
    audio.refuse("model_type", fmt::format("\"{}\" is not supported as the tower of a qwen2_audio", type));
  c.encoder = read_sound_tower(audio, family);
  c.has_projector = true;
}

EncoderSpec read_qwen2_vl_tower(const HfJson& vision) {
  EncoderSpec s = encoder_preset("qwen2_vl");
  s.hidden = vision.count("embed_dim", 1280);
  s.layers = layers_of(vision, "depth", 32);
  s.heads = vision.number("num_heads", 16);
  const double inner = static_cast<double>(s.hidden) * vision.real("mlp_ratio", 4);
  if (!(inner >= 1 && inner < 1e9)) vision.refuse("mlp_ratio", fmt::format("gives an MLP of {} columns", inner));
  s.intermediate = static_cast<std::int64_t>(inner);
  s.patch = vision.number("patch_size", 14);
  s.merge = vision.number("spatial_merge_size", 2);
  s.frames = vision.number("temporal_patch_size", 2);
  if (s.merge > 16 || s.frames > 16) vision.refuse("spatial_merge_size", "and temporal_patch_size must be at most 16");
  s.activation = activation_of(vision, "hidden_act", "quick_gelu");
  for (const char* key : {"in_channels", "in_chans"}) {
    if (vision.has(key) && vision.count(key, 3) != 3) vision.refuse(key, "only 3 are supported");
  }
  s.projector.kind = "merger";
  s.projector.hidden = s.hidden * s.merge * s.merge;
  return s;
}

void read_qwen2_vl(const HfJson& j, HfConfig& c) {
  // Transformers 4 writes the LLM's keys at the top.
  const LlmFamily& family = *family_of(kLlms, "qwen2_vl_text");
  c.llm = read_llm(j.has("text_config") ? j.object("text_config") : j, family);
  tie_if_either(j, *c.llm);
  const HfJson vision = j.object("vision_config");
  c.encoder = read_qwen2_vl_tower(vision);
  if (vision.has("hidden_size") && vision.count("hidden_size", 1) != c.llm->hidden)
    vision.refuse("hidden_size", fmt::format("is not the LLM's width {}", c.llm->hidden));
  c.has_projector = true;
}

}  // namespace

std::string memory_prefix(const HfConfig& c, HfPart part) {
  const bool llava = c.model_type == "llava" || c.model_type == "llava_next";
  if (llava || c.model_type == "qwen2_vl") {
    if (part == HfPart::llm) return "model.language_model.";
    if (part == HfPart::vision) return llava ? "model.vision_tower." : "model.visual.";
    return llava ? "model.multi_modal_projector." : "model.visual.merger.";
  }
  if (c.model_type == "qwen2_vl_vision") return part == HfPart::projector ? "merger." : "";
  if (c.model_type == "qwen2_audio") {
    if (part == HfPart::llm) return "model.language_model.";
    return part == HfPart::audio ? "model.audio_tower." : "model.multi_modal_projector.";
  }
  if (c.model_type == "clip" || c.model_type == "siglip") return "vision_model.";
  if (c.model_type != "whisper" || c.architecture == "WhisperEncoder") return "";
  return c.architecture == "WhisperForConditionalGeneration" ? "model.encoder." : "encoder.";
}

std::vector<std::string> hf_model_types() {
  std::vector<std::string> types;
  for (const LlmFamily& f : kLlms) types.emplace_back(f.model_type);
  for (const TowerFamily& f : kTowers) types.emplace_back(f.model_type);
  for (const SoundFamily& f : kSounds) types.emplace_back(f.model_type);
  for (const char* type : {"clip", "siglip", "llava", "llava_next", "qwen2_vl", "qwen2_vl_vision", "qwen2_audio"})
    types.emplace_back(type);
  return types;
}

HfConfig parse_hf_config(std::string_view json, const std::string& path) {
  const nlohmann::json root = data::parse_json_object(json, kMaxConfigDepth, path, "config.json");
  HfConfig c;
  c.path = path;
  const HfJson j(root, path, "", c.defaults);
  if (!j.has("model_type"))
    throw ConfigError(fmt::format("{}: model_type is missing: it says which family the model is of", path));
  c.model_type = j.text("model_type", "");
  const std::vector<std::string> architectures = j.texts("architectures");
  if (!architectures.empty()) c.architecture = architectures.front();
  c.dtype = j.has("dtype") ? j.text("dtype", "") : j.has("torch_dtype") ? j.text("torch_dtype", "") : "";
  if (const LlmFamily* llm = family_of(kLlms, c.model_type)) {
    c.llm = read_llm(j, *llm);
  } else if (const TowerFamily* tower = family_of(kTowers, c.model_type)) {
    c.encoder = read_tower(j, *tower);
  } else if (c.model_type == "clip" || c.model_type == "siglip") {
    c.encoder = read_tower(j.object("vision_config"), kTowers[c.model_type == "clip" ? 0 : 1]);
  } else if (const SoundFamily* sound = family_of(kSounds, c.model_type)) {
    c.encoder = read_sound_tower(j, *sound);
  } else if (c.model_type == "llava") {
    read_llava(j, c);
  } else if (c.model_type == "llava_next") {
    read_llava_next(j, c);
  } else if (c.model_type == "qwen2_vl") {
    read_qwen2_vl(j, c);
  } else if (c.model_type == "qwen2_vl_vision") {
    c.encoder = read_qwen2_vl_tower(j);
    c.has_projector = true;
  } else if (c.model_type == "qwen2_audio") {
    read_qwen2_audio(j, c);
  } else {
    j.refuse("model_type", fmt::format("\"{}\" is not one of {}", c.model_type, fmt::join(hf_model_types(), ", ")));
  }
  return c;
}

HfConfig read_hf_config(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / "config.json").string();
  std::string text;
  try {
    text = files::read(path, kMaxConfigBytes);
  } catch (const Error& e) {
    throw ConfigError(fmt::format("{} (a folder as save_pretrained writes it is wanted)", e.what()));
  }
  return parse_hf_config(text, path);
}

}  // namespace mmt::models
