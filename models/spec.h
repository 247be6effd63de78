// What a user says about a module, as plain values: the families' defaults, validation, and what follows from it.
// No YAML here; the fields have the names of the configuration's keys.
#pragma once

#include "kernels/activation.h"
#include "models/norm.h"
#include "models/projector.h"
#include "models/rope_scaling.h"
#include "parallel/run/stage.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mmt::models {

/// One mistake in a spec. `field` is the key below the module ("hidden", "projector.kind").
struct SpecProblem {
  std::string field;
  std::string message;
};

std::optional<Activation> parse_activation(const std::string& name);
/// gelu, gelu_tanh, gelu_quick, silu: what parse_activation takes (and the names of Hugging Face's config.json).
std::string_view name_of(Activation activation);

/// 0 in a size means: derive it, as `resolve` says.
struct ProjectorSpec {
  std::string kind = "mlp2";  ///< none | linear | mlp2 | merger
  std::int64_t hidden = 0;    ///< mlp2: 0 = the LLM's width; merger: 0 = the width of what leaves the tower
  bool bias = true;
  std::string activation = "gelu";
};

struct EncoderSpec {
  std::string name;      ///< of the module
  std::string modality;  ///< image | audio
  std::string kind;      ///< clip | siglip | qwen2_vl | whisper | qwen2_audio
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;  ///< 0 = 4 * hidden
  int layers = 0;
  int heads = 0;
  std::string activation;
  double norm_epsilon = 1e-5;
  // image
  int patch = 0;
  int image_size = 0;
  bool class_token = false;
  bool patch_bias = false;
  bool pre_norm = false;
  std::string select = "patch";  ///< patch (without the class row) | full
  /// Heights and widths that pictures are fitted into and cut from, in tiles of image_size (AnyRes); empty: a picture
  /// is one of image_size. The projector then has a newline row.
  std::vector<std::array<int, 2>> pinpoints;
  // image, qwen2_vl: pictures of any size
  int merge = 1;                ///< merge x merge patches leave as one row
  int frames = 1;               ///< that a patch spans
  double rope_theta = 0;        ///< above 0: rows turn by their patch's row and column; no position table
  std::int64_t min_pixels = 0;  ///< of a resized picture; 0: 4 rows that leave
  std::int64_t max_pixels = 0;  ///< 0: 1280 rows that leave
  // audio
  int mels = 80;
  int max_positions = 1500;  ///< rows of the longest window
  bool train_positions = false;
  int pool = 1;  ///< so many rows leave as their mean, before the last norm
  // both
  bool key_bias = true;
  /// Which hidden state leaves, as in transformers: 0 the embedding's, -1 the last block's, -2 the one before it.
  /// Blocks above it are not built.
  int feature_layer = -1;
  bool post_norm = false;  ///< the tower's last norm, only behind the last block
  ProjectorSpec projector;
};

struct LlmSpec {
  std::string name = "llm";  ///< of the module
  std::string kind;          ///< llama | qwen2 | qwen3 | mistral | gpt2
  std::int64_t vocabulary = 0;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;  ///< 0 = 4 * hidden, gated: 8/3 * hidden rounded up to a multiple of 64
  int layers = 0;
  int heads = 0;
  int kv_heads = 0;  ///< 0 = heads
  int head_dim = 0;  ///< 0 = hidden / heads
  NormKind norm = NormKind::rms;
  double norm_epsilon = 1e-5;
  bool gated = true;
  std::string activation = "silu";
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool qk_norm = false;
  bool tie_embeddings = false;
  bool rotary = true;
  double rope_theta = 10000;
  std::optional<RopeScaling> rope_scaling;
  /// Frequencies that turn by frame, row and column of a row's position; empty: one position a row.
  std::vector<int> mrope_section;
  int max_positions = 0;      ///< learned positions (gpt2)
  int sliding_window = 0;     ///< 0: none; else a row sees itself and the window - 1 rows before it
  int window_from_layer = 0;  ///< layers below it see everything
};

/// Defaults of a family. Throws ConfigError naming the legal kinds.
EncoderSpec encoder_preset(const std::string& kind);
LlmSpec llm_preset(const std::string& kind);
std::vector<std::string> encoder_kinds();
std::vector<std::string> llm_kinds();

/// Fills derived sizes. Call before `validate`, which reports every mistake with the legal values.
void resolve(EncoderSpec& spec, std::int64_t llm_hidden);
void resolve(LlmSpec& spec);
std::vector<SpecProblem> validate(const EncoderSpec& spec);
std::vector<SpecProblem> validate(const LlmSpec& spec);
/// Degrees that heads and widths cannot be cut by.
std::vector<SpecProblem> validate_tp(const EncoderSpec& spec, int tp);
std::vector<SpecProblem> validate_tp(const LlmSpec& spec, int tp);

int num_blocks(const EncoderSpec& spec);  ///< blocks that are built: those that the feature layer needs
/// Windows by mask index, over the whole module: what RowsPlan::masks and Stage::windows are ordered by.
std::vector<std::int32_t> mask_windows(const LlmSpec& spec);
int mask_of_layer(const LlmSpec& spec, int layer);
std::optional<run::RotarySpec> rotary_of(const LlmSpec& spec);
std::optional<run::RotarySpec> rotary_of(const EncoderSpec& spec);
int num_positions(const LlmSpec& spec);  ///< of a row
/// Columns of a row that leaves the tower, before its projector.
std::int64_t output_width(const EncoderSpec& spec);
std::int64_t position_rows(const EncoderSpec& spec);  ///< rows of the position table
/// Patches along a tile's side; 0 where pictures are not cut.
std::int64_t tile_side(const EncoderSpec& spec);
std::int64_t most_tiles(const EncoderSpec& spec);  ///< of a picture, with the small one; 1 where pictures are not cut

}  // namespace mmt::models
