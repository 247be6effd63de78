// A model with the weights of a checkpoint, for commands that do not train.
#pragma once

#include "apps/mmtrain/evaluate.h"
#include "apps/mmtrain/state.h"

#include <memory>
#include <string>

namespace mmt::app {

struct Inference {
  Config config;
  Stream stream;
  std::unique_ptr<Preparer> preparer;
  std::unique_ptr<Model> model;
  std::string checkpoint;  ///< the folder
  std::int64_t step = 0;
};

/// Collective. `checkpoint` empty: the newest of run.output_dir; where there is none, the weights that every module
/// starts from, if all have some. Throws Agreed when there is nothing, or when a checkpoint's model is another one.
/// `whole`: every rank holds all of the model, whatever the layout.
Inference load_inference(Job& job, const Config& config, const std::string& checkpoint, bool whole = false);

/// Collective. The same with the weights that training would start from, random where a module has no `init`.
Inference load_start(Job& job, const Config& config);

/// Warns of what differs between the resolved configs of a checkpoint and of now and makes another model.
void warn_of_changes(const std::string& before, const std::string& now);

/// The checkpoint that a path means: itself, or the newest of a run folder. Throws Agreed.
std::string resolve_checkpoint(Job& job, const std::string& path);

}  // namespace mmt::app
