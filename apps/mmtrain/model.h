// The model of a run on one rank: stages, parameter stores, ties.
#pragma once

#include "apps/mmtrain/config.h"
#include "models/build.h"
#include "parallel/plan/step.h"
#include "parallel/run/optimizer.h"
#include "parallel/run/store.h"

#include <memory>
#include <string>
#include <vector>

namespace mmt::app {

struct Model {
  /// Encoders in config order, then the LLM.
  std::vector<run::Stage> stages;
  std::vector<std::unique_ptr<run::ParameterStore>> stores;
  std::vector<run::TieGroup> ties;
  std::vector<plan::EncoderRows> encoder_rows;
  std::vector<std::int32_t> llm_windows;
  plan::ColocatedModules modules;  ///< what programs are made for

  std::size_t num_encoders() const { return stages.size() - 1; }
  run::Stage& llm() { return stages.back(); }
  /// Trainable parameters whose state this rank keeps, each once: the first use of a tied one.
  std::vector<run::ParamState*> owned_params(bool trainable_only);
};

/// Whether a parameter trains, from the rules of all modules. Throws ConfigError for a pattern that is wrong or that
/// matches nothing (call `finish` once all parameters were asked for).
class TrainableRules {
 public:
  explicit TrainableRules(const Config& config);
  ~TrainableRules();
  bool trains(const std::string& name) const;  ///< "<module>/<parameter>"
  void finish() const;

 private:
  struct Rules;
  std::unique_ptr<Rules> rules_;
};

/// The stages alone. Throws ConfigError (patterns).
Model build_model(const Config& config);
/// Collective. `data` sums gradients over the data lanes (null: one lane). Weights are not set yet.
void make_stores(Model& model, comm::Communicator* data, const Stream& stream);
/// Fresh values, addressed by (seed, name, element): the same in every layout.
void initialize_model(Model& model, std::uint64_t seed, const Stream& stream);
/// Copies masters into compute weights.
void refresh_compute(run::ParameterStore& store, const Stream& stream);

/// What an optimizer needs of the trainable parameters. The caller scales the weight decay: it is 1 for those that
/// decay.
std::vector<run::OptimizedParam> optimized_params(Model& model);

/// "eyes: 1.2 M parameters, 0.3 M trainable" for each module, for the start-up report.
std::string describe(const Model& model);

}  // namespace mmt::app
