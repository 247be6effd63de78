// Log-mel spectrograms against transformers' WhisperFeatureExtractor (numpy) and a plain numpy computation.
#include "core/data/media/mel.h"
#include "core/data/media/preprocess.h"
#include "tests/data/media_files.h"

using namespace mmt;
using namespace mmt::data;
using namespace mmt::data::test;

namespace {

AudioProcessing own_clip(int num_mel_bins = 80) {
  AudioProcessing o;
  o.rows.window = AudioWindow::none;
  o.num_mel_bins = num_mel_bins;
  return o;
}

std::vector<float> mel_of(AudioProcessor& processor, const std::vector<float>& clip) {
  const std::int64_t frames = audio_frames(processor.options().rows, static_cast<std::int64_t>(clip.size()));
  std::vector<float> out(static_cast<std::size_t>(frames * processor.options().num_mel_bins), std::nanf(""));
  processor.log_mel(clip, out, kWhere);
  return out;
}

}  // namespace

TEST_CASE("mel: a clip on its own equals numpy") {
  AudioProcessor processor(own_clip());
  CHECK(max_difference(mel_of(processor, mel_clip(5000)), golden<float>("mel_none.f32")) < 1e-4);
  // Shorter than half a window: the ends are reflected more than once.
  for (const int samples : {160, 201}) {
    const std::vector<float> got = mel_of(processor, mel_clip(samples));
    CHECK(max_difference(got, golden<float>("mel_none_" + std::to_string(samples) + ".f32")) < 1e-4);
  }
  AudioProcessor copy = processor;
  CHECK(mel_of(copy, mel_clip(5000)) == mel_of(processor, mel_clip(5000)));
}

TEST_CASE("mel: a full window equals Whisper's extractor") {
  AudioProcessing o;
  o.num_mel_bins = 128;
  o.rows.max_frames = 100;
  AudioProcessor processor(o);
  const std::vector<float> got = mel_of(processor, mel_clip(5000));
  REQUIRE(got.size() == 100 * 128);
  std::vector<float> chosen;
  for (const int frame : {0, 1, 2, 15, 30, 31, 32, 33, 50, 99}) {
    chosen.insert(chosen.end(), got.begin() + frame * 128, got.begin() + (frame + 1) * 128);
  }
  CHECK(max_difference(chosen, golden<float>("mel_full_128.f32")) < 1e-4);
}

TEST_CASE("mel: of a masked window the frames that a clip's rows depend on are those of the whole window") {
  AudioProcessing o;
  o.rows.max_frames = 20;  // 3200 samples
  AudioProcessor whole(o);
  o.rows.window = AudioWindow::mask;
  AudioProcessor masked(o);
  for (const int samples : {1, 160, 161, 320, 321, 1500, 1599, 2879, 2880, 2881, 3040, 3041, 3200}) {
    INFO(samples);
    const std::vector<float> clip = mel_clip(samples);
    std::vector<float> expected = mel_of(whole, clip);
    const std::vector<float> got = mel_of(masked, clip);
    const int own = (samples + 159) / 160, rows = (own + 1) / 2;
    CHECK(got.size() == static_cast<std::size_t>(std::min(2 * rows + 1, 20)) * 80);
    expected.resize(got.size());
    CHECK(got == expected);
  }
  // Samples at the very end sound on in a frame that no row depends on.
  std::vector<float> clip(320, 0.0F);
  for (std::size_t i = 290; i < clip.size(); ++i) clip[i] = i % 2 == 0 ? 0.9F : -0.9F;
  std::vector<float> expected = mel_of(whole, clip);
  const std::vector<float> got = mel_of(masked, clip);
  expected.resize(got.size());
  CHECK(got == expected);
}

TEST_CASE("mel: zeros behind the clip are what computing them gives") {
  AudioProcessing o;
  o.rows.max_frames = 20;  // 3200 samples
  AudioProcessor processor(o);
  for (const int samples : {1, 160, 1500, 2799, 2999, 3000, 3001, 3199, 3200}) {
    INFO(samples);
    std::vector<float> clip = mel_clip(samples);
    const std::vector<float> got = mel_of(processor, clip);
    clip.resize(3200, 0.0F);
    CHECK(got == mel_of(processor, clip));
  }
}

TEST_CASE("mel: silence is a constant and no NaN") {
  AudioProcessor processor(own_clip());
  const std::vector<float> got = mel_of(processor, std::vector<float>(1600, 0.0F));
  CHECK(std::all_of(got.begin(), got.end(), [](float v) { return v == -1.5F; }));  // (-10 + 4) / 4
}

TEST_CASE("mel: chunks are clips of their own") {
  AudioProcessing o = own_clip();
  o.rows.max_frames = 10;
  AudioProcessor processor(o);
  const std::vector<float> clip = mel_clip(3500);
  std::vector<float> expected;
  for (const auto& [first, count] : {std::pair{0, 1600}, {1600, 1600}, {3200, 300}}) {
    const std::vector<float> part(clip.begin() + first, clip.begin() + first + count);
    const std::vector<float> rows = mel_of(processor, part);
    expected.insert(expected.end(), rows.begin(), rows.end());
  }
  CHECK(mel_of(processor, clip) == expected);
  o.rows.over_long = OverLong::truncate;
  AudioProcessor truncating(o);
  CHECK(mel_of(truncating, clip) == mel_of(processor, std::vector<float>(clip.begin(), clip.begin() + 1600)));
  o.rows.over_long = OverLong::skip;
  AudioProcessor skipping(o);
  CHECK(fault_of([&] { mel_of(skipping, clip); }) == DataFault::audio_too_long);
}

TEST_CASE("mel: clips without a frame are refused") {
  AudioProcessor processor(own_clip());
  CHECK(fault_of([&] { mel_of(processor, mel_clip(159)); }) == DataFault::audio_too_short);
  CHECK(fault_of([&] { mel_of(processor, {}); }) == DataFault::audio_too_short);
}

TEST_CASE("mel: filters have unit area and lie on the Slaney scale") {
  // Area norm: every triangle's integral over Hz is 1. Sampled at 1 Hz the narrowest (67 Hz at its base) is within 0.2
  // %.
  const MelFilters mel = make_mel_filters(80, 16000, 16000);
  REQUIRE(mel.filters.size() == 80);
  for (const MelFilters::Filter& filter : mel.filters) {
    double area = 0;
    for (const float w : filter.weights) area += static_cast<double>(w);
    CHECK(area == Approx(1.0).margin(2e-3));
  }
  // Mel 15 is 1000 Hz and the top, 8000 Hz, is 15 + 27 ln(8) / ln(6.4): the filters' feet follow from even steps.
  const double step = (15 + 27 * std::log(8.0) / std::log(6.4)) / 81;
  CHECK(mel.filters[0].first == 1);
  CHECK(mel.filters[10].first == static_cast<int>(10 * step * 200 / 3) + 1);
  CHECK(mel.filters[60].first == static_cast<int>(1000 * std::exp(std::log(6.4) / 27 * (60 * step - 15))) + 1);
}
