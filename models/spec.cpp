#include "models/spec.h"

#include "kernels/rotary.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace mmt::models {
namespace {

struct NamedActivation {
  std::string_view name;
  Activation value;
};
constexpr NamedActivation kActivations[] = {
    {"gelu", Activation::gelu_erf},
    {"gelu_tanh", Activation::gelu_tanh},
    {"gelu_quick", Activation::gelu_quick},
    {"silu", Activation::silu},
    // Hugging Face's names
    {"gelu_pytorch_tanh", Activation::gelu_tanh},
    {"gelu_new", Activation::gelu_tanh},
    {"quick_gelu", Activation::gelu_quick},
};

/// Collects problems; each check says what was given and what is legal.
class Checker {
 public:
  void positive(const char* field, std::int64_t value) {
    if (value <= 0) add(field, fmt::format("{} given, must be 1 or more", value));
  }
  void positive_real(const char* field, double value) {
    if (!(value > 0) || !std::isfinite(value)) add(field, fmt::format("{} given, must be above 0", value));
  }
  void one_of(const char* field, const std::string& value, const std::vector<std::string>& legal) {
    if (std::find(legal.begin(), legal.end(), value) == legal.end())
      add(field, fmt::format("'{}' is not one of {}", value, fmt::join(legal, ", ")));
  }
  void activation(const char* field, const std::string& value) {
    if (!parse_activation(value))
      add(field, fmt::format("'{}' is not one of gelu, gelu_tanh, gelu_quick, silu", value));
  }
  void head_dim(const char* field, std::int64_t value) {
    if (value < 16 || value > 128 || value % 8 != 0)
      add(field, fmt::format("a head of {} columns: must be a multiple of 8 between 16 and 128", value));
  }
  void add(std::string field, std::string message) { problems_.push_back({std::move(field), std::move(message)}); }
  bool clean() const { return problems_.empty(); }
  std::vector<SpecProblem> take() { return std::move(problems_); }

 private:
  std::vector<SpecProblem> problems_;
};

[[noreturn]] void unknown_kind(const std::string& kind, const std::vector<std::string>& legal) {
  throw ConfigError(fmt::format("kind: '{}' is not one of {}", kind, fmt::join(legal, ", ")));
}

}  // namespace

std::optional<Activation> parse_activation(const std::string& name) {
  for (const NamedActivation& a : kActivations)
    if (a.name == name) return a.value;
  return std::nullopt;
}

std::string_view name_of(Activation activation) {
  for (const NamedActivation& a : kActivations)
    if (a.value == activation) return a.name;
  return "";
}

std::vector<std::string> encoder_kinds() { return {"clip", "siglip", "qwen2_vl", "whisper", "qwen2_audio"}; }
std::vector<std::string> llm_kinds() { return {"llama", "qwen2", "qwen3", "mistral", "gpt2"}; }

EncoderSpec encoder_preset(const std::string& kind) {
  EncoderSpec s;
  s.kind = kind;
  s.modality = "image";
  if (kind == "clip") {
    s.activation = "gelu_quick";
    s.class_token = true;
    s.pre_norm = true;
    s.patch = 14;
    s.image_size = 336;
  } else if (kind == "siglip") {
    s.activation = "gelu_tanh";
    s.norm_epsilon = 1e-6;
    s.patch_bias = true;
    s.patch = 14;
    s.image_size = 384;
  } else if (kind == "qwen2_vl") {
    s.activation = "gelu_quick";
    s.norm_epsilon = 1e-6;
    s.patch = 14;
    s.merge = 2;
    s.frames = 2;
    s.rope_theta = 10000;
    s.projector.kind = "merger";
  } else if (kind == "whisper" || kind == "qwen2_audio") {
    s.modality = "audio";
    s.activation = "gelu";
    s.key_bias = false;
    s.post_norm = true;
    s.select = "full";
    if (kind == "qwen2_audio") {
      s.mels = 128;
      s.pool = 2;
      s.projector.kind = "linear";
    }
  } else {
    unknown_kind(kind, encoder_kinds());
  }
  return s;
}

LlmSpec llm_preset(const std::string& kind) {
  LlmSpec s;
  s.kind = kind;
  if (kind == "llama" || kind == "mistral") return s;
  if (kind == "qwen2") {
    s.qkv_bias = true;
    s.norm_epsilon = 1e-6;
  } else if (kind == "qwen3") {
    s.qk_norm = true;
    s.head_dim = 128;
    s.norm_epsilon = 1e-6;
  } else if (kind == "gpt2") {
    s.norm = NormKind::layer;
    s.gated = false;
    s.activation = "gelu_tanh";
    s.qkv_bias = s.o_bias = s.mlp_bias = true;
    s.tie_embeddings = true;
    s.rotary = false;
    s.max_positions = 1024;
  } else {
    unknown_kind(kind, llm_kinds());
  }
  return s;
}

