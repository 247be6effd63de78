// Choosing the next token of a generation from one row of logits. Runs on the host.
#pragma once

#include "core/tensor.h"

#include <cstdint>

namespace mmt {

struct SampleOptions {
  double temperature = 0;  ///< 0: greedy (the largest logit, ties to the lower id)
  double top_p = 1;        ///< keep the fewest most likely tokens whose probabilities add up to top_p (Holtzman 2019)
  int top_k = 0;           ///< keep the k most likely first; 0: all
};

namespace ops {

/// Deterministic for a given `uniform` in [0, 1): tokens in order of falling probability (ties to the lower id), the
/// one in whose share of the kept probability `uniform` falls. logits: V elements on the host, f32, bf16 or f64. Throws
/// std::logic_error when none is finite, or an option is out of range. Allocates V * 16 bytes.
std::int32_t sample_token(const Tensor& logits, const SampleOptions& options, double uniform);

}  // namespace ops
}  // namespace mmt
