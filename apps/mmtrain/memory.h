// The process's memory as the system sees it, and what the program expects it to be.
#pragma once

#include "apps/mmtrain/engine.h"

#include <cstdint>

namespace mmt::app {

/// How many ranks share master weights and moments of a stage.
int state_shards(const Model& model, int stage);
/// Weights, their compute copies, gradients and moments, and the memory of the engine's blocks.
std::int64_t expected_bytes(const Model& model, const Engine& engine, const Stream& stream);

std::int64_t resident_bytes();       ///< now (VmRSS)
std::int64_t peak_resident_bytes();  ///< so far (VmHWM)

}  // namespace mmt::app