void resolve(EncoderSpec& spec, std::int64_t llm_hidden) {
  if (spec.intermediate == 0) spec.intermediate = 4 * spec.hidden;
  if (spec.projector.hidden == 0)
    spec.projector.hidden = spec.projector.kind == "merger" ? output_width(spec) : llm_hidden;
  if (spec.kind != "qwen2_vl") return;
  const std::int64_t side = std::int64_t{spec.patch} * spec.merge;
  if (spec.min_pixels == 0) spec.min_pixels = 4 * side * side;
  if (spec.max_pixels == 0) spec.max_pixels = 1280 * side * side;
}

void resolve(LlmSpec& spec) {
  if (spec.intermediate == 0) spec.intermediate = spec.gated ? (spec.hidden * 8 / 3 + 63) / 64 * 64 : 4 * spec.hidden;
  if (spec.kv_heads == 0) spec.kv_heads = spec.heads;
  if (spec.head_dim == 0 && spec.heads > 0) spec.head_dim = static_cast<int>(spec.hidden / spec.heads);
}

int num_blocks(const EncoderSpec& spec) {
  return spec.feature_layer < 0 ? spec.layers + 1 + spec.feature_layer : spec.feature_layer;
}

int num_positions(const LlmSpec& spec) { return spec.mrope_section.empty() ? 1 : 3; }

std::int64_t output_width(const EncoderSpec& spec) { return std::int64_t{spec.merge} * spec.merge * spec.hidden; }

std::int64_t position_rows(const EncoderSpec& spec) {
  if (spec.rope_theta > 0) return 0;
  if (spec.modality == "audio") return spec.max_positions;
  const std::int64_t side = spec.image_size / spec.patch;
  return side * side + (spec.class_token ? 1 : 0);
}

std::int64_t tile_side(const EncoderSpec& spec) { return spec.pinpoints.empty() ? 0 : spec.image_size / spec.patch; }

std::int64_t most_tiles(const EncoderSpec& spec) {
  std::int64_t most = 0;
  for (const auto& [height, width] : spec.pinpoints)
    most = std::max(most, std::int64_t{height / spec.image_size} * (width / spec.image_size));
  return 1 + most;
}

namespace {

/// Sizes that pictures are cut from.
void check_pinpoints(Checker& check, const EncoderSpec& s) {
  constexpr std::size_t kMostSizes = 256;
  constexpr std::int64_t kMostTiles = 256;
  if (s.pinpoints.size() > kMostSizes)
    check.add("anyres.pinpoints", fmt::format("{} sizes: at most {} are supported", s.pinpoints.size(), kMostSizes));
  for (const auto& [height, width] : s.pinpoints) {
    if (height < 1 || width < 1 || height % s.image_size != 0 || width % s.image_size != 0)
      check.add("anyres.pinpoints", fmt::format("[{}, {}]: heights and widths must be multiples of image_size {}",
                                                height, width, s.image_size));
    else if (std::int64_t{height / s.image_size} * (width / s.image_size) > kMostTiles)
      check.add("anyres.pinpoints", fmt::format("[{}, {}] is more than {} tiles", height, width, kMostTiles));
  }
  if (s.class_token && s.select == "full")
    check.add("select", "full: the class rows of tiles have no place in a picture; anyres goes with patch");
  if (s.projector.kind == "none") check.add("projector.kind", "none: the newline of anyres is the projector's");
}

/// What a tower for pictures of any size wants on top.
void check_dynamic(Checker& check, const EncoderSpec& s) {
  check.positive("merge", s.merge);
  check.positive("frames", s.frames);
  check.positive_real("rope_theta", s.rope_theta);
  check.positive("min_pixels", s.min_pixels);
  const std::int64_t side = std::int64_t{s.patch} * s.merge;
  if (s.max_pixels < std::max(s.min_pixels, side * side))
    check.add("max_pixels",
              fmt::format("{} is below min_pixels {} or a square of {} x {}", s.max_pixels, s.min_pixels, side, side));
  if (s.class_token) check.add("class_token", "a tower for pictures of any size has none");
  if (s.pre_norm) check.add("pre_norm", "a tower for pictures of any size has none");
  if (s.patch_bias) check.add("patch_bias", "a tower for pictures of any size has none");
  if (s.post_norm) check.add("post_norm", "a tower for pictures of any size has none: its projector `merger` does");
}

}  // namespace

