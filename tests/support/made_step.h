// Batches that nothing was read for: whole training steps of an image model or a text model without files.
#pragma once

#include "apps/mmtrain/step.h"

#include <cstdint>
#include <vector>

namespace mmt::test {

struct MadeSample {
  std::int64_t text = 0;  ///< rows
  bool picture = false;   ///< before the text
  std::int64_t supervised = 0;
};

struct PictureShape {
  std::int64_t rows = 0;  ///< that leave the tower; inside it there is one more, the class token
  std::int64_t cols = 0;  ///< values of a patch
};

/// Samples of set 0 with their metadata and content, the same in every run: pixels of a normal distribution, ids and
/// labels below `vocabulary`. The last `supervised` labels of a sample count.
struct MadeBatch {
  std::vector<app::PlannedSample> samples;
  std::vector<plan::SampleMeta> metas;
  std::vector<data::LoadedSample> loaded;
  std::int64_t rows = 0;  ///< of the LLM
};
MadeBatch make_batch(const std::vector<MadeSample>& samples, PictureShape picture, std::int64_t vocabulary);

/// A model of pictures (CLIP, `image_size` pixels of patch 14, with a projector) and text (Llama) without files.
struct TowerSizes {
  std::int64_t hidden = 0, intermediate = 0;
  int layers = 0, heads = 0, kv_heads = 0;
};
app::Config made_config(const TowerSizes& eyes, std::int64_t image_size, const TowerSizes& llm,
                        std::int64_t vocabulary);

/// Caps of the engine that this step just fits into.
app::RowCaps caps_of(const app::PlannedStep& step);

}  // namespace mmt::test
