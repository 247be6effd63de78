#include "models/loss.h"

#include <algorithm>

namespace mmt::models {

std::optional<LossWeighting> parse_loss_weighting(const std::string& name) {
  if (name == "token") return LossWeighting::token;
  if (name == "sample") return LossWeighting::sample;
  return std::nullopt;
}

double label_weight(LossWeighting weighting, std::int64_t supervised) {
  return weighting == LossWeighting::token ? 1.0 : 1.0 / static_cast<double>(supervised);
}

double sample_weight(LossWeighting weighting, std::int64_t supervised) {
  if (supervised <= 0) return 0.0;
  return weighting == LossWeighting::token ? static_cast<double>(supervised) : 1.0;
}

void fill_label_weights(LossWeighting weighting, std::span<float> weights) {
  if (weights.empty()) return;
  const auto n = static_cast<std::int64_t>(weights.size());
  std::fill(weights.begin(), weights.end(), static_cast<float>(label_weight(weighting, n)));
}

}  // namespace mmt::models
