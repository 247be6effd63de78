// The configuration as typed values. `read_config` binds the YAML (through core/config's checked reader) and reports
// all mistakes at once; nothing else in the program looks at YAML.
#pragma once

#include "apps/mmtrain/cluster.h"
#include "core/config/reader.h"
#include "core/data/loader.h"
#include "core/data/media/image.h"
#include "core/data/media/preprocess.h"
#include "core/data/media/video_input.h"
#include "core/data/sample.h"
#include "core/data/text/chat_template.h"
#include "models/spec.h"
#include "parallel/plan/layout.h"
#include "parallel/run/schedule.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mmt::app {

/// Which parameters of a module train. Patterns are PCRE2, searched in "<module>/<parameter>"; trainable wins.
struct TrainableRule {
  bool all = true;                                    ///< what no pattern decides
  std::optional<std::vector<std::string>> trainable;  ///< only these
  std::vector<std::string> frozen;                    ///< all but these
  bool adapters_only = false;                         ///< what no pattern decides trains only in an adapter
};

/// Low-rank adapters beside linear layers: y = W x + alpha / rank B A dropout(x).
struct LoraConfig {
  std::vector<std::string> on;  ///< PCRE2, searched in "<module>/<layer>" ("llm/model.layers.0.self_attn.q_proj")
  std::int64_t rank = 0;
  double alpha = 0.0;
  double dropout = 0.0;
  bool rslora = false;   ///< alpha / sqrt(rank) instead (Kalajdzievski 2023)
  std::string folder{};  ///< of PEFT, from which they start; empty: anew
};

/// Where a module comes from; both empty: fresh weights.
struct ModuleInit {
  std::string checkpoint;  ///< weights: a checkpoint folder
  std::string hf;          ///< the folder of a published model: sizes, and weights where `checkpoint` is empty
};

/// Whose layers a projector runs with.
enum class ProjectorPlace : std::uint8_t { automatic, encoder, llm };

struct EncoderConfig {
  models::EncoderSpec spec;
  ModuleInit init;
  ModuleInit projector_init;  ///< a checkpoint's projector comes with its encoder
  TrainableRule trainable;
  TrainableRule projector_trainable;
  ProjectorPlace projector_place = ProjectorPlace::automatic;
  std::optional<LoraConfig> lora, projector_lora;
  data::ImageProcessing image;  ///< of an image encoder
  data::VideoProcessing video;  ///< of one that takes videos: `takes_videos`
  data::AudioProcessing audio;  ///< of an audio encoder
};

/// Values of a row of media: a patch, a mel frame.
inline std::int64_t source_cols(const EncoderConfig& e) {
  return e.spec.modality == "audio" ? e.audio.num_mel_bins : e.image.cols();
}

inline bool takes_videos(const EncoderConfig& e) { return e.spec.kind == "qwen2_vl"; }

struct LlmConfig {
  models::LlmSpec spec;
  ModuleInit init;
  TrainableRule trainable;
  std::optional<LoraConfig> lora;
  bool bidirectional_media = false;  ///< rows of one picture or clip see each other both ways
};

struct RunConfig {
  std::string output_dir;
  std::uint64_t seed = 1;
  enum class Device : std::uint8_t { automatic, cpu } device = Device::automatic;
};

struct TrainConfig {
  std::optional<std::int64_t> steps, epochs;  ///< exactly one
  std::int64_t global_batch_size = 0;
  std::int64_t tokens_per_microbatch = 8192;
  std::optional<std::int64_t> microbatches;  ///< a minimum; empty: auto
  DType precision = DType::f32;
  double max_grad_norm = 1.0;  ///< 0: no clipping
  /// By module, encoders in config order, then the LLM; empty: none anywhere.
  std::vector<run::Recompute> recompute;
  bool recompute_auto = false;  ///< chosen by layer (layout.h)
  data::LossWeights loss = data::LossWeights::token;
  std::int64_t consistency_every = 100;  ///< steps between checks that replicas are equal; 0: never
};

struct ParamGroup {
  std::string match;  ///< PCRE2, searched in "<module>/<parameter>"; the first group that matches counts
  std::optional<double> lr;
  std::optional<double> weight_decay;
};

