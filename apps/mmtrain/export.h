// From a checkpoint to folders that `from_pretrained` loads.
//
// What started from one published folder goes back into one folder of its kind: its config.json, tokenizer and
// preprocessor, its tensors under their names and in their dtypes, and what training did not use. Other modules get a
// folder each with the names that a fresh `save_pretrained` of their family writes. A projector of its own is a folder
// with model.safetensors (linear_1.weight, ...) and projector.json.
#pragma once

#include "apps/mmtrain/config.h"
#include "parallel/run/checkpoint.h"

#include <cstdint>
#include <string>
#include <vector>

namespace mmt::app {

struct ExportOptions {
  std::string out;    ///< a folder that does not exist or is empty
  std::string dtype;  ///< F32 | BF16 | F16; empty: as the published tensor has it, else train.precision
  /// Adapters are added to the weights that they stand beside; else they go into <out>/<module>-adapter under
  /// PEFT's names.
  bool merge_adapters = true;
  std::uint64_t shard_bytes = std::uint64_t{5} << 30;
};

/// Returns the folders that were written. Throws ConfigError, Error with the path.
std::vector<std::string> export_model(const Config& config, const run::CheckpointReader& checkpoint,
                                      const ExportOptions& options);

}  // namespace mmt::app
