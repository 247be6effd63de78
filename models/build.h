// From a spec to the units of a stage. Every rank builds every stage's plan; units are made without tensors.
//
// Parameter names are those that a fresh `save_pretrained` of that tower or LLM alone writes (transformers 5); the
// projector's are `linear_1.weight` and so on in the module "<encoder>.projector". `gpt2` uses the LLM names of the
// other families (unfused) and `model.embed_positions.weight`.
#pragma once

#include "models/embedding.h"
#include "models/spec.h"

namespace mmt::models {

/// A run of a module's units, which are in order: the embedding or stem, the transformer blocks, then the head, or the
/// encoder's exit and its projector.
struct UnitRange {
  int first = 0;
  int last = -1;  ///< one past the last unit; -1: all
};
int num_units(const EncoderSpec& spec);
int num_units(const LlmSpec& spec);

/// Setting::module is set from the spec; degrees and coord are those of the module's mesh. The specs must be valid.
run::Stage build_encoder(const EncoderSpec& spec, std::int64_t llm_hidden, UnitPlanner::Setting setting,
                         UnitRange range = {});
/// `ports`: one per edge that writes rows, in edge order, with the needs_grad of the producer's output.
run::Stage build_llm(const LlmSpec& spec, const std::vector<EmbeddingPort>& ports, UnitPlanner::Setting setting,
                     UnitRange range = {});
/// Whether an encoder's (projected) output carries a gradient under the setting's trainable patterns.
bool output_needs_grad(const run::Stage& stage);

/// All canonical names and global shapes of a stage, each once.
std::vector<ParamSpec> parameters_of(const run::Stage& stage);
struct ParamCount {
  std::int64_t total = 0;
  std::int64_t trainable = 0;
  std::int64_t adapters = 0;  ///< linear layers that have one
};
ParamCount count_parameters(const run::Stage& stage);  ///< of the whole tensors, each once

}  // namespace mmt::models
