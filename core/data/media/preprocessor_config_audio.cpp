// preprocessor_config.json of a published tower of sound: nothing in it is left to choose, so that it is checked.
#include "core/data/json_guard.h"
#include "core/data/media/preprocessor_config.h"
#include "core/error.h"
#include "core/files.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

namespace mmt::data {
namespace {

constexpr std::uint64_t kMaxSoundBytes = std::uint64_t{4} << 20;
constexpr int kMaxSoundDepth = 32;

/// The value of a key; null where it is left open.
const nlohmann::json* sound_value(const nlohmann::json& object, const char* key) {
  const auto at = object.find(key);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

}  // namespace

void check_audio_preprocessor(std::string_view json, const std::string& path, const AudioProcessing& made) {
  const nlohmann::json root = parse_json_object(json, kMaxSoundDepth, path, "preprocessor file");
  const auto inner = root.find("feature_extractor");
  const nlohmann::json& object = inner != root.end() && inner->is_object() ? *inner : root;
  const auto refuse = [&](const char* key, const std::string& what) {
    throw ConfigError(fmt::format("{}: {}: {}", path, key, what));
  };
  const auto number = [&](const char* key, double wanted) {
    const nlohmann::json* const value = sound_value(object, key);
    if (value != nullptr && !(value->is_number() && value->get<double>() == wanted))
      refuse(key,
             fmt::format("{} given, the tower wants {}", value->is_number() ? value->dump() : "no number", wanted));
  };
  const auto word = [&](const char* key, const char* wanted) {
    const nlohmann::json* const value = sound_value(object, key);
    if (value != nullptr && *value != wanted) refuse(key, fmt::format("only \"{}\" is supported", wanted));
  };
  const AudioRowRule& rows = made.rows;
  word("feature_extractor_type", "WhisperFeatureExtractor");
  number("feature_size", made.num_mel_bins);
  number("sampling_rate", made.rate);
  number("hop_length", rows.hop);
  number("n_fft", made.fft);
  number("chunk_length", static_cast<double>(rows.window_samples()) / made.rate);
  number("padding_value", 0);
  number("dither", 0);
  word("padding_side", "right");
}

void check_audio_preprocessor_of(const std::string& folder, const AudioProcessing& made) {
  for (const char* name : {"preprocessor_config.json", "processor_config.json"}) {
    const std::string path = (std::filesystem::path(folder) / name).string();
    std::error_code none;
    if (!std::filesystem::exists(path, none)) continue;
    std::string text;
    try {
      text = files::read(path, kMaxSoundBytes);
    } catch (const Error& e) {
      throw ConfigError(e.what());
    }
    // Files of this name also belong to tokenizers and to pictures.
    if (text.find("\"feature_size\"") == std::string::npos &&
        text.find("\"feature_extractor_type\"") == std::string::npos)
      continue;
    return check_audio_preprocessor(text, path, made);
  }
}

}  // namespace mmt::data
