// What the config.json of a published model (Hugging Face) says about modules of ours: the spellings of transformers 4
// and 5, and per `model_type` the values that a file may leave out.
//
// Whole models hold a tower, a projector and an LLM (llava, qwen2_audio); others are one of them (llama,
// clip_vision_model, whisper).
#pragma once

#include "models/hf_names.h"
#include "models/spec.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mmt::models {

struct HfConfig {
  std::string path;          ///< of the file, for messages
  std::string model_type;    ///< as the file has it
  std::string architecture;  ///< the first class that the file names; empty where it names none
  std::string dtype;         ///< of the stored weights: "bfloat16"; empty where the file does not say
  std::optional<LlmSpec> llm;
  std::optional<EncoderSpec> encoder;
  bool has_projector = false;  ///< `encoder->projector` is the model's own
  /// Values that the file does not hold and its `model_type` decides: "text_config.rope_theta 10000".
  std::vector<std::string> defaults;
};

/// Throws ConfigError naming the file and the key: what is missing, wrong, or not supported here.
HfConfig parse_hf_config(std::string_view json, const std::string& path);
/// config.json of a folder.
HfConfig read_hf_config(const std::string& folder);
/// What stands before a part's layers in the memory of the model that `from_pretrained` makes of such a folder
/// (transformers 5): "model.language_model." of a llava, "vision_model." of a CLIP; empty for a module alone.
std::string memory_prefix(const HfConfig& config, HfPart part);
/// Model types that can be read, for messages.
std::vector<std::string> hf_model_types();

/// A config.json (transformers 5) of a module alone, for what was not imported. `vocabulary` etc. come from the spec.
std::string hf_config_of(const LlmSpec& spec, const std::string& dtype);
/// A tower of kind qwen2_vl has its merger, into rows of the LLM's width, in its class.
std::string hf_config_of(const EncoderSpec& spec, std::int64_t llm_hidden, const std::string& dtype);
/// Of a Qwen2-VL: tower, merger and LLM; token ids are left to the caller.
std::string hf_config_of(const EncoderSpec& tower, const LlmSpec& llm, const std::string& dtype);

}  // namespace mmt::models
