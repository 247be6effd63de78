// Stretched rotary frequencies: how a model trained on short texts reads longer ones.
#pragma once

#include <cstdint>
#include <span>

namespace mmt::models {

enum class RopeKind : std::uint8_t {
  llama3,   ///< long wavelengths are stretched by `factor`, short ones kept, a blend between
  linear,   ///< all are stretched by `factor`
  dynamic,  ///< up to `original_max_position` nothing changes; longer samples are refused, since there the frequencies
            ///< would depend on the longest text that happens to be in the batch
  yarn,     ///< Peng et al. 2023: a blend by how often a frequency turns in the original length, and a scale on cos and
            ///< sin
};

struct RopeScaling {
  double factor = 8, low_freq_factor = 1, high_freq_factor = 4;
  std::int64_t original_max_position = 8192;
  RopeKind kind = RopeKind::llama3;
  // yarn
  double beta_fast = 32, beta_slow = 1;  ///< turns within the original length: above, kept; below, stretched
  bool truncate = true;                  ///< the blend begins and ends at whole frequencies
  double attention_factor = 0;           ///< scale of cos and sin; 0: from factor (and both mscales, where given)
  double mscale = 0, mscale_all_dim = 0;
  bool operator==(const RopeScaling&) const = default;
};

/// Scales the frequencies of `theta` in place; returns the scale of cos and sin.
double scale_frequencies(const RopeScaling& scaling, double theta, std::span<double> inv_freq);

}  // namespace mmt::models