std::vector<SpecProblem> validate(const EncoderSpec& s) {
  Checker check;
  check.one_of("kind", s.kind, encoder_kinds());
  check.one_of("modality", s.modality, {"image", "audio"});
  if (check.clean() && s.modality != encoder_preset(s.kind).modality)
    check.add("kind", fmt::format("{} is not an encoder of modality {}", s.kind, s.modality));
  check.positive("hidden", s.hidden);
  check.positive("intermediate", s.intermediate);
  check.positive("layers", s.layers);
  check.positive("heads", s.heads);
  check.positive_real("norm_epsilon", s.norm_epsilon);
  check.activation("activation", s.activation);
  if (s.heads > 0 && s.hidden > 0) {
    if (s.hidden % s.heads != 0)
      check.add("heads", fmt::format("{} heads do not divide hidden {}", s.heads, s.hidden));
    else
      check.head_dim("heads", s.hidden / s.heads);
  }
  if (s.modality == "audio") {
    check.positive("mels", s.mels);
    check.positive("max_positions", s.max_positions);
    constexpr int kMostPooled = 16;
    if (s.pool < 1 || s.pool > kMostPooled)
      check.add("pool", fmt::format("{} given, must be between 1 and {}", s.pool, kMostPooled));
    if (s.hidden % 2 != 0) check.add("hidden", fmt::format("{} is odd: sinusoids need pairs", s.hidden));
  } else {
    check.positive("patch", s.patch);
    if (s.kind == "qwen2_vl") {
      check_dynamic(check, s);
    } else {
      check.positive("image_size", s.image_size);
      // A side that is no multiple loses its last columns, as in the convolution of the published towers (384 by 14).
      if (s.patch > 0 && s.image_size > 0 && s.image_size < s.patch)
        check.add("image_size", fmt::format("{} is less than one patch of {}", s.image_size, s.patch));
      if (s.image_size > 0 && !s.pinpoints.empty()) check_pinpoints(check, s);
    }
    check.one_of("select", s.select, {"patch", "full"});
  }
  const int blocks = num_blocks(s);
  if (s.layers > 0 && (blocks < 0 || blocks > s.layers))
    check.add("feature_layer", fmt::format("{} of {} layers: must be between {} and {}", s.feature_layer, s.layers,
                                           -s.layers - 1, s.layers));
  if (s.layers > 0 && s.post_norm && blocks != s.layers)
    check.add("post_norm",
              fmt::format("it stands behind the last layer, and feature_layer {} ends before", s.feature_layer));
  check.one_of("projector.kind", s.projector.kind, {"none", "linear", "mlp2", "merger"});
  if (s.projector.kind == "mlp2" || s.projector.kind == "merger") {
    check.positive("projector.hidden", s.projector.hidden);
    check.activation("projector.activation", s.projector.activation);
  }
  return check.take();
}

std::vector<SpecProblem> validate(const LlmSpec& s) {
  Checker check;
  check.one_of("kind", s.kind, llm_kinds());
  check.positive("vocabulary", s.vocabulary);
  check.positive("hidden", s.hidden);
  check.positive("intermediate", s.intermediate);
  check.positive("layers", s.layers);
  check.positive("heads", s.heads);
  check.positive("kv_heads", s.kv_heads);
  check.positive_real("norm_epsilon", s.norm_epsilon);
  check.activation("activation", s.activation);
  if (s.gated && parse_activation(s.activation) != Activation::silu)
    check.add("activation", fmt::format("a gated MLP is silu's, '{}' given", s.activation));
  if (s.heads > 0 && s.kv_heads > 0 && s.heads % s.kv_heads != 0)
    check.add("kv_heads", fmt::format("{} does not divide heads {}", s.kv_heads, s.heads));
  if (s.heads > 0) check.head_dim("head_dim", s.head_dim);
  if (s.rotary) {
    check.positive_real("rope_theta", s.rope_theta);
    if (s.max_positions != 0) check.add("max_positions", "learned positions and rotary ones exclude each other");
    if (!s.mrope_section.empty()) {
      const auto sum = std::accumulate(s.mrope_section.begin(), s.mrope_section.end(), std::int64_t{0});
      if (sum != s.head_dim / 2 || s.mrope_section.size() != 3 ||
          std::any_of(s.mrope_section.begin(), s.mrope_section.end(), [](int n) { return n <= 0; }))
        check.add("mrope_section", fmt::format("[{}] must be three positive counts that add up to {}",
                                               fmt::join(s.mrope_section, ", "), s.head_dim / 2));
    }
    if (s.rope_scaling) {
      check.positive_real("rope_scaling.factor", s.rope_scaling->factor);
      const RopeScaling& c = *s.rope_scaling;
      if (c.kind == RopeKind::llama3 && !(c.low_freq_factor < c.high_freq_factor))
        check.add("rope_scaling.low_freq_factor", "must be below high_freq_factor");
      if (c.kind == RopeKind::yarn && !(c.beta_slow > 0 && c.beta_slow < c.beta_fast))
        check.add("rope_scaling.beta_slow", "must be above 0 and below beta_fast");
      if (c.kind == RopeKind::yarn && !(s.rope_theta > 1)) check.add("rope_theta", "must be above 1 for yarn");
      check.positive("rope_scaling.original_max_position", s.rope_scaling->original_max_position);
    }
  } else {
    check.positive("max_positions", s.max_positions);
    if (!s.mrope_section.empty()) check.add("mrope_section", "needs rotary positions");
  }
  if (s.sliding_window < 0) check.add("sliding_window", fmt::format("{} given, must be 0 or more", s.sliding_window));
  if (s.window_from_layer < 0 || s.window_from_layer > s.layers)
    check.add("window_from_layer", fmt::format("{} of {} layers", s.window_from_layer, s.layers));
  return check.take();
}

