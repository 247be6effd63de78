// How many rows a picture or a clip becomes: pure integer functions of parameters. The index, the planner, the loader
// and the models all count with these, so that the rows that are planned are the rows that are made.
//
// Divisions floor, as Python's `//` does: a clip of 0 frames has (0 - 1) // 2 + 1 = 0 rows, where C++ division gives 1.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace mmt::data {

/// floor(a / b) and ceil(a / b) for b > 0 and any a.
std::int64_t floor_div(std::int64_t a, std::int64_t b);
std::int64_t ceil_div(std::int64_t a, std::int64_t b);

// ---- pictures

struct PatchGrid {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t count() const { return rows * cols; }
};

/// Whole patches only: a convolution with stride = kernel = patch drops what is left at the right and the bottom.
PatchGrid patch_grid(int width, int height, int patch);

/// Which rows of a vision tower go on to the projector. `patches` is LLaVA's `default`, `full` keeps the class token.
enum class VisionSelect : std::uint8_t { patches, full };

/// Rows inside the tower: patches, and the class token in front where there is one.
std::int64_t vision_encoder_rows(PatchGrid grid, bool class_token);
/// Rows that leave the tower.
std::int64_t vision_output_rows(PatchGrid grid, bool class_token, VisionSelect select);

/// How large a picture of any size becomes for a tower that takes every size (Qwen2-VL's smart_resize).
struct PixelRule {
  int factor = 28;  ///< both sides become multiples of it: the side of the patches that leave as one row
  std::int64_t min_pixels = 56 * 56;
  std::int64_t max_pixels = 28 * 28 * 1280;
};
struct PictureSize {
  int width = 0;
  int height = 0;
  bool operator==(const PictureSize&) const = default;
};
/// Each side to its nearest multiple of the factor (halves to the even one), at least one; where that is above or below
/// the limits, both sides by one ratio to them and then down or up. Throws DataError(image_ratio) for a picture whose
/// sides have a ratio above 200.
PictureSize dynamic_size(const PixelRule& rule, int width, int height, std::string_view where);

// ---- sound

/// What the encoder sees of a clip.
///   full  always `max_frames` mel frames, zeros behind the clip; all rows count (Whisper)
///   mask  what `full` computes where padding may not be attended to: only the rows of the clip itself count
///         (Qwen2-Audio); rows behind them change nothing and are not made
///   none  the clip's own frames and nothing else (trained from scratch)
enum class AudioWindow : std::uint8_t { full, mask, none };
/// What happens to a clip longer than the window: several windows one after the other, only the first, or a DataError.
enum class OverLong : std::uint8_t { chunk, truncate, skip };

struct AudioRowRule {
  AudioWindow window = AudioWindow::full;
  OverLong over_long = OverLong::chunk;
  std::int64_t max_frames = 3000;  ///< of a window: 30 s at 100 frames a second
  int hop = 160;                   ///< samples a frame
  int pool = 1;                    ///< mean over so many rows after the encoder (Qwen2-Audio: 2)
  std::int64_t window_samples() const { return max_frames * hop; }
};

/// One run of the encoder.
struct AudioChunk {
  std::int64_t first_sample = 0;
  std::int64_t samples = 0;
  std::int64_t frames = 0;        ///< mel frames made and given to the encoder; mask: those that its rows depend on
  std::int64_t valid_frames = 0;  ///< those that come from the clip; full: all
  std::int64_t encoder_rows = 0;  ///< rows inside the encoder: after the convolution of stride 2 over `valid_frames`
  std::int64_t rows = 0;          ///< rows that leave the encoder: `encoder_rows` after pooling
};

/// Mel frames of a clip on its own. `mask`: ceil(samples / hop), of `none`: floor(samples / hop) (a centred transform
/// has one frame more, and the last is dropped).
std::int64_t mel_frames(AudioWindow window, std::int64_t samples, int hop);
/// Rows after the convolution with kernel 3, stride 2, padding 1: (frames - 1) // 2 + 1.
std::int64_t conv_rows(std::int64_t frames);
/// Rows after a mean over `pool` rows with stride `pool`: (rows - pool) // pool + 1.
std::int64_t pooled_rows(std::int64_t rows, int pool);

/// The runs a clip of `samples` becomes, without those that would give no rows (the rest of a clip that is cut into
/// chunks; a clip that is too short as a whole: then the list is empty). Empty as well for `skip` when it is too long.
std::vector<AudioChunk> audio_chunks(const AudioRowRule& rule, std::int64_t samples);
/// Sum of `rows` over the chunks, and of `frames`.
std::int64_t audio_rows(const AudioRowRule& rule, std::int64_t samples);
std::int64_t audio_frames(const AudioRowRule& rule, std::int64_t samples);
/// Throws DataError: audio_too_short when there are no rows, audio_too_long for `skip` over the window.
void check_audio_length(const AudioRowRule& rule, std::int64_t samples, int rate, std::string_view where);

}  // namespace mmt::data
