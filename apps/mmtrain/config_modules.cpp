// The `modules` section: one entry a module, its role decides the keys.
#include "apps/mmtrain/config_read.h"
#include "core/data/weights/safetensors.h"
#include "models/hf_adapter.h"
#include "models/hf_config.h"

#include <algorithm>

namespace mmt::app {
namespace {

using config::as_choice;
using config::as_path;
using config::at_least;
using config::Kind;
using config::Reader;
using config::Value;

void read_activation(Reader& r, std::string& name) {
  if (r.optional("activation", name) && !models::parse_activation(name)) {
    r.problem("activation", fmt::format("\"{}\" is not one of gelu, gelu_tanh, gelu_quick, silu", name));
  }
}

/// `random`, {checkpoint: folder} or {hf: folder}, or both: the one's weights in the other's model. Without the key
/// what `init` holds stays. False after a mistake: what a published model would have said is then not missed.
bool read_init(Reader& r, ModuleInit& init, bool checkpoints = true) {
  if (!r.has("init")) return true;
  return r.value("init", [&](Value& v) {
    init = ModuleInit{};
    if (v.read_word("random")) return true;
    bool good = true, named = false;
    const auto read = [&](Reader& m, const char* key, std::string& path) {
      if (!m.has(key)) return;
      named = true;
      good = m.required(key, as_path(path)) && good;
    };
    const bool map = v.read_map([&](Reader& m) {
      read(m, "hf", init.hf);
      if (checkpoints) read(m, "checkpoint", init.checkpoint);
      m.rest([&](const std::string&, Value& other) {
        good = false;
        other.problem(checkpoints ? "unknown key: hf and checkpoint are known here" : "unknown key: hf is known here");
      });
      if (good && !named) m.missing(checkpoints ? "checkpoint" : "hf");
      good = good && named;
    });
    return map && good;
  });
}

/// What the config.json of `init: {hf: ...}` says; nothing where there is no such key, or a mistake was reported.
std::optional<models::HfConfig> read_published(Reader& r, const ModuleInit& init) {
  if (init.hf.empty()) return std::nullopt;
  try {
    return models::read_hf_config(init.hf);
  } catch (const ConfigError& e) {
    r.problem("init", e.what());
    return std::nullopt;
  }
}

/// Keys that other programs use, with ours.
constexpr std::pair<const char*, const char*> kLoraKeys[] = {
    {"r", "rank"},   {"lora_alpha", "alpha"},  {"lora_dropout", "dropout"}, {"target_modules", "on"},
    {"match", "on"}, {"use_rslora", "rslora"},
};

/// What the PEFT folder of `init` says becomes the default of the other keys.
bool read_adapter_folder(Reader& r, models::HfPart part, LoraConfig& lora) {
  try {
    const models::HfAdapter adapter = models::read_hf_adapter(lora.folder);
    lora.rank = adapter.rank;
    lora.alpha = adapter.alpha;
    lora.dropout = adapter.dropout;
    lora.rslora = adapter.rslora;
    lora.on = models::hf_adapter_layers(part, data::SafetensorsModel::open(lora.folder).names());
    if (lora.on.empty()) r.problem("init", fmt::format("{} has no adapters of this module", lora.folder));
    return true;
  } catch (const Error& e) {
    r.problem("init", e.what());
    return false;
  }
}

void read_lora(Reader& r, models::HfPart part, LoraConfig& lora) {
  const auto ranks = config::between(1, 65536);
  r.map("init", [&](Reader& m) { m.required("hf", as_path(lora.folder)); });
  if (!lora.folder.empty() && read_adapter_folder(r, part, lora)) {
    const std::int64_t rank = lora.rank;
    if (r.optional("rank", lora.rank, ranks) && lora.rank != rank)
      r.problem("rank", fmt::format("{} given, but the adapters that `init` names have {}", lora.rank, rank));
  } else {
    const bool has_rank = r.required("rank", lora.rank, ranks);
    lora.alpha = has_rank ? static_cast<double>(lora.rank) : 1.0;
  }
  r.optional("alpha", lora.alpha, config::above(0));
  r.optional("dropout", lora.dropout, {.min = 0.0, .max = 1.0, .below_max = true});
  r.optional("rslora", lora.rslora);
  if (!r.has("on") && lora.on.empty()) r.missing("on");
  r.value("on", [&](Value& v) {
    lora.on.clear();
    if (v.kind() == Kind::scalar) return v.read(lora.on.emplace_back());
    return bind_value(v, lora.on, {});
  });
  if (r.has("on") && lora.on.empty()) r.problem("on", "names no layer");
  r.rest([](const std::string& name, Value& v) {
    const auto* const known =
        std::ranges::find(kLoraKeys, name, [](const auto& pair) { return std::string(pair.first); });
    v.problem(known != std::end(kLoraKeys) ? fmt::format("unknown key: it is called {} here", known->second)
                                           : "unknown key (the keys here are on, rank, alpha, dropout, rslora, init)");
  });
}

void read_projector(Reader& r, EncoderConfig& e) {
  r.section("projector", [&](Reader& p) {
    models::ProjectorSpec& spec = e.spec.projector;
    p.optional("kind", as_choice(spec.kind, {{"mlp2", std::string("mlp2")},
                                             {"linear", std::string("linear")},
                                             {"none", std::string("none")},
                                             {"merger", std::string("merger")}}));
    p.optional("hidden", spec.hidden, config::between(0, kMaxSize));
    p.optional("bias", spec.bias);
    read_activation(p, spec.activation);
    p.optional("place", as_choice(e.projector_place, {{"auto", ProjectorPlace::automatic},
                                                      {"encoder", ProjectorPlace::encoder},
                                                      {"llm", ProjectorPlace::llm}}));
    read_init(p, e.projector_init, false);
    read_training(p, e.projector_trainable, e.projector_lora, models::HfPart::projector);
  });
}

/// The legal kinds of a modality.
bool read_kind(Reader& r, bool image, std::string& kind, bool published) {
  const auto read = [&](auto&& target) {
    return published ? (r.optional("kind", target), true) : r.required("kind", target);
  };
  if (image)
    return read(as_choice(
        kind,
        {{"clip", std::string("clip")}, {"siglip", std::string("siglip")}, {"qwen2_vl", std::string("qwen2_vl")}}));
  return read(as_choice(kind, {{"whisper", std::string("whisper")}, {"qwen2_audio", std::string("qwen2_audio")}}));
}

void read_encoder(Reader& r, const std::string& name, EncoderConfig& e) {
  const bool readable = read_init(r, e.init);
  const std::optional<models::HfConfig> published = read_published(r, e.init);
  if (published && !published->encoder)
    r.problem("init", fmt::format("{}: a {} has no encoder", published->path, published->model_type));
  const bool given = !e.init.hf.empty() || !readable;
  if (published && published->encoder) e.spec = *published->encoder;
  const models::EncoderSpec own = e.spec;
  std::string modality = own.modality.empty() ? "image" : own.modality, kind = own.kind;
  auto choice = as_choice(modality, {{"image", std::string("image")}, {"audio", std::string("audio")}});
  if (given)
    r.optional("modality", choice);
  else
    r.required("modality", choice);
  const bool image = modality == "image";
  const bool known = read_kind(r, image, kind, given);
  if (given && !own.kind.empty() && (kind != own.kind || modality != own.modality)) {
    r.problem("kind", fmt::format("{} for {}, but the model that `init` names has a {} for {}", kind, modality,
                                  own.kind, own.modality));
  }
  if (known && !given) e.spec = models::encoder_preset(kind);
  models::EncoderSpec& s = e.spec;
  s.name = name;
  s.modality = modality;
  read_size(r, "hidden", s.hidden, given, 1);
  read_size(r, "layers", s.layers, given, 1);
  read_size(r, "heads", s.heads, given, 1);
  read_derived(r, "intermediate", s.intermediate, given);
  read_activation(r, s.activation);
  r.optional("norm_epsilon", s.norm_epsilon, config::above(0));
  r.optional("key_bias", s.key_bias);
  r.optional("feature_layer", s.feature_layer, config::between(-kMaxSize, kMaxSize));
  r.optional("post_norm", s.post_norm);
  if (image) {
    read_image_encoder(r, e);
  } else {
    read_audio_encoder(r, e);
  }
  if (given && !own.kind.empty()) {
    keep_published(r, "activation", s.activation, own.activation);
    keep_published(r, "norm_epsilon", s.norm_epsilon, own.norm_epsilon);
    keep_published(r, "key_bias", s.key_bias, own.key_bias);
    keep_published(r, "class_token", s.class_token, own.class_token);
    keep_published(r, "patch_bias", s.patch_bias, own.patch_bias);
    keep_published(r, "pre_norm", s.pre_norm, own.pre_norm);
    keep_published(r, "rope_theta", s.rope_theta, own.rope_theta);
    keep_published(r, "pool", s.pool, own.pool);
  }
  read_training(r, e.trainable, e.lora, image ? models::HfPart::vision : models::HfPart::audio);
  if (published && published->has_projector) e.projector_init.hf = e.init.hf;
  read_projector(r, e);
  if (!e.projector_init.hf.empty() && e.projector_init.hf == e.init.hf && s.projector.kind == own.projector.kind) {
    keep_published(r, "projector.activation", s.projector.activation, own.projector.activation);
    keep_published(r, "anyres", s.pinpoints, own.pinpoints);
  }
}

void read_llm(Reader& r, const std::string& name, LlmConfig& llm) {
  const bool readable = read_init(r, llm.init);
  const std::optional<models::HfConfig> published = read_published(r, llm.init);
  if (published && !published->llm)
    r.problem("init", fmt::format("{}: a {} has no LLM", published->path, published->model_type));
  const bool given = !llm.init.hf.empty() || !readable;
  if (published && published->llm) llm.spec = *published->llm;
  const models::LlmSpec own = llm.spec;
  std::string kind = own.kind;
  auto choice = as_choice(kind, {{"llama", std::string("llama")},
                                 {"qwen2", std::string("qwen2")},
                                 {"qwen3", std::string("qwen3")},
                                 {"mistral", std::string("mistral")},
                                 {"gpt2", std::string("gpt2")}});
  if (given) {
    if (r.optional("kind", choice) && kind != own.kind && !own.kind.empty())
      r.problem("kind", fmt::format("{} given, but the model that `init` names is a {}", kind, llm.spec.kind));
  } else if (r.required("kind", choice)) {
    llm.spec = models::llm_preset(kind);
  }
  models::LlmSpec& s = llm.spec;
  s.name = name;
  read_derived(r, "vocabulary", s.vocabulary, given);
  read_size(r, "hidden", s.hidden, given, 1);
  read_size(r, "layers", s.layers, given, 1);
  read_size(r, "heads", s.heads, given, 1);
  read_derived(r, "kv_heads", s.kv_heads, given);
  read_derived(r, "head_dim", s.head_dim, given);
  read_derived(r, "intermediate", s.intermediate, given);
  r.optional("norm", as_choice(s.norm, {{"rms", models::NormKind::rms}, {"layer", models::NormKind::layer}}));
  r.optional("norm_epsilon", s.norm_epsilon, config::above(0));
  r.optional("gated", s.gated);
  read_activation(r, s.activation);
  r.optional("qkv_bias", s.qkv_bias);
  r.optional("o_bias", s.o_bias);
  r.optional("mlp_bias", s.mlp_bias);
  r.optional("qk_norm", s.qk_norm);
  r.optional("tie_embeddings", s.tie_embeddings);
  r.optional("rotary", s.rotary);
  r.optional("rope_theta", s.rope_theta, config::above(0));
  r.map("rope_scaling", [&](Reader& m) {
    models::RopeScaling scaling;
    using Rope = models::RopeKind;
    m.optional("type", as_choice(scaling.kind, {{"llama3", Rope::llama3},
                                                {"linear", Rope::linear},
                                                {"dynamic", Rope::dynamic},
                                                {"yarn", Rope::yarn}}));
    m.required("factor", scaling.factor, at_least(1));
    m.optional("low_freq_factor", scaling.low_freq_factor, config::above(0));
    m.optional("high_freq_factor", scaling.high_freq_factor, config::above(0));
    m.optional("original_max_position", scaling.original_max_position, config::between(1, kMaxSize));
    m.optional("beta_fast", scaling.beta_fast, config::above(0));
    m.optional("beta_slow", scaling.beta_slow, config::above(0));
    m.optional("truncate", scaling.truncate);
    m.optional("attention_factor", scaling.attention_factor, config::above(0));
    m.optional("mscale", scaling.mscale, config::above(0));
    m.optional("mscale_all_dim", scaling.mscale_all_dim, config::above(0));
    s.rope_scaling = scaling;
  });
  r.optional("mrope_section", s.mrope_section, config::between(1, kMaxSize));
  r.optional("max_positions", s.max_positions, config::between(0, kMaxSize));
  r.optional("sliding_window", s.sliding_window, config::between(0, kMaxSize));
  r.optional("window_from_layer", s.window_from_layer, config::between(0, kMaxSize));
  r.optional("media_attention", as_choice(llm.bidirectional_media, {{"causal", false}, {"bidirectional", true}}));
  if (given && !own.kind.empty()) {
    keep_published(r, "norm", s.norm, own.norm);
    keep_published(r, "norm_epsilon", s.norm_epsilon, own.norm_epsilon);
    keep_published(r, "gated", s.gated, own.gated);
    keep_published(r, "activation", s.activation, own.activation);
    keep_published(r, "qkv_bias", s.qkv_bias, own.qkv_bias);
    keep_published(r, "o_bias", s.o_bias, own.o_bias);
    keep_published(r, "mlp_bias", s.mlp_bias, own.mlp_bias);
    keep_published(r, "qk_norm", s.qk_norm, own.qk_norm);
    keep_published(r, "tie_embeddings", s.tie_embeddings, own.tie_embeddings);
    keep_published(r, "rotary", s.rotary, own.rotary);
    keep_published(r, "rope_theta", s.rope_theta, own.rope_theta);
    keep_published(r, "rope_scaling", s.rope_scaling, own.rope_scaling);
    keep_published(r, "mrope_section", s.mrope_section, own.mrope_section);
    keep_published(r, "max_positions", s.max_positions, own.max_positions);
    keep_published(r, "sliding_window", s.sliding_window, own.sliding_window);
    keep_published(r, "window_from_layer", s.window_from_layer, own.window_from_layer);
  }
  read_training(r, llm.trainable, llm.lora, models::HfPart::llm);
  r.unsupported("router", "mixtures of experts");
}

}  // namespace

void read_training(Reader& r, TrainableRule& rule, std::optional<LoraConfig>& lora, models::HfPart part) {
  r.value("trainable", [&](Value& v) {
    if (v.kind() == Kind::scalar) return v.read(rule.all);
    rule.trainable.emplace();
    return bind_value(v, *rule.trainable, {});
  });
  r.optional("frozen", rule.frozen);
  if (!r.map("lora", [&](Reader& m) { read_lora(m, part, lora.emplace()); })) return;
  rule.adapters_only = !r.has("trainable");
  if (!rule.all) {
    r.problem("trainable",
              "false freezes the adapters of `lora`, too: without this key they alone train (frozen: [\".\"] freezes "
              "all)");
  }
}

void read_modules(Reader& r, Config& c) {
  int llms = 0;
  const bool there = r.entries("modules", [&](const std::string& name, Value& v) {
    // Names stand in parameter names, "<module>/<parameter>", and in checkpoints.
    if (name.find('/') != std::string::npos) v.problem("a module's name must not hold a slash");
    v.read_map([&](Reader& m) {
      std::string role;
      if (!m.required("role", as_choice(role, {{"encoder", std::string("encoder")}, {"llm", std::string("llm")}},
                                        {"generator"})))
        return;
      if (role == "llm") {
        if (++llms > 1) m.problem("role", "a second LLM: one module has the role llm");
        read_llm(m, name, c.llm);
      } else {
        read_encoder(m, name, c.encoders.emplace_back());
      }
    });
  });
  if (!there || llms == 0) r.problem("modules", "no module has the role llm");
}

/// What can be checked once the sizes of all modules are known.
void check_modules(config::Document& document, Config& c) {
  const auto add = [&](const std::string& module, const std::vector<models::SpecProblem>& problems) {
    for (const models::SpecProblem& p : problems)
      document.problem(fmt::format("modules.{}.{}", module, p.field), p.message);
  };
  models::resolve(c.llm.spec);
  models::LlmSpec checked = c.llm.spec;
  if (checked.vocabulary == 0) checked.vocabulary = 1;  // the tokenizer's, which is not read yet
  add(checked.name, models::validate(checked));
  for (EncoderConfig& e : c.encoders) {
    models::resolve(e.spec, c.llm.spec.hidden);
    add(e.spec.name, models::validate(e.spec));
    if (e.spec.kind == "qwen2_vl") {
      e.image.fit = data::ImageFit::dynamic;
      e.image.patch = e.spec.patch;
      e.image.merge = e.spec.merge;
      e.image.frames = e.spec.frames;
      e.image.pixels = {e.spec.patch * e.spec.merge, e.spec.min_pixels, e.spec.max_pixels};
      data::PixelRule& video = e.video.pixels;
      video.factor = e.image.pixels.factor;
      const std::int64_t square = std::int64_t{video.factor} * video.factor;
      if (video.min_pixels == 0) video.min_pixels = 128 * square;
      if (video.max_pixels == 0) video.max_pixels = 768 * square;
      if (video.max_pixels < std::max(video.min_pixels, square))
        document.problem(fmt::format("modules.{}.video.max_pixels", e.spec.name),
                         fmt::format("{} is below min_pixels {} or a square of {} x {}", video.max_pixels,
                                     video.min_pixels, video.factor, video.factor));
    }
  }
}

}  // namespace mmt::app
