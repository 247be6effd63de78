// What the files that bind the configuration share.
#pragma once

#include "apps/mmtrain/config.h"
#include "models/hf_names.h"

namespace mmt::app {

void read_modules(config::Reader& r, Config& c);
void check_modules(config::Document& document, Config& c);
void read_parallel(config::Reader& r, Config& c, int ranks);
/// After the modules are known.
void check_parallel(config::Document& document, Config& c, int ranks);
/// `trainable`, `frozen` and `lora` of a module or projector.
/// `part`: what the module is in a published model.
void read_training(config::Reader& r, TrainableRule& rule, std::optional<LoraConfig>& lora, models::HfPart part);

}  // namespace mmt::app
