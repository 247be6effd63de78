#include "core/data/media/mel.h"
#include "core/data/media/preprocess.h"
#include "core/error.h"

namespace mmt::data {

struct AudioProcessor::State {
  MelSpectrogram mel;
  explicit State(const AudioProcessing& o) : mel(o.num_mel_bins, o.fft, o.rows.hop, o.rate) {}
};

AudioProcessor::AudioProcessor(const AudioProcessing& options)
    : options_(options), state_(std::make_unique<State>(options)) {}
AudioProcessor::~AudioProcessor() = default;
AudioProcessor::AudioProcessor(const AudioProcessor& other) : AudioProcessor(other.options_) {}
AudioProcessor& AudioProcessor::operator=(const AudioProcessor& other) { return *this = AudioProcessor(other); }
AudioProcessor::AudioProcessor(AudioProcessor&&) noexcept = default;
AudioProcessor& AudioProcessor::operator=(AudioProcessor&&) noexcept = default;

void AudioProcessor::log_mel(std::span<const float> clip, std::span<float> out, std::string_view where) {
  const AudioRowRule& rule = options_.rows;
  const auto samples = static_cast<std::int64_t>(clip.size());
  check_audio_length(rule, samples, options_.rate, where);
  const std::int64_t num_frames = audio_frames(rule, samples);
  MMT_CHECK(static_cast<std::int64_t>(out.size()) == num_frames * options_.num_mel_bins,
            "{} elements for {} frames of {}", out.size(), num_frames, options_.num_mel_bins);
  for (const AudioChunk& chunk : audio_chunks(rule, samples)) {
    const bool own = rule.window == AudioWindow::none;
    const std::int64_t length = own ? chunk.samples : rule.window_samples();
    const auto elements = static_cast<std::size_t>(chunk.frames * options_.num_mel_bins);
    state_->mel.log_mel(
        clip.subspan(static_cast<std::size_t>(chunk.first_sample), static_cast<std::size_t>(chunk.samples)), length,
        own ? chunk.frames : rule.max_frames, out.first(elements));
    out = out.subspan(elements);
  }
}

}  // namespace mmt::data
