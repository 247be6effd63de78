#include "models/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace mmt::models {
namespace {

void scale_llama3(const RopeScaling& c, std::span<double> inv_freq) {
  const double original = static_cast<double>(c.original_max_position);
  for (double& f : inv_freq) {
    const double wavelength = 2 * std::numbers::pi / f;
    if (wavelength < original / c.high_freq_factor) continue;
    if (wavelength > original / c.low_freq_factor) {
      f /= c.factor;
      continue;
    }
    const double keep = (original / wavelength - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor);
    f = (1 - keep) * f / c.factor + keep * f;
  }
}

double yarn_attention(const RopeScaling& c) {
  if (c.attention_factor > 0) return c.attention_factor;
  const auto scale = [&](double m) { return c.factor <= 1 ? 1.0 : 0.1 * m * std::log(c.factor) + 1; };
  return c.mscale > 0 && c.mscale_all_dim > 0 ? scale(c.mscale) / scale(c.mscale_all_dim) : scale(1);
}

void scale_yarn(const RopeScaling& c, double theta, std::span<double> inv_freq) {
  const double dim = 2 * static_cast<double>(inv_freq.size());
  const double original = static_cast<double>(c.original_max_position);
  // The frequency, counted from the fastest, that turns so often within the original length.
  const auto place = [&](double turns) {
    return dim * std::log(original / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  double low = place(c.beta_fast), high = place(c.beta_slow);
  if (c.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  for (std::size_t j = 0; j < inv_freq.size(); ++j) {
    const double stretched = std::clamp((static_cast<double>(j) - low) / (high - low), 0.0, 1.0);
    inv_freq[j] = inv_freq[j] / c.factor * stretched + inv_freq[j] * (1 - stretched);
  }
}

}  // namespace

double scale_frequencies(const RopeScaling& c, double theta, std::span<double> inv_freq) {
  switch (c.kind) {
    case RopeKind::llama3: scale_llama3(c, inv_freq); break;
    case RopeKind::linear:
      for (double& f : inv_freq) f /= c.factor;
      break;
    case RopeKind::dynamic: break;
    case RopeKind::yarn: scale_yarn(c, theta, inv_freq); return yarn_attention(c);
  }
  return 1;
}

}  // namespace mmt::models
