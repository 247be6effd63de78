// What stands between a media file and an encoder: how many rows a file takes (from its header), and the rows
// themselves. One value per encoder module of the config; the index calls `measure`, the loader calls `load`.
#pragma once

#include "core/data/media/preprocess.h"
#include "core/data/records/record.h"

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace mmt::data {

/// The sizes of one item, in the units of the encoder that takes it.
struct ItemShape {
  std::int32_t rows = 0;        ///< output rows of the encoder = LLM rows that the item takes
  std::int32_t inner_rows = 0;  ///< rows inside the encoder (patches and class token; frames after the stem)
  std::int32_t input_rows = 0;  ///< rows of the buffer that `load` fills (patches; mel frames)
  std::int32_t input_cols = 0;  ///< values a row (channels x patch x patch; mel bins)
  /// Pictures: frames, height, width in patches; in tiles: their rows and columns, and the lines (below 0: columns) of
  /// patches at either end that are padding. Sound: first sample of the chunk, valid frames, valid inner rows.
  std::array<std::int32_t, 3> grid{};
  bool operator==(const ItemShape&) const = default;
};

struct EncoderInput {
  std::string module;  ///< the config's name
  Modality modality = Modality::image;
  std::int32_t max_rows = 0;  ///< cap on inner_rows of one item (its block's cap); 0: none
  int merge = 1;              ///< pictures: merge x merge patches leave as one row
  bool tiles = false;         ///< pictures are cut into tiles
  std::uint64_t key = 0;      ///< hash of everything that changes the measures (part of the index key)
  /// The items that a medium becomes (one; several when a long clip is cut into chunks), each of at least one row.
  /// Reads headers, decodes only where the length needs it. `where` begins the message of a DataError. Thread-safe.
  using Measure = std::function<std::vector<ItemShape>(const MediaSource&, const std::string& where)>;
  Measure measure;
  /// Decodes item `part` of the file into `out`, (input_rows, input_cols) row-major. Throws DataError, also when the
  /// file no longer has that shape. Thread-safe.
  using Load = std::function<void(const MediaSource&, const std::string& where, const ItemShape&, int part,
                                  std::span<float> out)>;
  Load load;
  /// The same for videos, of a picture encoder that takes them, too (video_input.h); else empty.
  Measure measure_video{};
  Load load_video{};

  bool takes(Modality m) const { return m == modality || (m == Modality::video && measure_video); }
  /// By the file's modality, which the encoder takes.
  std::vector<ItemShape> shapes_of(const MediaFile& file, const std::string& where) const {
    return (file.modality == modality ? measure : measure_video)(file.source, where);
  }
  void load_item(const MediaFile& file, const std::string& where, const ItemShape& shape, int part,
                 std::span<float> out) const {
    (file.modality == modality ? load : load_video)(file.source, where, shape, part, out);
  }
};

/// Pictures through `processing` into patch rows. `class_token` and `select` say what the tower adds and passes on.
EncoderInput image_input(const std::string& module, const ImageOptions& options, const ImageProcessing& processing,
                         bool class_token, VisionSelect select, std::int32_t max_rows);
/// Sound through `processing` into log-mel rows: an item per window of the clip.
EncoderInput audio_input(const std::string& module, const AudioOptions& options, const AudioProcessing& processing,
                         std::int32_t max_rows);

}  // namespace mmt::data
