// Weights of published models (Hugging Face folders): whose tensors are whose, read where they are needed.
#pragma once

#include "apps/mmtrain/job.h"
#include "apps/mmtrain/model.h"
#include "core/data/weights/safetensors.h"
#include "models/hf_names.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace mmt::app {

/// A module, or a projector ("eyes.projector"), that starts from a folder.
struct PretrainedPart {
  std::string module;
  models::HfPart part = models::HfPart::llm;
  std::string folder;
  bool weights = true;    ///< false: a checkpoint has them
  bool adapters = false;  ///< the folder is PEFT's: the module's adapters, not its weights
};
/// Weights; the order is that of the modules.
std::vector<PretrainedPart> pretrained_parts(const Config& config);
/// PEFT folders.
std::vector<PretrainedPart> adapter_parts(const Config& config);

/// The weights of a folder. Throws ConfigError.
data::SafetensorsModel open_published(const std::string& folder);

/// What a module's tensors are called in a folder, checked against the module: each is there in the right shape, and
/// the folder holds nothing of the module that it has no place for.
struct PretrainedNames {
  std::map<std::string, models::HfPlace> place_of;  ///< by canonical name, "<module>/<parameter>"
  std::vector<std::string> unused;                  ///< names of the files that training does not need (upper layers)
};
/// Throws ConfigError naming the folder and all tensors that are missing, left over or of another shape.
PretrainedNames match_pretrained(const Config& config, const Model& model, const PretrainedPart& part,
                                 const data::SafetensorsModel& files);

/// Fills what starts from published folders, each rank its own boxes. Collective; throws Agreed.
void load_pretrained(Job& job, const Config& config, Model& model, const Stream& stream);

}  // namespace mmt::app