namespace {

/// `vocabulary`: of the LLM, whose rows are shared in any numbers; 0 for an encoder.
std::vector<SpecProblem> check_tp(std::int64_t tp, std::int64_t heads, std::int64_t kv_heads, std::int64_t inner,
                                  std::int64_t vocabulary) {
  const auto cuts = [&](std::int64_t n) {
    return heads % n == 0 && inner % n == 0 && (kv_heads % n == 0 || n % kv_heads == 0) &&
           (vocabulary == 0 || n <= vocabulary);
  };
  if (heads < 1 || kv_heads < 1 || inner < 1) return {};  // reported as such
  if (tp >= 1 && cuts(tp)) return {};
  std::string legal;
  for (std::int64_t n = 1; n <= heads; ++n) {
    if (cuts(n)) legal += fmt::format("{}{}", legal.empty() ? "" : ", ", n);
  }
  return {{"tp", fmt::format("{} ranks cannot share {} heads, {} key/value heads and intermediate {}: legal are {}", tp,
                             heads, kv_heads, inner, legal)}};
}

}  // namespace

std::vector<SpecProblem> validate_tp(const EncoderSpec& s, int tp) {
  return check_tp(tp, s.heads, s.heads, s.intermediate, 0);
}
std::vector<SpecProblem> validate_tp(const LlmSpec& s, int tp) {
  return check_tp(tp, s.heads, s.kv_heads, s.intermediate, s.vocabulary);
}

std::vector<std::int32_t> mask_windows(const LlmSpec& s) {
  const bool some = s.sliding_window > 0 && s.window_from_layer < s.layers;
  if (!some) return {0};
  if (s.window_from_layer == 0) return {s.sliding_window};
  return {0, s.sliding_window};
}

int mask_of_layer(const LlmSpec& s, int layer) {
  return s.sliding_window > 0 && s.window_from_layer > 0 && layer >= s.window_from_layer ? 1 : 0;
}

std::optional<run::RotarySpec> rotary_of(const LlmSpec& s) {
  if (!s.rotary) return std::nullopt;
  run::RotarySpec r;
  r.inv_freq.resize(static_cast<std::size_t>(s.head_dim / 2));
  ops::rotary_inverse_frequencies(r.inv_freq, s.rope_theta);
  if (s.rope_scaling) r.scale = scale_frequencies(*s.rope_scaling, s.rope_theta, r.inv_freq);
  if (!s.mrope_section.empty()) {
    r.axis.resize(r.inv_freq.size());
    ops::rotary_section_axes(r.axis, s.mrope_section);
  }
  return r;
}

std::optional<run::RotarySpec> rotary_of(const EncoderSpec& s) {
  if (s.rope_theta <= 0) return std::nullopt;
  // Half of the frequencies turn by the patch's row, half by its column, both from the first one on.
  const auto half = static_cast<std::size_t>(s.hidden / s.heads / 4);
  run::RotarySpec r;
  r.inv_freq.resize(half);
  ops::rotary_inverse_frequencies(r.inv_freq, s.rope_theta);
  r.inv_freq.resize(2 * half);
  std::copy_n(r.inv_freq.begin(), half, r.inv_freq.begin() + static_cast<std::ptrdiff_t>(half));
  r.axis.assign(2 * half, 0);
  std::fill(r.axis.begin() + static_cast<std::ptrdiff_t>(half), r.axis.end(), std::uint8_t{1});
  return r;
}

}  // namespace mmt::models
