// Sound: WAV, FLAC, OGG and MP3 from memory to mono float at one rate. Every input is treated as hostile: rate,
// channels and length are checked before anything is allocated for the samples.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace mmt::data {

struct AudioOptions {
  int rate = 16000;       ///< of the result, Hz
  int min_rate = 4000;    ///< files below are refused: no speech is left in them
  int max_rate = 768000;  ///< files above are refused
  double max_seconds =
      1800;  ///< longer files are refused: from the header, or while decoding where that is the only way
};

/// Mono samples in about [-1, 1].
struct Audio {
  int rate = 0;
  std::vector<float> samples;
};

struct AudioInfo {
  int rate = 0;              ///< of the file, Hz
  int channels = 0;          ///< of the file
  std::int64_t frames = 0;   ///< of the file (samples of one channel)
  std::int64_t samples = 0;  ///< after resampling: resampled_length(frames, rate, options.rate)
};

/// ceil(frames * to / from): the length every part of the program counts with.
std::int64_t resampled_length(std::int64_t frames, int from, int to);

/// Rate and length. WAV and FLAC: from the header. OGG and MP3: by decoding, since their headers can only guess.
/// Throws DataError: not_audio (saying what the bytes look like), unsupported_media, corrupt_audio, audio_rate,
/// audio_too_long, audio_too_short (no samples at all).
AudioInfo read_audio_info(std::span<const std::byte> bytes, const AudioOptions& options, std::string_view where);

/// Decodes, averages the channels and resamples (soxr, high quality) to exactly resampled_length(...) samples: what the
/// resampler gives too much is cut, what it lacks is zero. Same errors, and non_finite_audio for NaN or infinity.
Audio decode_audio(std::span<const std::byte> bytes, const AudioOptions& options, std::string_view where);

}  // namespace mmt::data
