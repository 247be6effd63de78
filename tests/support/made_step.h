// Batches that nothing was read for: whole training steps of models of pictures, sound and text without files.
#pragma once

#include "apps/mmtrain/step.h"

#include <array>
#include <cstdint>
#include <vector>

namespace mmt::test {

struct MadeSample {
  std::int64_t text = 0;  ///< rows
  bool picture = false;   ///< before the text
  std::int64_t supervised = 0;
  bool sound = false;  ///< behind the picture
};

/// One medium as an encoder sees it.
struct MediumShape {
  int encoder = 0;           ///< number among the encoders
  std::int64_t source = 0;   ///< rows of what the loader brings: patches, mel frames
  std::int64_t cols = 0;     ///< values of a row of it
  std::int64_t rows = 0;     ///< that leave the encoder
  std::int64_t leading = 0;  ///< rows inside it in front of them (a class token)
  std::int64_t rest = 0;     ///< and behind them, which do not fill one that leaves
  /// Pictures of several sizes, taking turns: frames, height and width of the rows that leave, each of `merged`
  /// patches.
  std::vector<std::array<std::int64_t, 3>> grids{};
  std::int64_t merged = 1;
  /// Pictures in tiles, taking turns: each tile of `leading` and `rows` rows, square.
  std::vector<plan::TileGrid> tilings{};
};

/// Samples of set 0 with their metadata and content, the same in every run: media of a normal distribution, ids and
/// labels below `vocabulary`. The last `supervised` labels of a sample count.
struct MadeBatch {
  std::vector<app::PlannedSample> samples;
  std::vector<plan::SampleMeta> metas;
  std::vector<data::LoadedSample> loaded;
  std::int64_t rows = 0;  ///< of the LLM
};
MadeBatch make_batch(const std::vector<MadeSample>& samples, std::int64_t vocabulary, const MediumShape& picture,
                     const MediumShape& sound = {});
struct TowerSizes {
  std::int64_t hidden = 0, intermediate = 0;
  int layers = 0, heads = 0, kv_heads = 0;
};
/// Text (module `llm`, Llama) without files.
app::Config made_config(const TowerSizes& llm, std::int64_t vocabulary);
/// Puts an encoder of pictures (`eyes`: CLIP, `image_size` pixels of patch 14) or of sound (`ears`: Whisper) in front
/// of it, with a projector, behind the encoders that it has: what its pictures or its clips of `frames` look like.
MediumShape add_eyes(app::Config& config, const TowerSizes& eyes, std::int64_t image_size);
/// `eyes`: Qwen2-VL's tower of patch 14, for pictures of these sizes, before an LLM with three positions a row.
MediumShape add_eyes_of_any_size(app::Config& config, const TowerSizes& eyes,
                                 std::vector<std::array<std::int64_t, 3>> grids);
/// `eyes`: CLIP on pictures in tiles of `image_size` pixels, and a projector with a newline.
MediumShape add_eyes_of_tiles(app::Config& config, const TowerSizes& eyes, std::int64_t image_size,
                              std::vector<plan::TileGrid> tilings);
MediumShape add_ears(app::Config& config, const TowerSizes& ears, int mels, std::int64_t frames);
/// `ears`: Qwen2-Audio's tower, for clips that end with the last but one of an odd number of `frames`.
MediumShape add_ears_that_pool(app::Config& config, const TowerSizes& ears, int mels, std::int64_t frames);

/// Caps of the engine that this step just fits into.
app::RowCaps caps_of(const app::PlannedStep& step);

}  // namespace mmt::test
