// The rows of the equivalence table: models with their batches, frozen patterns, and grids that run them.
#pragma once

#include "tests/engine/layout_run.h"

#include <functional>
#include <string>
#include <vector>

namespace mmt::test {

/// A small model and a batch of 6 samples for it.
struct TableModel {
  app::Config config;
  MadeBatch batch;
  RunOptions options;
};
/// `vision`: eyes (4 layers) and llm (4). `sizes`: likewise, Qwen2-VL's tower on pictures of three sizes and an LLM
/// with three positions a row. `tiles`: CLIP on pictures in tiles. `audio`: ears (2) and llm. `both`: eyes, ears and
/// llm, some samples with both media. `text`: the same model, no sample has media. `alternating N`: the same model, a
/// sample fills its block, and blocks have a picture, a clip, nothing, a picture..., beginning with the Nth (0 to 2) of
/// these.
TableModel table_model(const std::string& name);

/// What trains.
struct Pattern {
  std::string name;
  std::function<void(app::Config&)> apply;
};
const std::vector<Pattern>& patterns();
const Pattern& pattern(const std::string& name);

/// A layout with its schedule.
struct Grid {
  std::string name;
  std::vector<app::MeshConfig> meshes;  ///< one: of all modules; else by module
  std::string policy = "1f1b";
  int chunks = 1;
  bool zero = false;
  bool memory_h2 = false;
  app::ProjectorPlace projectors = app::ProjectorPlace::automatic;
  bool encoders_alike = false;  ///< on all tp ranks
  int ranks() const;
};
void place(app::Config& config, const Grid& grid);

/// A run of the model in a layout.
Outcome train(TableModel& model, const Grid& grid);

/// `stages`: "eyes embed-projector, llm embed-0 | llm 1-head"; empty: cut by work.
app::MeshConfig mesh(int tp, int dp, int pp, int first_rank = 0, const std::string& stages = {});

/// Rows shared between layers.
app::MeshConfig shared(app::MeshConfig m);

/// Everything on one rank.
Grid one_rank();
std::vector<Grid> vision_grids();
std::vector<Grid> audio_grids();
std::vector<Grid> both_grids();

}  // namespace mmt::test
