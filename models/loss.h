// Loss weights and the normaliser W, from metadata alone. The loss is sum(weight * cross-entropy) / W.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace mmt::models {

enum class LossWeighting : std::uint8_t {
  token,   ///< every supervised token counts 1; W is their number
  sample,  ///< every sample with supervised tokens counts 1, shared evenly by its tokens; W is their number
};

std::optional<LossWeighting> parse_loss_weighting(const std::string& name);

/// Weight of each label of a sample with `supervised` labels (1 or more).
double label_weight(LossWeighting weighting, std::int64_t supervised);
/// What the sample adds to W: 0 without labels.
double sample_weight(LossWeighting weighting, std::int64_t supervised);

/// Fills the weights of one sample's labels.
void fill_label_weights(LossWeighting weighting, std::span<float> weights);

}  // namespace mmt::models