struct OptimizerConfig {
  double lr = 1e-4;
  std::array<double, 2> betas{0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0.01;
  std::vector<ParamGroup> groups;
};

struct SetConfig {
  std::string name;  ///< in messages and reports; default: the file's name without its ending
  std::string path;
  std::string media_root;
  enum class Format : std::uint8_t { llava, messages, webdataset } format = Format::llava;
  double weight = 1.0;
};

struct DataConfig {
  std::vector<SetConfig> sets;
  data::TemplateSpec chat;
  std::string tokenizer;
  std::int64_t max_sequence = 0;  ///< 0: tokens_per_microbatch
  data::OverLength over_length = data::OverLength::drop;
  enum class Bad : std::uint8_t { error, skip } bad_samples = Bad::error;
  bool shuffle = true;
  std::int64_t workers = 1;  ///< prefetch threads a rank
  std::int64_t prefetch_steps = 4;
  std::string index_dir;  ///< empty: beside the data
  data::ImageOptions image;
  data::AudioOptions audio;
  data::AnimationLimits video;
};

struct EvalConfig {
  std::int64_t every_steps = 0;  ///< 0: only where the command asks for it
  std::int64_t generate = 0;     ///< how many samples of each set to answer and print
  std::int64_t max_new_tokens = 64;
  std::vector<SetConfig> sets;
};

struct CheckpointConfig {
  std::int64_t every_steps = 0;  ///< 0: only at the end
  std::int64_t keep_last = 3;
  std::int64_t keep_every = 0;  ///< steps; 0: none is kept for ever
  std::string keep_best;        ///< a metric of the evaluation; empty: none
  bool async = false;
  bool embed_frozen = false;  ///< store frozen modules in every checkpoint
};

/// A grid of ranks, tp * cp * dp * pp of them, and what its places run.
struct MeshConfig {
  std::vector<std::int32_t> ranks;
  std::int32_t tp = 1, cp = 1, pp = 1, dp = 1;
  bool sequence_parallel = false;  ///< between layers a tp rank holds its share of the rows
  struct Part {
    std::string module, units;  ///< "0-3", "embed-7", "projector"
  };
  /// By stage: the parts of modules that it runs, as written. Empty: auto.
  std::vector<std::vector<Part>> stages;
};

/// Which ranks run what, and in which order. Without a `parallel` section: one place, dp = the number of ranks.
struct ParallelConfig {
  std::vector<MeshConfig> meshes{MeshConfig{}};
  std::vector<int> mesh_of;  ///< by module, encoders in config order, then the LLM
  std::string policy = "auto";
  std::int32_t chunks = 1;         ///< interleaved: runs of layers that a place has
  bool memory_h2 = false;          ///< zero-bubble
  std::vector<bool> zero;          ///< by module: optimizer state is cut over the data lanes
  std::vector<bool> replicate_tp;  ///< by module: every tp rank holds and computes all of it

  int num_ranks() const;
  /// Over how many ranks a module is cut by tp.
  int cut_over(std::size_t module) const;
  /// Whether a module's rows are shared between layers.
  bool shares_rows(std::size_t module) const;
};

struct LogConfig {
  std::int64_t every_steps = 1;
  bool tensorboard = false;
  std::optional<std::array<std::int64_t, 2>> trace;  ///< first and last step whose timeline is written
};

struct Config {
  RunConfig run;
  std::vector<EncoderConfig> encoders;
  LlmConfig llm;
  TrainConfig train;
  OptimizerConfig optimizer;
  run::Schedule learning_rate;
  DataConfig data;
  EvalConfig eval;
  CheckpointConfig checkpoint;
  LogConfig log;
  ParallelConfig parallel;
  ClusterConfig cluster;
  /// auto: the newest sound checkpoint of output_dir; none: start anew; else a checkpoint folder.
  std::string resume = "auto";

  std::string resolved;  ///< all of it as YAML, defaults filled in

  run::Recompute recompute_of(std::size_t module) const {
    return train.recompute.empty() ? run::Recompute::none : train.recompute[module];
  }
};

/// Binds and checks. Throws ConfigError with every mistake. `ranks`: how many ranks will run it; 0: as many as its
/// layout says.
Config read_config(const config::Sources& sources, int ranks);

/// Units of module `m` (encoders in config order, then the LLM) by name, in order: "embed", "0", "1", ..., then "head",
/// or "exit" and "projector".
std::vector<std::string> unit_names(const Config& config, std::size_t module);
const std::string& module_name(const Config& config, std::size_t module);
/// All units in one stage.
plan::UnitSpan whole_module(const Config& config, std::size_t module);
/// Whether the module's projector runs on the LLM's ranks, which are not the module's.
bool projector_moves(const Config& config, std::size_t module);
/// The units of a module that a mesh runs; none: first == last.
plan::UnitSpan units_on(const Config& config, std::size_t module, std::size_t mesh);
/// By stage of a mesh: the spans of its parts. A stem without a stage of its own goes with the first layer, exit and
/// head with the last. Throws ConfigError with the mistake.
std::vector<std::vector<plan::UnitSpan>> stage_spans(const Config& config, const MeshConfig& mesh);

/// Keys whose change on resume changes the mathematics, as prefixes of resolved keys.
bool changes_mathematics(const std::string& key);

}  // namespace mmt::app
