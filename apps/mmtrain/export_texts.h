// What an exported folder holds beside its weights: what kind of model it is, how pictures are prepared, its tokenizer.
#pragma once

#include "apps/mmtrain/config.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace mmt::app {

inline constexpr std::uint64_t kMaxCompanion = std::uint64_t{256} << 20;  ///< bytes of such a file

/// Name and text of the file that says what a module that was not imported is: config.json of its family, or
/// projector.json. `dtype`: F32 | BF16 | F16, of the weights. Throws ConfigError for what no family has.
std::pair<std::string, std::string> own_description(const Config& config, const std::string& module,
                                                    const std::string& dtype);
/// preprocessor_config.json of a tower that was not imported.
std::string preparation_of(const EncoderConfig& encoder);
/// The published config.json of a folder, with the layer whose rows leave as `modules` were trained, and with another
/// dtype where `dtype` is not empty. Warns of what the file cannot say.
std::string published_description(const Config& config, const std::vector<std::string>& modules,
                                  const std::string& origin, const std::string& dtype);
/// A folder's other files, but those named: tokenizer, preprocessor, templates, licence.
void copy_companions(const std::string& from, const std::string& to, const std::vector<std::string>& but);

}  // namespace mmt::app
