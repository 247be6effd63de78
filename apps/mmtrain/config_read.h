// What the files that bind the configuration share.
#pragma once

#include "apps/mmtrain/config.h"
#include "models/hf_names.h"

#include <fmt/format.h>

namespace mmt::app {

void read_modules(config::Reader& r, Config& c);
void check_modules(config::Document& document, Config& c);
/// Keys of an image or an audio encoder, after the published model's.
void read_image_encoder(config::Reader& r, EncoderConfig& e);
void read_audio_encoder(config::Reader& r, EncoderConfig& e);
void read_parallel(config::Reader& r, Config& c, int ranks);
/// After the modules are known.
void check_parallel(config::Document& document, Config& c, int ranks);
/// `trainable`, `frozen` and `lora` of a module or projector.
/// `part`: what the module is in a published model.
void read_training(config::Reader& r, TrainableRule& rule, std::optional<LoraConfig>& lora, models::HfPart part);

/// Of a width, or a count of layers, heads or tokens: what follows from two of them can be counted, and no model comes
/// near.
inline constexpr double kMaxSize = 1 << 24;

/// A size that a published model has must be its own where it is written; else it must be written.
template <class T> void read_size(config::Reader& r, const char* key, T& value, bool published, double min) {
  if (!published) {
    r.required(key, value, config::between(min, kMaxSize));
    return;
  }
  const T own = value;  // 0: the model could not be read, which is reported
  if (r.optional(key, value, config::between(min, kMaxSize)) && value != own && own != 0) {
    r.problem(key, fmt::format("{} given, but the model that `init` names has {}: leave the key out", value, own));
    value = own;
  }
}
/// What else the config.json of a published model decides: the weights mean nothing under other values.
template <class T> void keep_published(config::Reader& r, const char* key, const T& now, const T& own) {
  if (now != own) {
    r.problem(
        key,
        "contradicts the published model that `init` names: leave the key out, or change the config.json of a copy");
  }
}

/// The same for a size with a default.
template <class T> void read_derived(config::Reader& r, const char* key, T& value, bool published) {
  if (published)
    read_size(r, key, value, true, 0);
  else
    r.optional(key, value, config::between(0, kMaxSize));
}

}  // namespace mmt::app
