// Adapters of a checkpoint outside of it: merged into the weights that they stand beside, or as a PEFT folder
// (adapter_config.json, adapter_model.safetensors).
#pragma once

#include "apps/mmtrain/model.h"
#include "apps/mmtrain/parameter_rules.h"
#include "parallel/run/checkpoint.h"

#include <map>
#include <string>
#include <vector>

namespace mmt::app {

/// A whole parameter of a checkpoint as f32.
std::vector<float> read_parameter(const run::CheckpointReader& checkpoint, const run::ParamSpec& parameter);

class AdapterFiles {
 public:
  /// Refers to the model.
  AdapterFiles(const Model& model, const Config& config);

  bool empty() const { return adapters_.empty(); }
  std::vector<std::string> modules() const;  ///< that have adapters
  /// values (out, in) of `parameter` += scale B A, where it has an adapter.
  void merge_into(const run::ParamSpec& parameter, const run::CheckpointReader& checkpoint,
                  std::vector<float>& values) const;
  /// `base`: what PEFT calls the base model's path. Names are "base_model.model." + `prefix` (models/hf_config.h) + the
  /// layer, without the "model." of an LLM where there is a prefix.
  void write_peft(const std::string& folder, const std::string& module, const std::string& base,
                  const std::string& prefix, const run::CheckpointReader& checkpoint) const;

 private:
  struct Adapter {
    const run::ParamSpec *a = nullptr, *b = nullptr;
    run::AdapterSpec spec;
  };
  const Config& config_;
  std::map<std::string, Adapter> adapters_;  ///< by "<module>/<layer>"
};

}  // namespace mmt::app
