// From decoded pictures and clips to the numbers a tower takes. Both processors are values without shared state: a copy
// per loader thread. They keep tables and scratch memory between calls, so that one must not be used by two threads.
#pragma once

#include "core/data/media/audio.h"
#include "core/data/media/image.h"
#include "core/data/media/row_counts.h"
#include "core/data/media/tiles.h"

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace mmt::data {

enum class Resample : std::uint8_t { bilinear = 2, bicubic = 3 };  ///< the numbers of `resample` in preprocessor files

/// Which direction is resized first; results differ by rounding between the passes.
enum class PassOrder : std::uint8_t {
  pillow_13,  ///< height first when it loses more than twice as many pixels as the width, as Pillow does from 13.0 on
  pillow_12,  ///< always width first: Pillow before 13.0 (12.3 did not for pictures over 100 times as tall as wide)
};

enum class ImageFit : std::uint8_t {
  crop,     ///< shortest edge to `resize`, ratio kept, then the middle `height` x `width` (CLIP)
  stretch,  ///< to `height` x `width`, ratio not kept (SigLIP)
  dynamic,  ///< every picture to a size of its own near its own, by `pixels` (Qwen2-VL)
  tiles,    ///< once as `stretch`, and once with its ratio into the best of `pinpoints`, black around it, cut into
            ///< tiles of `height` x `width` (LLaVA-NeXT's AnyRes)
};

struct ImageProcessing {
  ImageFit fit = ImageFit::crop;
  int height = 224;
  int width = 224;
  int resize = 0;  ///< `crop` only: length of the shortest edge before the crop; 0: min(height, width)
  Resample resample = Resample::bicubic;
  PassOrder order = PassOrder::pillow_13;
  /// First onto a square canvas of the colour int(255 * mean), in the middle (LLaVA's `pad`).
  bool pad_to_square = false;
  std::array<double, 3> mean{0.48145466, 0.4578275, 0.40821073};
  std::array<double, 3> std{0.26862954, 0.26130258, 0.27577711};
  int patch = 14;
  int merge = 1;     ///< patches come in squares of merge x merge, the patches of a square one after the other
  int frames = 1;    ///< that a patch spans; a still picture repeats itself
  PixelRule pixels;  ///< `dynamic`; its factor is a multiple of patch * merge
  std::vector<PictureSize> pinpoints;            ///< `tiles`; multiples of height and width, which are equal
  std::int64_t max_canvas_pixels = 100'000'000;  ///< of the square canvas; larger ones are refused (image_too_large)

  /// Of a picture of this size after the resize.
  PictureSize size_of(int from_width, int from_height, std::string_view where) const {
    if (fit == ImageFit::dynamic) return dynamic_size(pixels, from_width, from_height, where);
    return {width, height};
  }
  PatchGrid grid() const { return grid({width, height}); }  ///< where all pictures become one size; of a tile
  PatchGrid grid(PictureSize size) const { return patch_grid(size.width, size.height, patch); }
  /// Of a picture of this size under `tiles`.
  Tiling tiling(int from_width, int from_height) const {
    return tiling_of(pinpoints, width, grid().rows, from_width, from_height);
  }
  std::int64_t cols() const { return std::int64_t{3} * frames * patch * patch; }
};

/// resize (8 bit, as Pillow, bit for bit) -> crop -> x / 255 -> (x - mean) / std -> patches.
class ImageProcessor {
 public:
  /// Throws std::logic_error when sizes are not positive or no whole patch fits.
  explicit ImageProcessor(const ImageProcessing& options);
  ~ImageProcessor();
  ImageProcessor(const ImageProcessor& other);
  ImageProcessor& operator=(const ImageProcessor& other);
  ImageProcessor(ImageProcessor&&) noexcept;
  ImageProcessor& operator=(ImageProcessor&&) noexcept;

  const ImageProcessing& options() const { return options_; }

  /// The picture's patches into `out`, which has grid(size).count() * cols() elements: one row a patch, row by row from
  /// the top left, squares of merge x merge patches likewise and the patches of a square likewise. Columns in the order
  /// (channel, frame, y, x): a convolution weight [n, 3, frames, patch, patch] seen as [n, cols] is the matrix to
  /// multiply with. Every element is overwritten. Under `tiles`, those of the small picture and of each tile one after
  /// the other: tiling().count() * grid().count() rows.
  void patches(const Image& image, std::span<float> out, std::string_view where);

  /// The 8-bit picture of its resized size before normalisation; under `tiles`, the small one.
  Image pixels(const Image& image, std::string_view where);

  /// The same in parts, for patches that span several pictures (frames of a video): a picture in this size, and its
  /// patches as frame `frame` of `out`; columns of other frames stay as they are.
  Image resized(const Image& image, PictureSize size, std::string_view where);
  void frame_patches(const Image& picture, int frame, std::span<float> out);

 private:
  struct State;
  /// Of a part of a picture; returns the end of what was written.
  float* write_patches(const Image& picture, int left, int top, PatchGrid grid, float* to) const;
  /// In the middle of its best pinpoint, black around it.
  Image on_canvas(const Image& image);
  ImageProcessing options_;
  std::unique_ptr<State> state_;
};

struct AudioProcessing {
  AudioRowRule rows;  ///< window, over-long policy, frames of a window, hop
  int rate = 16000;
  int num_mel_bins = 80;
  int fft = 400;
};

/// Whisper's log-mel spectrogram (Radford et al. 2022, as in its reference code): Hann window of `fft` samples, hop
/// 160, centred with reflected ends, power, Slaney mel filters with area norm from 0 to rate / 2, log10 of at least
/// 1e-10, at least the maximum of the window minus 8, then (x + 4) / 4.
class AudioProcessor {
 public:
  explicit AudioProcessor(const AudioProcessing& options);
  ~AudioProcessor();
  AudioProcessor(const AudioProcessor& other);
  AudioProcessor& operator=(const AudioProcessor& other);
  AudioProcessor(AudioProcessor&&) noexcept;
  AudioProcessor& operator=(AudioProcessor&&) noexcept;

  const AudioProcessing& options() const { return options_; }

  /// The clip's chunks one after the other into `out`, which has audio_frames(rows, clip.size()) * num_mel_bins
  /// elements: a row a frame. Every element is overwritten. Throws DataError: audio_too_short, audio_too_long.
  void log_mel(std::span<const float> clip, std::span<float> out, std::string_view where);

 private:
  struct State;
  AudioProcessing options_;
  std::unique_ptr<State> state_;
};

}  // namespace mmt::data
