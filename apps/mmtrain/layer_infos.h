// What planning knows of a model's layers: cost, memory and gradients of every unit under the frozen pattern.
#pragma once

#include "apps/mmtrain/dataset.h"
#include "apps/mmtrain/model.h"
#include "parallel/plan/timing.h"

#include <optional>
#include <vector>

namespace mmt::app {

/// The largest block of a module that the caps allow.
const plan::BlockSize& cap_of(const RowCaps& caps, std::size_t module);

/// Every module on one place of its mesh, uncut: first ranks of the meshes, with their tp.
plan::Layout uncut_layout(const Config& config);

/// By module (encoders in config order, then the LLM) its units in order, on one rank of its mesh, with the
/// model's recompute or that of `everywhere`, where it has an effect. Names are the units' ("llm.layers.3"), kinds say
/// family, part, weights, tp and dtype ("llama layer, 202383360 weights, bf16"): units of one kind cost the same for
/// the same block.
///
/// Memory: parameters with the packed form of frozen ones; every use of a tied parameter in full; moments and masters
/// of one data lane under ZeRO-1. `kept` and `held` hold the unit's input where its backward reads it, `stash` the
/// output gradient where its BW does. `scratch` is a constant for the largest block that `caps` allow, since kernels'
/// needs are no linear functions: both buffers that units pass each other, and the call that takes most.
std::vector<std::vector<plan::LayerInfo>> layer_infos(const Config& config, const Model& model, const RowCaps& caps,
                                                      const Stream& stream,
                                                      std::optional<run::Recompute> everywhere = {});

}  // namespace mmt::app
