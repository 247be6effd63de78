#include "core/data/media/encoder_input.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "core/data/media/picture_header.h"
#include "core/data/media/processor_pool.h"
#include "core/error.h"

namespace mmt::data {
namespace {

constexpr std::int64_t kMaxSoundBytes = std::int64_t{2} << 30;

std::uint64_t hash_of(const std::string& text) { return XXH3_64bits(text.data(), text.size()); }

std::int32_t narrow(std::int64_t n) {
  MMT_CHECK(n >= 0 && n <= std::numeric_limits<std::int32_t>::max(), "{} rows", n);
  return static_cast<std::int32_t>(n);
}

std::vector<ItemShape> audio_shapes(const AudioProcessing& processing, std::int64_t samples, const std::string& where) {
  check_audio_length(processing.rows, samples, processing.rate, where);
  std::vector<ItemShape> shapes;
  for (const AudioChunk& chunk : audio_chunks(processing.rows, samples)) {
    shapes.push_back({narrow(chunk.rows),
                      narrow(chunk.encoder_rows),
                      narrow(chunk.frames),
                      processing.num_mel_bins,
                      {narrow(chunk.first_sample), narrow(chunk.valid_frames), narrow(chunk.encoder_rows)}});
  }
  if (shapes.empty()) throw DataError(DataFault::audio_too_short, where, "the clip gives no rows");
  return shapes;
}

ItemShape picture_shape(const ImageProcessing& processing, bool class_token, VisionSelect select, int width, int height,
                        const std::string& where) {
  if (processing.fit == ImageFit::tiles) {
    const Tiling t = processing.tiling(width, height);
    const PatchGrid tile = processing.grid();
    return {narrow(tiled_rows(t, tile.rows)),
            narrow(t.count() * vision_encoder_rows(tile, class_token)),
            narrow(t.count() * tile.count()),
            narrow(processing.cols()),
            {t.rows, t.cols, t.trim_cols > 0 ? -t.trim_cols : t.trim_rows}};
  }
  const PatchGrid grid = processing.grid(processing.size_of(width, height, where));
  const std::int64_t square = std::int64_t{processing.merge} * processing.merge;
  return {narrow(vision_output_rows(grid, class_token, select) / square),
          narrow(vision_encoder_rows(grid, class_token)),
          narrow(grid.count()),
          narrow(processing.cols()),
          {1, narrow(grid.rows), narrow(grid.cols)}};
}

}  // namespace

EncoderInput image_input(const std::string& module, const ImageOptions& options, const ImageProcessing& processing,
                         bool class_token, VisionSelect select, std::int32_t max_rows) {
  MMT_CHECK(processing.merge == 1 || !class_token, "{}: a class row among merged patches", module);
  EncoderInput input;
  input.module = module;
  input.modality = Modality::image;
  input.max_rows = max_rows;
  MMT_CHECK(processing.fit != ImageFit::tiles || !class_token || select == VisionSelect::patches,
            "{}: class rows of tiles that leave", module);
  input.merge = processing.merge;
  input.tiles = processing.fit == ImageFit::tiles;
  std::string all =
      fmt::format("image {} {} {} {} {} {} {} {} {} {} {} {}", options.apply_exif, options.max_decode_pixels,
                  static_cast<int>(processing.fit), processing.height, processing.width, processing.resize,
                  processing.pad_to_square, processing.max_canvas_pixels, processing.patch, class_token,
                  static_cast<int>(select), max_rows);
  if (processing.fit == ImageFit::dynamic || processing.merge > 1 || processing.frames > 1) {
    const PixelRule& rule = processing.pixels;
    all += fmt::format(" {} {} {} {} {}", processing.merge, processing.frames, rule.factor, rule.min_pixels,
                       rule.max_pixels);
  }
  if (input.tiles) {
    for (const PictureSize& size : processing.pinpoints) all += fmt::format(" {}x{}", size.height, size.width);
  }
  input.key = hash_of(all);
  const auto shape_of = [processing, class_token, select](int width, int height, const std::string& where) {
    return picture_shape(processing, class_token, select, width, height, where);
  };
  input.measure = [options, processing, shape_of](const MediaSource& source, const std::string& where) {
    const std::string place = source.place(where);
    const ImageInfo info = read_picture_header(source, options, place);
    const std::int64_t side = std::max(info.width, info.height);
    if (processing.pad_to_square && side * side > processing.max_canvas_pixels) {
      throw DataError(DataFault::image_too_large, place,
                      fmt::format("a square canvas for {} x {} has more than {} pixels", info.width, info.height,
                                  processing.max_canvas_pixels));
    }
    return std::vector<ItemShape>{shape_of(info.width, info.height, place)};
  };
  auto pool = std::make_shared<ProcessorPool<ImageProcessor, ImageProcessing>>(processing);
  input.load = [options, shape_of, pool](const MediaSource& source, const std::string& where, const ItemShape& planned,
                                         int part, std::span<float> out) {
    MMT_CHECK(part == 0, "part {} of a picture", part);
    const std::string place = source.place(where);
    const Image image = decode_image(source.read(place, kMaxPictureBytes, DataFault::image_too_large), options, place);
    if (shape_of(image.width, image.height, place) != planned) {
      throw DataError(DataFault::corrupt_image, place,
                      "the picture has another size than the index says; has it changed?");
    }
    pool->use([&](ImageProcessor& p) { p.patches(image, out, place); });
  };
  return input;
}

EncoderInput audio_input(const std::string& module, const AudioOptions& options, const AudioProcessing& processing,
                         std::int32_t max_rows) {
  EncoderInput input;
  input.module = module;
  input.modality = Modality::audio;
  input.max_rows = max_rows;
  const AudioRowRule& rule = processing.rows;
  std::string all =
      fmt::format("audio {} {} {} {} {} {} {} {} {} {} {} {} {}", options.rate, options.min_rate, options.max_rate,
                  options.max_seconds, static_cast<int>(rule.window), static_cast<int>(rule.over_long), rule.max_frames,
                  rule.hop, rule.pool, processing.rate, processing.num_mel_bins, processing.fft, max_rows);
  if (rule.window == AudioWindow::mask) all += " needed frames";  // once it was all of the window
  input.key = hash_of(all);
  input.measure = [options, processing](const MediaSource& source, const std::string& where) {
    const std::string place = source.place(where);
    const AudioInfo info =
        read_audio_info(source.read(place, kMaxSoundBytes, DataFault::audio_too_long), options, place);
    return audio_shapes(processing, info.samples, place);
  };
  auto pool = std::make_shared<ProcessorPool<AudioProcessor, AudioProcessing>>(processing);
  input.load = [options, processing, pool](const MediaSource& source, const std::string& where,
                                           const ItemShape& planned, int part, std::span<float> out) {
    const std::string place = source.place(where);
    const Audio audio = decode_audio(source.read(place, kMaxSoundBytes, DataFault::audio_too_long), options, place);
    const auto samples = static_cast<std::int64_t>(audio.samples.size());
    const auto chunks = audio_chunks(processing.rows, samples);
    const auto shapes = audio_shapes(processing, samples, place);
    const auto p = static_cast<std::size_t>(part);
    if (part < 0 || p >= shapes.size() || shapes[p] != planned) {
      throw DataError(DataFault::corrupt_audio, place,
                      "the clip has another length than the index says; has it changed?");
    }
    const std::span<const float> clip =
        std::span(audio.samples)
            .subspan(static_cast<std::size_t>(chunks[p].first_sample), static_cast<std::size_t>(chunks[p].samples));
    pool->use([&](AudioProcessor& processor) { processor.log_mel(clip, out, place); });
  };
  return input;
}

}  // namespace mmt::data
