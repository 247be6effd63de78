// Decoded and resampled sound against soundfile and soxr's Python binding, and against the tone that went in.
#include "core/data/media/audio.h"
#include "tests/data/media_files.h"

#include <limits>

using namespace mmt;
using namespace mmt::data;
using namespace mmt::data::test;

namespace {

Audio decode(const Bytes& bytes) {
  const AudioInfo info = read_audio_info(bytes, {}, kWhere);
  Audio audio = decode_audio(bytes, {}, kWhere);
  CHECK(audio.rate == 16000);
  CHECK(static_cast<std::int64_t>(audio.samples.size()) == info.samples);
  return audio;
}

/// Least-squares fit of a tone of `hz`: its amplitude, and the RMS of what is left. Without the ends, where filters
/// ring.
struct ToneFit {
  double amplitude;
  double rest;
};
ToneFit fit_tone(const std::vector<float>& x, double hz) {
  const std::size_t skip = x.size() / 8;
  double ss = 0, cc = 0, sc = 0, xs = 0, xc = 0, xx = 0;
  std::size_t n = 0;
  for (std::size_t i = skip; i + skip < x.size(); ++i, ++n) {
    const double phase = 2 * std::numbers::pi * hz * static_cast<double>(i) / 16000;
    const double s = std::sin(phase), c = std::cos(phase), v = static_cast<double>(x[i]);
    ss += s * s, cc += c * c, sc += s * c, xs += v * s, xc += v * c, xx += v * v;
  }
  const double determinant = ss * cc - sc * sc;
  const double a = (xs * cc - xc * sc) / determinant;
  const double b = (xc * ss - xs * sc) / determinant;
  return {std::hypot(a, b), std::sqrt(std::max(0.0, xx - a * xs - b * xc) / static_cast<double>(n))};
}

std::vector<float> tone(int frames, int rate) {
  std::vector<float> x;
  for (int i = 0; i < frames; ++i)
    x.push_back(static_cast<float>(0.5 * std::sin(2 * std::numbers::pi * 440 * i / rate)));
  return x;
}

}  // namespace

TEST_CASE("audio: resampled length is the ceiling") {
  CHECK(resampled_length(8000, 8000, 16000) == 16000);
  CHECK(resampled_length(1, 44100, 16000) == 1);
  CHECK(resampled_length(441, 44100, 16000) == 160);
  CHECK(resampled_length(442, 44100, 16000) == 161);
  CHECK(resampled_length(0, 44100, 16000) == 0);
}

TEST_CASE("audio: resampling and the mean of channels equal soxr") {
  // The wheel's library and the system's differ in version; both compute in float32: 1e-5 of full scale.
  for (const std::string name : {"mono8", "stereo44"}) {
    INFO(name);
    const Audio audio = decode(media(name + ".wav"));
    const std::vector<float> expected = golden<float>(name + ".f32");
    REQUIRE(audio.samples.size() >= expected.size());
    REQUIRE(audio.samples.size() - expected.size() <= 1);
    const std::vector<float> common(audio.samples.begin(),
                                    audio.samples.begin() + static_cast<std::ptrdiff_t>(expected.size()));
    CHECK(max_difference(common, expected) < 1e-5);
  }
  CHECK(read_audio_info(media("stereo44.wav"), {}, kWhere).channels == 2);
}

TEST_CASE("audio: every container gives the tone that went in") {
  struct Case {
    const char* file;
    int rate;
    std::int64_t frames;
    double amplitude_error;
    double rest;
  };
  // Lossless: the quantisation of 16 bits. OGG and MP3 at their encoders' defaults: measured 3e-3, with room.
  for (const Case& c : {Case{"mono16.flac", 16000, 1600, 1e-3, 2e-3}, Case{"wide22.wav", 22050, 2205, 2e-3, 5e-3},
                        Case{"tone22.ogg", 22050, 6615, 2e-2, 2e-2}, Case{"tone44.mp3", 44100, 13230, 2e-2, 2e-2}}) {
    INFO(c.file);
    const AudioInfo info = read_audio_info(media(c.file), {}, kWhere);
    CHECK(info.rate == c.rate);
    CHECK(info.frames == c.frames);
    CHECK(info.samples == resampled_length(c.frames, c.rate, 16000));
    const ToneFit fit = fit_tone(decode(media(c.file)).samples, 440);
    CHECK(std::abs(fit.amplitude - 0.5) < c.amplitude_error);
    CHECK(fit.rest < c.rest);
  }
}

TEST_CASE("audio: any rate gives the right length and pitch") {
  for (const int rate : {4000, 8000, 11025, 12000, 16000, 22050, 32000, 44100, 48000, 96000}) {
    INFO(rate);
    const int frames = rate / 2 + 3;
    const Audio audio = decode(float_wav(tone(frames, rate), static_cast<std::uint32_t>(rate)));
    CHECK(static_cast<std::int64_t>(audio.samples.size()) == (std::int64_t{frames} * 16000 + rate - 1) / rate);
    const ToneFit fit = fit_tone(audio.samples, 440);
    CHECK(std::abs(fit.amplitude - 0.5) < 2e-3);
    CHECK(fit.rest < 5e-3);
  }
}

TEST_CASE("audio: a long sound has no seams") {
  const Audio audio = decode(float_wav(tone(200000, 44100), 44100));
  const ToneFit fit = fit_tone(audio.samples, 440);
  CHECK(std::abs(fit.amplitude - 0.5) < 1e-4);
  CHECK(fit.rest < 1e-4);
}

TEST_CASE("audio: the mean of channels is exact") {
  const Audio audio = decode(float_wav({0.5F, -0.25F, 1.0F, 0.0F, -1.0F, -0.5F}, 16000, 2));
  CHECK(audio.samples == std::vector<float>{0.125F, 0.5F, -0.75F});
}

TEST_CASE("audio: a kept resampler gives the bits of a new one") {
  const Bytes bytes = float_wav(tone(4000, 8000), 8000);
  const std::vector<float> first = decode(bytes).samples;
  for (const int rate : {11025, 12000, 22050, 32000, 44100, 48000}) {  // more rates than are kept
    decode(float_wav(tone(2000, rate), static_cast<std::uint32_t>(rate)));
    CHECK(decode(bytes).samples == first);
  }
}

TEST_CASE("audio: silence and the shortest clips are legal") {
  const Audio silence = decode(float_wav(std::vector<float>(800, 0.0F), 8000));
  CHECK(silence.samples == std::vector<float>(1600, 0.0F));
  CHECK(decode(float_wav({0.5F}, 8000)).samples.size() == 2);
  CHECK(decode(float_wav(tone(80, 8000), 8000)).samples.size() == 160);
}
