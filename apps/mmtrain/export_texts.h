// What an exported folder holds beside its weights: what kind of model it is, how pictures are prepared, its tokenizer.
#pragma once

#include "apps/mmtrain/config.h"
#include "models/hf_names.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace mmt::app {

inline constexpr std::uint64_t kMaxCompanion = std::uint64_t{256} << 20;  ///< bytes of such a file

/// Whether a module that was not imported has its place in the class of others ("eyes", "eyes.projector"): the merger
/// of a tower of kind qwen2_vl in the tower's, an LLM with three positions a row in that of a whole Qwen2-VL.
bool joins(const Config& config, const std::string& module, const std::vector<std::string>& others);
/// Name and text of the file that says what modules that were not imported are: config.json of their family, or
/// projector.json. `dtype`: F32 | BF16 | F16, of the weights. Throws ConfigError for what no family has.
std::pair<std::string, std::string> own_description(const Config& config, const std::vector<std::string>& modules,
                                                    const std::string& dtype);
/// Where the folder of these modules holds a parameter of one of them.
models::HfPlace own_place(const Config& config, const std::vector<std::string>& modules, const std::string& module,
                          const std::string& parameter);
/// preprocessor_config.json of a tower that was not imported; empty: transformers has none like it.
std::string preparation_of(const EncoderConfig& encoder);
/// video_preprocessor_config.json of one that takes videos.
std::string video_preparation_of(const EncoderConfig& encoder);
/// The published config.json of a folder, with the layer whose rows leave as `modules` were trained, and with another
/// dtype where `dtype` is not empty. Warns of what the file cannot say.
std::string published_description(const Config& config, const std::vector<std::string>& modules,
                                  const std::string& origin, const std::string& dtype);
/// A folder's other files, but those named: tokenizer, preprocessor, templates, licence.
void copy_companions(const std::string& from, const std::string& to, const std::vector<std::string>& but);

}  // namespace mmt::app
