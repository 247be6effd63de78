// The log-mel spectrogram of Whisper (Radford et al. 2022 and its reference code), window by window.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace mmt::data {

/// Triangular filters on the Slaney mel scale (linear to 1 kHz, 200/3 Hz a mel; then logarithmic, ln(6.4)/27 a mel),
/// each scaled by 2 / (upper - lower edge). Of every filter only the bins that are not zero.
struct MelFilters {
  int num_bins = 0;  ///< of the spectrum: fft / 2 + 1
  struct Filter {
    int first = 0;
    std::vector<float> weights;
  };
  std::vector<Filter> filters;
};
MelFilters make_mel_filters(int num_mel_bins, int fft, int rate);

/// Frames of one padded clip. Holds FFT scratch memory: one per thread.
class MelSpectrogram {
 public:
  MelSpectrogram(int num_mel_bins, int fft, int hop, int rate);
  ~MelSpectrogram();
  MelSpectrogram(const MelSpectrogram&) = delete;
  MelSpectrogram& operator=(const MelSpectrogram&) = delete;

  /// `clip`, followed by zeros up to `length` samples (>= clip.size()), gives `num_frames` frames: frame t is centred
  /// on sample t * hop; ends are reflected as numpy's `reflect` does, over and over where the clip is shorter than half
  /// a window. `out`: the first of them or all, (rows, num_mel_bins), each element written; the maximum that bounds
  /// them from below is that of all.
  void log_mel(std::span<const float> clip, std::int64_t length, std::int64_t num_frames, std::span<float> out);

 private:
  struct Plan;
  bool load_frame(std::span<const float> clip, std::int64_t length, std::int64_t first);

  int fft_;
  int hop_;
  MelFilters mel_;
  std::vector<float> window_;
  std::vector<float> frame_;
  std::vector<float> power_;
  std::vector<float> unwritten_;  ///< a frame that counts for the maximum alone
  std::unique_ptr<Plan> plan_;
};

}  // namespace mmt::data
