#include "core/data/media/frame_sampling.h"

#include "core/error.h"

#include <algorithm>
#include <cmath>

namespace mmt::data {
namespace {

/// floor(i * total / count), with the rounding of torch.arange(0, total, total / count).int().
std::vector<std::int32_t> spread(std::int64_t total, std::int64_t count) {
  const double every = static_cast<double>(total) / static_cast<double>(count);
  std::vector<std::int32_t> indices;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::int64_t>(static_cast<float>(static_cast<double>(i) * every));
    indices.push_back(static_cast<std::int32_t>(std::min(at, total - 1)));
  }
  return indices;
}

}  // namespace

std::vector<std::int32_t> sample_frames(const FrameSampling& s, std::int64_t total, double rate, int step) {
  MMT_CHECK(total > 0 && total <= INT32_MAX && step > 0 && s.max_frames > 0 && s.min_frames > 0 && s.fps >= 0,
            "{} frames in steps of {}, {} to {} at {} fps", total, step, s.min_frames, s.max_frames, s.fps);
  const auto whole_steps = [&](double frames) { return static_cast<std::int64_t>(std::floor(frames / step)) * step; };
  const auto least = std::min<std::int64_t>(total, step);
  const std::int64_t most = std::max(whole_steps(static_cast<double>(std::min(s.max_frames, total))), least);
  if (!(rate > 0) || s.fps == 0) return spread(total, total > s.max_frames ? most : total);
  const double wanted = static_cast<double>(total) / rate * s.fps;
  const double within = std::min(std::max(wanted, static_cast<double>(s.min_frames)), static_cast<double>(most));
  return spread(total, std::max(whole_steps(within), least));
}

double frame_rate(const std::vector<std::int32_t>& milliseconds) {
  constexpr std::int32_t kShortest = 20, kInstead = 100;
  double seconds = 0;
  for (const std::int32_t ms : milliseconds) seconds += 1e-3 * (ms < kShortest ? kInstead : ms);
  return seconds > 0 ? static_cast<double>(milliseconds.size()) / seconds : 0;
}

}  // namespace mmt::data
