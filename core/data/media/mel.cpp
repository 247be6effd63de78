#include "core/data/media/mel.h"

#include "core/error.h"

#include <kiss_fftr.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <numbers>

namespace mmt::data {
namespace {

constexpr double kLinearHzPerMel = 200.0 / 3.0;
constexpr double kLogStartHz = 1000.0;
constexpr double kLogStartMel = kLogStartHz / kLinearHzPerMel;
const double kLogStep = std::log(6.4) / 27.0;

double hz_to_mel(double hz) {
  return hz < kLogStartHz ? hz / kLinearHzPerMel : kLogStartMel + std::log(hz / kLogStartHz) / kLogStep;
}

double mel_to_hz(double mel) {
  return mel < kLogStartMel ? mel * kLinearHzPerMel : kLogStartHz * std::exp(kLogStep * (mel - kLogStartMel));
}

/// Index of a sample beyond the ends of [0, length): mirrored at the first and last sample, as often as needed.
std::int64_t reflect(std::int64_t i, std::int64_t length) {
  if (length == 1) return 0;
  const std::int64_t period = 2 * (length - 1);
  i %= period;
  if (i < 0) i += period;
  return i < length ? i : period - i;
}

}  // namespace

MelFilters make_mel_filters(int num_mel_bins, int fft, int rate) {
  MelFilters mel;
  mel.num_bins = fft / 2 + 1;
  const double top = hz_to_mel(rate / 2.0);
  std::vector<double> edges(static_cast<std::size_t>(num_mel_bins) + 2);
  for (std::size_t i = 0; i < edges.size(); ++i) {
    edges[i] = mel_to_hz(top * static_cast<double>(i) / static_cast<double>(num_mel_bins + 1));
  }
  for (std::size_t m = 0; m + 2 < edges.size(); ++m) {
    MelFilters::Filter filter;
    for (int bin = 0; bin < mel.num_bins; ++bin) {
      const double hz = static_cast<double>(bin) * rate / fft;
      const double up = (hz - edges[m]) / (edges[m + 1] - edges[m]);
      const double down = (edges[m + 2] - hz) / (edges[m + 2] - edges[m + 1]);
      const double height = std::min(up, down);
      if (height <= 0) continue;
      if (filter.weights.empty()) filter.first = bin;
      filter.weights.push_back(static_cast<float>(height * 2.0 / (edges[m + 2] - edges[m])));
    }
    mel.filters.push_back(std::move(filter));
  }
  return mel;
}

struct MelSpectrogram::Plan {
  kiss_fftr_cfg config;
  std::vector<kiss_fft_cpx> spectrum;

  explicit Plan(int fft)
      : config(kiss_fftr_alloc(fft, 0, nullptr, nullptr)), spectrum(static_cast<std::size_t>(fft / 2 + 1)) {
    if (config == nullptr) throw std::bad_alloc();
  }
  ~Plan() { kiss_fftr_free(config); }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
};

MelSpectrogram::MelSpectrogram(int num_mel_bins, int fft, int hop, int rate) : fft_(fft), hop_(hop) {
  MMT_CHECK(num_mel_bins > 0 && fft > 0 && fft % 2 == 0 && hop > 0 && rate > 0, "bins {}, fft {}, hop {}, rate {}",
            num_mel_bins, fft, hop, rate);
  mel_ = make_mel_filters(num_mel_bins, fft, rate);
  for (int i = 0; i < fft; ++i) {
    window_.push_back(static_cast<float>(0.5 - 0.5 * std::cos(2.0 * std::numbers::pi * i / fft)));
  }
  frame_.resize(static_cast<std::size_t>(fft));
  power_.resize(static_cast<std::size_t>(mel_.num_bins));
  plan_ = std::make_unique<Plan>(fft);
}

MelSpectrogram::~MelSpectrogram() = default;

/// Fills frame_ with the windowed samples [first, first + fft); false when all of them are zeros behind the clip.
bool MelSpectrogram::load_frame(std::span<const float> clip, std::int64_t length, std::int64_t first) {
  const auto own = static_cast<std::int64_t>(clip.size());
  const std::int64_t end = first + fft_;
  if (first >= 0 && end <= own) {
    for (int i = 0; i < fft_; ++i) {
      frame_[static_cast<std::size_t>(i)] =
          clip[static_cast<std::size_t>(first + i)] * window_[static_cast<std::size_t>(i)];
    }
    return true;
  }
  if (first >= own && (end <= length || 2 * (length - 1) - (end - 1) >= own)) return false;
  for (int i = 0; i < fft_; ++i) {
    const std::int64_t at = reflect(first + i, length);
    frame_[static_cast<std::size_t>(i)] =
        at < own ? clip[static_cast<std::size_t>(at)] * window_[static_cast<std::size_t>(i)] : 0.0F;
  }
  return true;
}

void MelSpectrogram::log_mel(std::span<const float> clip, std::int64_t length, std::int64_t num_frames,
                             std::span<float> out) {
  const std::size_t num_mels = mel_.filters.size();
  MMT_CHECK(length > 0 && length >= static_cast<std::int64_t>(clip.size()), "clip of {} in a window of {}", clip.size(),
            length);
  MMT_CHECK(out.size() % num_mels == 0 && out.size() / num_mels <= static_cast<std::size_t>(num_frames),
            "{} elements for {} frames of {}", out.size(), num_frames, num_mels);
  const auto written = static_cast<std::int64_t>(out.size() / num_mels);
  constexpr float kFloor = 1e-10F;
  float highest = -std::numeric_limits<float>::infinity();
  unwritten_.resize(num_mels);
  for (std::int64_t t = 0; t < num_frames; ++t) {
    float* const row = t < written ? out.data() + static_cast<std::size_t>(t) * num_mels : unwritten_.data();
    if (!load_frame(clip, length, t * hop_ - fft_ / 2)) {
      if (t < written) std::fill(row, row + num_mels, std::log10(kFloor));
      highest = std::max(highest, std::log10(kFloor));
      continue;
    }
    kiss_fftr(plan_->config, frame_.data(), plan_->spectrum.data());
    for (std::size_t i = 0; i < power_.size(); ++i) {
      const kiss_fft_cpx& z = plan_->spectrum[i];
      power_[i] = z.r * z.r + z.i * z.i;
    }
    for (std::size_t m = 0; m < num_mels; ++m) {
      const MelFilters::Filter& filter = mel_.filters[m];
      const float* power = power_.data() + filter.first;
      float sum = 0;
      for (std::size_t i = 0; i < filter.weights.size(); ++i) sum += power[i] * filter.weights[i];
      row[m] = std::log10(std::max(sum, kFloor));
      highest = std::max(highest, row[m]);
    }
  }
  for (float& x : out) x = (std::max(x, highest - 8.0F) + 4.0F) / 4.0F;
}

}  // namespace mmt::data
