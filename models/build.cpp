#include "models/build.h"

#include "models/audio.h"
#include "models/block.h"
#include "models/encoder_exit.h"
#include "models/head.h"
#include "models/patch_projection.h"
#include "models/projector.h"
#include "models/vision.h"
#include "models/whole_rows.h"

#include <set>

namespace mmt::models {
namespace {

using UnitPtr = std::unique_ptr<run::Unit>;

/// Builds every unit in order, so that needs_grad reaches those of the range, and keeps the ones of the range.
class Chain {
 public:
  Chain(run::Stage& stage, UnitRange range, int units) : stage_(stage), range_(range) {
    if (range_.last < 0) range_.last = units;
    MMT_CHECK(range_.first >= 0 && range_.first <= range_.last && range_.last <= units, "units [{}, {}) of {}",
              range_.first, range_.last, units);
  }
  bool needs_grad() const { return needs_grad_; }
  void add(UnitPtr unit) {
    needs_grad_ = unit->plan().output.needs_grad;
    if (next_ >= range_.first && next_ < range_.last) stage_.units.push_back(std::move(unit));
    ++next_;
  }

 private:
  run::Stage& stage_;
  UnitRange range_;
  int next_ = 0;
  bool needs_grad_ = false;
};

/// What the parameters of a tower's layers are called.
struct LayerNames {
  std::string prefix, norm1, norm2, q, k, v, o, up, down;
};

LayerNames layer_names(const EncoderSpec& s) {
  LayerNames n{"encoder.layers.",  "layer_norm1",        "layer_norm2", "self_attn.q_proj", "self_attn.k_proj",
               "self_attn.v_proj", "self_attn.out_proj", "mlp.fc1",     "mlp.fc2"};
  if (s.modality == "audio") {
    n.prefix = "layers.";
    n.norm1 = "self_attn_layer_norm";
    n.norm2 = "final_layer_norm";
    n.up = "fc1";
    n.down = "fc2";
  } else if (s.kind == "qwen2_vl") {
    n.prefix = "blocks.";
    n.norm1 = "norm1";
    n.norm2 = "norm2";
    n.q = "attn.q";
    n.k = "attn.k";
    n.v = "attn.v";
    n.o = "attn.proj";
  }
  return n;
}

BlockOptions encoder_block(const EncoderSpec& s, int layer) {
  const LayerNames names = layer_names(s);
  BlockOptions o;
  o.unit = fmt::format("{}.layers.{}", s.name, layer);
  o.prefix = fmt::format("{}{}.", names.prefix, layer);
  o.norm1 = names.norm1;
  o.norm2 = names.norm2;
  o.norm = NormKind::layer;
  o.epsilon = s.norm_epsilon;
  o.attention = {.q = names.q,
                 .k = names.k,
                 .v = names.v,
                 .o = names.o,
                 .q_norm = "",
                 .k_norm = "",
                 .hidden = s.hidden,
                 .heads = s.heads,
                 .kv_heads = s.heads,
                 .head_dim = s.hidden / s.heads,
                 .q_bias = true,
                 .k_bias = s.key_bias,
                 .v_bias = true,
                 .o_bias = true,
                 .rotary = s.rope_theta > 0};
  o.mlp = {.gate = "",
           .up = names.up,
           .down = names.down,
           .hidden = s.hidden,
           .inner = s.intermediate,
           .bias = true,
           .activation = *parse_activation(s.activation)};
  return o;
}

BlockOptions llm_block(const LlmSpec& s, int layer) {
  BlockOptions o;
  o.unit = fmt::format("{}.layers.{}", s.name, layer);
  o.prefix = fmt::format("model.layers.{}.", layer);
  o.norm1 = "input_layernorm";
  o.norm2 = "post_attention_layernorm";
  o.norm = s.norm;
  o.epsilon = s.norm_epsilon;
  o.attention = {.q = "self_attn.q_proj",
                 .k = "self_attn.k_proj",
                 .v = "self_attn.v_proj",
                 .o = "self_attn.o_proj",
                 .q_norm = s.qk_norm ? "self_attn.q_norm" : "",
                 .k_norm = s.qk_norm ? "self_attn.k_norm" : "",
                 .hidden = s.hidden,
                 .heads = s.heads,
                 .kv_heads = s.kv_heads,
                 .head_dim = s.head_dim,
                 .q_bias = s.qkv_bias,
                 .k_bias = s.qkv_bias,
                 .v_bias = s.qkv_bias,
                 .o_bias = s.o_bias,
                 .norm_epsilon = s.norm_epsilon,
                 .rotary = s.rotary,
                 .mask = mask_of_layer(s, layer)};
  o.mlp = {.gate = s.gated ? "mlp.gate_proj" : "",
           .up = "mlp.up_proj",
           .down = "mlp.down_proj",
           .hidden = s.hidden,
           .inner = s.intermediate,
           .bias = s.mlp_bias,
           .activation = *parse_activation(s.activation)};
  return o;
}

ProjectorKind projector_kind(const std::string& name) {
  if (name == "merger") return ProjectorKind::merger;
  return name == "mlp2" ? ProjectorKind::mlp2 : ProjectorKind::linear;
}

UnitPtr encoder_stem(const EncoderSpec& s, const UnitPlanner::Setting& setting) {
  if (s.modality == "audio")
    return std::make_unique<AudioStem>(setting, AudioStemOptions{.unit = s.name + ".embed",
                                                                 .hidden = s.hidden,
                                                                 .mels = s.mels,
                                                                 .max_positions = position_rows(s),
                                                                 .train_positions = s.train_positions});
  if (s.kind == "qwen2_vl")
    return std::make_unique<PatchProjection>(
        setting,
        PatchProjectionOptions{.unit = s.name + ".embed", .hidden = s.hidden, .patch = s.patch, .frames = s.frames});
  return std::make_unique<PatchEmbedding>(setting, PatchEmbeddingOptions{.unit = s.name + ".embed",
                                                                         .hidden = s.hidden,
                                                                         .patch = s.patch,
                                                                         .bias = s.patch_bias,
                                                                         .class_token = s.class_token,
                                                                         .max_positions = position_rows(s),
                                                                         .pre_norm = s.pre_norm,
                                                                         .epsilon = s.norm_epsilon});
}

}  // namespace

int num_units(const EncoderSpec& spec) { return num_blocks(spec) + (spec.projector.kind == "none" ? 2 : 3); }
int num_units(const LlmSpec& spec) { return spec.layers + 2; }

run::Stage build_encoder(const EncoderSpec& s, std::int64_t llm_hidden, UnitPlanner::Setting setting, UnitRange range) {
  run::Stage stage;
  stage.module = setting.module = s.name;
  stage.windows = {0};
  stage.rotary = rotary_of(s);
  const int blocks = num_blocks(s);
  Chain chain(stage, range, num_units(s));
  chain.add(among_shares(setting, encoder_stem(s, setting)));
  for (int layer = 0; layer < blocks; ++layer)
    chain.add(std::make_unique<TransformerBlock>(setting, encoder_block(s, layer), chain.needs_grad()));
  const std::string norm = !s.post_norm ? "" : s.modality == "audio" ? "layer_norm" : "post_layernorm";
  chain.add(
      among_shares(setting, std::make_unique<EncoderExit>(setting,
                                                          EncoderExitOptions{.unit = s.name + ".exit",
                                                                             .hidden = s.hidden,
                                                                             .norm = norm,
                                                                             .epsilon = s.norm_epsilon,
                                                                             .merge = std::int64_t{s.merge} * s.merge,
                                                                             .pool = s.pool},
                                                          chain.needs_grad())));
  if (s.projector.kind == "none") return stage;

  setting.module = s.name + ".projector";
  const ProjectorKind kind = projector_kind(s.projector.kind);
  chain.add(std::make_unique<Projector>(
      setting,
      ProjectorOptions{.unit = setting.module,
                       .kind = kind,
                       .in = output_width(s),
                       .inner = kind == ProjectorKind::linear ? 0 : s.projector.hidden,
                       .out = llm_hidden,
                       .bias = s.projector.bias,
                       .activation = parse_activation(s.projector.activation).value_or(Activation::gelu_erf),
                       .parts = std::int64_t{s.merge} * s.merge,
                       .newline = !s.pinpoints.empty()},
      chain.needs_grad()));
  return stage;
}

run::Stage build_llm(const LlmSpec& s, const std::vector<EmbeddingPort>& ports, UnitPlanner::Setting setting,
                     UnitRange range) {
  run::Stage stage;
  stage.module = setting.module = s.name;
  stage.windows = mask_windows(s);
  stage.rotary = rotary_of(s);
  Chain chain(stage, range, num_units(s));
  chain.add(among_shares(setting,
                         std::make_unique<EmbeddingUnit>(
                             setting, EmbeddingOptions{.unit = s.name + ".embed",
                                                       .tokens = "model.embed_tokens",
                                                       .vocabulary = s.vocabulary,
                                                       .hidden = s.hidden,
                                                       .ports = ports,
                                                       .positions = s.max_positions > 0 ? "model.embed_positions" : "",
                                                       .max_positions = s.max_positions})));
  for (int layer = 0; layer < s.layers; ++layer)
    chain.add(std::make_unique<TransformerBlock>(setting, llm_block(s, layer), chain.needs_grad()));
  HeadOptions head;
  head.unit = s.name + ".head";
  head.norm.name = "model.norm";
  head.norm.kind = s.norm;
  head.norm.epsilon = s.norm_epsilon;
  head.head = s.tie_embeddings ? "model.embed_tokens" : "lm_head";
  head.vocabulary = s.vocabulary;
  head.hidden = s.hidden;
  chain.add(among_shares(setting, std::make_unique<HeadUnit>(setting, head, chain.needs_grad())));
  return stage;
}

bool output_needs_grad(const run::Stage& stage) {
  return !stage.units.empty() && stage.units.back()->plan().output.needs_grad;
}

std::vector<ParamSpec> parameters_of(const run::Stage& stage) {
  std::vector<ParamSpec> list;
  std::set<std::string> seen;
  for (const auto& unit : stage.units)
    for (const ParamSpec& p : unit->plan().params)
      if (seen.insert(canonical_name(p)).second) list.push_back(p);
  return list;
}

ParamCount count_parameters(const run::Stage& stage) {
  ParamCount count;
  for (const ParamSpec& p : parameters_of(stage)) {
    std::int64_t n = 1;
    for (const std::int64_t d : p.shape) n *= d;
    count.total += n;
    if (p.trainable) count.trainable += n;
    if (p.name.find(".lora_A.") != std::string::npos) ++count.adapters;
  }
  return count;
}

}  // namespace mmt::models
