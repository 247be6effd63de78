// What a checkpoint holds of a model and its optimizer, and the way back.
#pragma once

#include "apps/mmtrain/job.h"
#include "apps/mmtrain/model.h"
#include "parallel/run/checkpoint.h"
#include "parallel/run/optimizer.h"

#include <string>
#include <vector>

namespace mmt::app {

/// Reads weights and moments; then the compute copies follow.
void load_training(Job& job, const run::CheckpointReader& reader, Model& model, const run::Optimizer& optimizer,
                   const Stream& stream);

/// Throws ConfigError for adapters in the checkpoint, of the modules that `chosen` names, that the model has none for:
/// its weights without them are another model's.
void refuse_lost_adapters(const run::CheckpointReader& reader, const Model& model,
                          const std::vector<std::string>& chosen);

/// Weights alone of the modules that `chosen` names (and their projectors). Throws Agreed for a tensor that is missing
/// or has another shape, and for adapters in the checkpoint that the model lacks. `fresh_adapters`: those that the
/// checkpoint lacks keep their fresh values.
void load_weights(Job& job, const run::CheckpointReader& reader, Model& model, const std::vector<std::string>& chosen,
                  const Stream& stream, bool fresh_adapters = false);

/// `init: {checkpoint: ...}` and `init: {hf: ...}` of every module that has one.
void load_initial(Job& job, const Config& config, Model& model, const Stream& stream);

/// Opens a checkpoint on every rank, or throws Agreed.
std::unique_ptr<run::CheckpointReader> open_checkpoint(Job& job, const std::string& path);

std::string checkpoint_folder(const Config& config);  ///< <output_dir>/checkpoints

}  // namespace mmt::app
