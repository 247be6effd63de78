#include "models/build.h"

#include "models/audio.h"
#include "models/block.h"
#include "models/encoder_exit.h"
#include "models/head.h"
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

BlockOptions encoder_block(const EncoderSpec& s, int layer) {
  const bool whisper = s.modality == "audio";
  BlockOptions o;
  o.unit = fmt::format("{}.layers.{}", s.name, layer);
  o.prefix = fmt::format("{}layers.{}.", whisper ? "" : "encoder.", layer);
  o.norm1 = whisper ? "self_attn_layer_norm" : "layer_norm1";
  o.norm2 = whisper ? "final_layer_norm" : "layer_norm2";
  o.norm = NormKind::layer;
  o.epsilon = s.norm_epsilon;
  o.attention = {.q = "self_attn.q_proj",
                 .k = "self_attn.k_proj",
                 .v = "self_attn.v_proj",
                 .o = "self_attn.out_proj",
                 .q_norm = "",
                 .k_norm = "",
                 .hidden = s.hidden,
                 .heads = s.heads,
                 .kv_heads = s.heads,
                 .head_dim = s.hidden / s.heads,
                 .q_bias = true,
                 .k_bias = s.key_bias,
                 .v_bias = true,
                 .o_bias = true};
  o.mlp = {.gate = "",
           .up = whisper ? "fc1" : "mlp.fc1",
           .down = whisper ? "fc2" : "mlp.fc2",
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

UnitPtr encoder_stem(const EncoderSpec& s, const UnitPlanner::Setting& setting) {
  if (s.modality == "audio")
    return std::make_unique<AudioStem>(setting, AudioStemOptions{.unit = s.name + ".embed",
                                                                 .hidden = s.hidden,
                                                                 .mels = s.mels,
                                                                 .max_positions = position_rows(s),
                                                                 .train_positions = s.train_positions});
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
  const int blocks = num_blocks(s);
  Chain chain(stage, range, num_units(s));
  chain.add(among_shares(setting, encoder_stem(s, setting)));
  for (int layer = 0; layer < blocks; ++layer)
    chain.add(std::make_unique<TransformerBlock>(setting, encoder_block(s, layer), chain.needs_grad()));
  const std::string norm = !s.post_norm ? "" : s.modality == "audio" ? "layer_norm" : "post_layernorm";
  chain.add(among_shares(
      setting,
      std::make_unique<EncoderExit>(
          setting,
          EncoderExitOptions{.unit = s.name + ".exit", .hidden = s.hidden, .norm = norm, .epsilon = s.norm_epsilon},
          chain.needs_grad())));
  if (s.projector.kind == "none") return stage;

  setting.module = s.name + ".projector";
  const bool two = s.projector.kind == "mlp2";
  chain.add(std::make_unique<Projector>(
      setting,
      ProjectorOptions{.unit = setting.module,
                       .kind = two ? ProjectorKind::mlp2 : ProjectorKind::linear,
                       .in = s.hidden,
                       .inner = two ? s.projector.hidden : 0,
                       .out = llm_hidden,
                       .bias = s.projector.bias,
                       .activation = parse_activation(s.projector.activation).value_or(Activation::gelu_erf)},
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
