// Sounds that are none, are damaged, or whose header asks for too much.
#include "core/data/media/audio.h"
#include "tests/data/media_files.h"

#include <limits>

using namespace mmt;
using namespace mmt::data;
using namespace mmt::data::test;

namespace {

std::optional<DataFault> audio_info_fault(const Bytes& bytes, std::string_view part = "",
                                          const AudioOptions& options = {}) {
  return fault_of([&] { read_audio_info(bytes, options, kWhere); }, part);
}
std::optional<DataFault> audio_decode_fault(const Bytes& bytes, std::string_view part = "",
                                            const AudioOptions& options = {}) {
  return fault_of([&] { decode_audio(bytes, options, kWhere); }, part);
}

}  // namespace

TEST_CASE("audio: what is no sound is named") {
  CHECK(audio_info_fault({}, "an empty file") == DataFault::not_audio);
  CHECK(audio_info_fault(as_bytes("<html><body>gone</body></html>"), "an HTML page") == DataFault::not_audio);
  CHECK(audio_info_fault(media("rgb.png"), "a PNG picture") == DataFault::not_audio);
  CHECK(audio_info_fault(as_bytes(std::string("FORM\0\0\0\x10"
                                              "AIFF",
                                              12)),
                         "AIFF") == DataFault::unsupported_media);
  CHECK(audio_info_fault(as_bytes("RIFF....WAVE"), "a WAV sound that cannot be read") == DataFault::corrupt_audio);
  CHECK(audio_info_fault(as_bytes("OggS............................")) == DataFault::corrupt_audio);
}

TEST_CASE("audio: sample rates outside the range are refused from the header") {
  const std::string samples(2000, '\0');
  CHECK(audio_info_fault(wav(1, 1, 1, 16, samples), "1 Hz") == DataFault::audio_rate);
  CHECK(audio_decode_fault(wav(1, 1, 3999, 16, samples), "3999 Hz") == DataFault::audio_rate);
  CHECK(audio_decode_fault(wav(1, 1, 2000000, 16, samples)) == DataFault::audio_rate);
  CHECK_FALSE(audio_decode_fault(wav(1, 1, 4000, 16, samples)));
}

TEST_CASE("audio: long sounds are refused, from the header where it can") {
  AudioOptions options;
  options.max_seconds = 0.1;
  CHECK(audio_info_fault(wav(1, 1, 8000, 16, std::string(2 * 801, '\0')), "max_seconds", options) ==
        DataFault::audio_too_long);
  CHECK_FALSE(audio_info_fault(wav(1, 1, 8000, 16, std::string(2 * 800, '\0')), "", options));
  options.max_seconds = 0.05;
  CHECK(audio_info_fault(media("mono16.flac"), "0.1 s", options) == DataFault::audio_too_long);
  CHECK(audio_info_fault(media("tone22.ogg"), "more than", options) == DataFault::audio_too_long);
  CHECK(audio_decode_fault(media("tone44.mp3"), "more than", options) == DataFault::audio_too_long);
}

TEST_CASE("audio: no samples at all") {
  CHECK(audio_info_fault(wav(1, 1, 8000, 16, ""), "no samples") == DataFault::audio_too_short);
  CHECK(audio_decode_fault(wav(1, 1, 8000, 16, ""), "no samples") == DataFault::audio_too_short);
}

TEST_CASE("audio: samples that are no numbers are refused with their place") {
  for (const float bad :
       {std::nanf(""), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), 1e30F}) {
    std::vector<float> samples(40000, 0.25F);
    samples[33333] = bad;
    CHECK(audio_decode_fault(float_wav(samples, 16000), "sample 33333") == DataFault::non_finite_audio);
    CHECK(audio_decode_fault(float_wav(samples, 8000, 2), "sample 16666") == DataFault::non_finite_audio);
  }
}

TEST_CASE("audio: a sound that was cut is an error") {
  CHECK(audio_decode_fault(wav(1, 1, 8000, 16, std::string(1000, '\1'), 2000), "promises 2000 bytes") ==
        DataFault::corrupt_audio);
  // Sizes that a writer to a pipe leaves.
  CHECK_FALSE(audio_decode_fault(wav(1, 1, 8000, 16, std::string(1000, '\1'), 0xffffffffU)));
  CHECK_FALSE(audio_decode_fault(wav(1, 1, 8000, 16, std::string(1000, '\1'), 0x7ffff000U)));
  Bytes flac = media("mono16.flac");
  flac.resize(flac.size() / 2);
  CHECK(audio_decode_fault(flac) == DataFault::corrupt_audio);
}

TEST_CASE("audio: a header that promises hours takes no memory for them") {
  // STREAMINFO of a FLAC: the number of samples are the low 36 bits from byte 21 on.
  Bytes flac = media("mono16.flac");
  for (const int at : {22, 23, 24}) flac[static_cast<std::size_t>(at)] = std::byte{0xff};
  CHECK(audio_info_fault(flac, "max_seconds") == DataFault::audio_too_long);
  AudioOptions patient;
  patient.max_seconds = 1e9;
  CHECK(audio_decode_fault(flac, "", patient) == DataFault::corrupt_audio);
}
