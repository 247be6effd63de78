#include "tests/engine/layout_table.h"

#include <algorithm>
#include <numeric>
#include <sstream>

namespace mmt::test {
namespace {

constexpr std::int64_t kVocabulary = 61;
constexpr std::int64_t kBlockRows = 48;

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);) {
    part.erase(0, part.find_first_not_of(' '));
    part.erase(part.find_last_not_of(' ') + 1);
    parts.push_back(part);
  }
  return parts;
}

/// Samples that fill a block each (24 to 39 rows of 48), longest first as the assignment wants them.
std::vector<MadeSample> alternating(int first) {
  std::vector<MadeSample> samples;
  for (int i = 0; i < 6; ++i) {
    const int kind = (first + i) % 3;
    samples.push_back({36 - 2 * i, kind == 0, 5 + i, kind == 1});
  }
  return samples;
}

void train_none(app::TrainableRule& rule) { rule.all = false; }
void freeze_towers(app::Config& c) {
  for (app::EncoderConfig& e : c.encoders) train_none(e.trainable);
}

/// With dropout, beside linear layers of every module; nothing else trains.
void add_adapters(app::Config& c) {
  for (app::EncoderConfig& e : c.encoders) {
    const bool merges = e.spec.merge > 1;
    e.lora = app::LoraConfig{.on = {merges ? "attn.v" : "v_proj", "fc1"}, .rank = 4, .alpha = 8, .dropout = 0.2};
    e.projector_lora = app::LoraConfig{.on = {merges ? "mlp.2" : "linear_2"}, .rank = 4, .alpha = 4, .dropout = 0.1};
    e.trainable.adapters_only = e.projector_trainable.adapters_only = true;
  }
  c.llm.lora = app::LoraConfig{.on = {"_proj"}, .rank = 4, .alpha = 8, .dropout = 0.1};
  c.llm.trainable.adapters_only = true;
}

}  // namespace

TableModel table_model(const std::string& name) {
  TableModel m;
  m.config = made_config({64, 48, 4, 4, 2}, kVocabulary);
  m.config.train.tokens_per_microbatch = kBlockRows;
  MediumShape picture, sound;
  const bool tiles = name == "tiles", sizes = name == "sizes" || tiles, pooled = name == "pooled";
  if (tiles)
    picture = add_eyes_of_tiles(m.config, {64, 48, 4, 4, 4}, 28, {{1, 2, 0, 1}, {1, 1, 0, 0}, {2, 1, 1, 0}});
  else if (sizes)
    picture = add_eyes_of_any_size(m.config, {64, 48, 4, 4, 4}, {{1, 2, 3}, {1, 1, 2}, {2, 2, 1}});
  else if (name != "audio" && !pooled)
    picture = add_eyes(m.config, {64, 48, 4, 4, 4}, 28);
  if (pooled)
    sound = add_ears_that_pool(m.config, {64, 48, 2, 4, 4}, 8, 15);
  else if (name != "vision" && !sizes)
    sound = add_ears(m.config, {64, 48, 2, 4, 4}, 8, 11);
  std::vector<MadeSample> samples;
  if (name == "text") {
    samples = {{20, false, 7}, {9, false, 4}, {30, false, 12}, {17, false, 9}, {12, false, 3}, {25, false, 11}};
  } else if (name.starts_with("alternating")) {
    samples = alternating(name.back() - '0');
  } else {
    const bool eyes = name != "audio" && !pooled, ears = name != "vision" && !sizes;
    samples = {{20, eyes, 7, false},         {9, false, 4, ears && eyes}, {30, eyes, 12, ears},
               {17, false, 9, ears && eyes}, {12, eyes, 3, ears},         {25, false, 11, false}};
  }
  m.batch = make_batch(samples, kVocabulary, picture, sound);
  for (const app::EncoderConfig& e : m.config.encoders) {
    const bool eyes = e.spec.modality == "image";
    m.options.sizes.push_back({.rows = sizes ? 24 : 10,
                               .supervised = 0,
                               .source = sizes  ? 24
                                         : eyes ? 8
                                                : 22,
                               .out = 8,
                               .tiles = 0});
    m.options.caps.encoders.push_back(
        {.rows = sizes ? 256 : 64, .supervised = 0, .source = sizes ? 256 : 128, .out = 64, .tiles = 0});
    m.options.caps.encoder_items.push_back(16);
  }
  m.options.sizes.push_back({.rows = 40, .supervised = 15, .source = 0, .out = 40, .tiles = 0});
  m.options.caps.llm = {.rows = kBlockRows, .supervised = kBlockRows, .source = 0, .out = kBlockRows, .tiles = 0};
  m.options.caps.blocks = 8;
  return m;
}

const std::vector<Pattern>& patterns() {
  static const std::vector<Pattern> list = {
      {"all", [](app::Config&) {}},
      {"frozen encoders", freeze_towers},
      {"projectors only",
       [](app::Config& c) {
         freeze_towers(c);
         train_none(c.llm.trainable);
       }},
      {"frozen llm", [](app::Config& c) { train_none(c.llm.trainable); }},
      {"upper llm",
       [](app::Config& c) {
         freeze_towers(c);
         for (app::EncoderConfig& e : c.encoders) train_none(e.projector_trainable);
         c.llm.trainable.frozen = {"embed_tokens", "layers.0.", "layers.1."};
       }},
      {"adapters", add_adapters},
  };
  return list;
}

const Pattern& pattern(const std::string& name) { return *std::ranges::find(patterns(), name, &Pattern::name); }

int Grid::ranks() const {
  std::size_t n = 0;
  for (const app::MeshConfig& m : meshes) n += m.ranks.size();
  return static_cast<int>(n);
}

void place(app::Config& c, const Grid& grid) {
  c.parallel.meshes = grid.meshes;
  c.parallel.mesh_of.assign(c.encoders.size() + 1, 0);
  if (grid.meshes.size() > 1) std::iota(c.parallel.mesh_of.begin(), c.parallel.mesh_of.end(), 0);
  c.parallel.policy = grid.policy;
  c.parallel.chunks = grid.chunks;
  c.parallel.memory_h2 = grid.memory_h2;
  c.parallel.zero.assign(c.parallel.mesh_of.size(), grid.zero);
  for (app::EncoderConfig& e : c.encoders) e.projector_place = grid.projectors;
  c.parallel.replicate_tp.assign(c.parallel.mesh_of.size(), grid.encoders_alike);
  c.parallel.replicate_tp.back() = false;
}

Outcome train(TableModel& model, const Grid& grid) {
  place(model.config, grid);
  return run_layout(model.config, model.batch, grid.ranks(), model.options);
}

app::MeshConfig mesh(int tp, int dp, int pp, int first_rank, const std::string& stages) {
  app::MeshConfig m;
  m.tp = tp;
  m.dp = dp;
  m.pp = pp;
  m.ranks.resize(static_cast<std::size_t>(tp * dp * pp));
  std::iota(m.ranks.begin(), m.ranks.end(), first_rank);
  for (const std::string& stage : split(stages, '|')) {
    auto& parts = m.stages.emplace_back();
    for (const std::string& part : split(stage, ',')) {
      const std::size_t space = part.find(' ');
      parts.push_back({part.substr(0, space), part.substr(space + 1)});
    }
  }
  return m;
}

app::MeshConfig shared(app::MeshConfig m) {
  m.sequence_parallel = true;
  return m;
}

Grid one_rank() { return {"one rank", {mesh(1, 1, 1)}}; }

std::vector<Grid> vision_grids() {
  const std::string two = "eyes embed-projector, llm embed-0 | llm 1-head";
  const std::string two_early = "eyes 0-1 | eyes 2-3, llm 0-3";
  const std::string three = "eyes 0-3 | llm embed-1 | llm 2-head";
  const std::string four = "eyes 0-1 | eyes 2-3, llm embed | llm 0-2 | llm 3";
  std::vector<Grid> list = {
      {"dp 2", {mesh(1, 2, 1)}},
      {"dp 2 zero 1", {mesh(1, 2, 1)}, "1f1b", 1, true},
  };
  for (const char* policy : {"gpipe", "1f1b", "zero-bubble", "list"}) {
    list.push_back({fmt::format("pp 2 {}", policy), {mesh(1, 1, 2, 0, two)}, policy});
    list.push_back({fmt::format("pp 2 inside the encoder {}", policy), {mesh(1, 1, 2, 0, two_early)}, policy});
    list.push_back({fmt::format("pp 3 {}", policy), {mesh(1, 1, 3, 0, three)}, policy});
    list.push_back({fmt::format("pp 4 {}", policy), {mesh(1, 1, 4, 0, four)}, policy});
  }
  const std::vector<Grid> more = {
      {"zero-bubble h2", {mesh(1, 1, 4, 0, four)}, "zero-bubble", 1, false, true},
      {"interleaved", {mesh(1, 1, 2, 0, "eyes 0-1 | eyes 2-3 | llm 0-1 | llm 2-3")}, "interleaved", 2},
      {"dp 2 pp 2", {mesh(1, 2, 2, 0, two)}},
      {"dp 2 pp 2 zero 1", {mesh(1, 2, 2, 0, two)}, "1f1b", 1, true},
      {"dp 2 pp 4", {mesh(1, 2, 4, 0, four)}},
      {"pp 3 auto", {mesh(1, 1, 3)}},
      {"interleaved auto", {mesh(1, 1, 2)}, "interleaved", 2},
      {"own ranks auto", {mesh(1, 1, 2), mesh(1, 1, 2, 2)}},
      {"own ranks", {mesh(1, 1, 1), mesh(1, 1, 1, 1)}},
      {"own ranks llm pp 2", {mesh(1, 1, 1), mesh(1, 1, 2, 1, "llm 0-1 | llm 2-3")}},
      {"own ranks both pp 2 dp 2", {mesh(1, 2, 2, 0, "eyes 0-1 | eyes 2-3"), mesh(1, 2, 2, 4, "llm 0-1 | llm 2-3")}},
      {"tp 2", {mesh(2, 1, 1)}},
      {"tp 4", {mesh(4, 1, 1)}},
      {"tp 2 pp 2", {mesh(2, 1, 2, 0, two)}},
      {"tp 2 dp 2", {mesh(2, 2, 1)}},
      {"tp 2 dp 2 pp 2 zero 1", {mesh(2, 2, 2, 0, two)}, "zero-bubble", 1, true},
      {"own ranks tp 1 and 2", {mesh(1, 1, 1), mesh(2, 1, 1, 1)}},
      {"own ranks tp 2 and 1", {mesh(2, 1, 1), mesh(1, 1, 1, 2)}},
      {"pp 3 between exit and projector",
       {mesh(1, 1, 3, 0, "eyes 0-exit | eyes projector, llm 0-1 | llm 2-3")},
       "zero-bubble"},
      {"own ranks tp 2 and 1, projector with the LLM",
       {mesh(2, 1, 1), mesh(1, 1, 2, 2, "llm 0-1 | llm 2-3")},
       "1f1b",
       1,
       false,
       false,
       app::ProjectorPlace::llm},
      {"own ranks dp 2 tp 2 zero 1, projector with the LLM",
       {mesh(1, 2, 1), mesh(2, 2, 1, 2)},
       "gpipe",
       1,
       true,
       false,
       app::ProjectorPlace::llm},
      {"tp 2 shared rows", {shared(mesh(2, 1, 1))}},
      {"tp 4 shared rows", {shared(mesh(4, 1, 1))}},
      {"tp 2 pp 2 shared rows", {shared(mesh(2, 1, 2, 0, two))}},
      {"tp 2 pp 2 shared rows inside the encoder", {shared(mesh(2, 1, 2, 0, two_early))}, "zero-bubble"},
      {"tp 2 dp 2 pp 2 zero 1 shared rows", {shared(mesh(2, 2, 2, 0, two))}, "zero-bubble", 1, true},
      {"own ranks tp 4 shared rows and 2", {shared(mesh(4, 1, 1)), mesh(2, 1, 1, 4)}},
      {"tp 4 shared rows, encoder alike",
       {shared(mesh(4, 1, 1))},
       "1f1b",
       1,
       false,
       false,
       app::ProjectorPlace::automatic,
       true},
  };
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

std::vector<Grid> audio_grids() {
  const std::string two = "ears 0 | ears 1-projector, llm 0-3";
  const std::string three = "ears 0-1 | llm 0-1 | llm 2-3";
  return {
      {"dp 2", {mesh(1, 2, 1)}},
      {"pp 2 zero-bubble", {mesh(1, 1, 2, 0, two)}, "zero-bubble"},
      {"pp 3 1f1b", {mesh(1, 1, 3, 0, three)}},
      {"pp 2 before the exit", {mesh(1, 1, 2, 0, "ears 0-1 | ears exit-projector, llm 0-3")}},
      {"pp 3 between exit and projector", {mesh(1, 1, 3, 0, "ears 0-exit | ears projector, llm 0-1 | llm 2-3")}},
      {"dp 2 pp 3 gpipe zero 1", {mesh(1, 2, 3, 0, three)}, "gpipe", 1, true},
      {"tp 2 pp 2", {mesh(2, 1, 2, 0, two)}},
      {"tp 4 dp 2", {mesh(4, 2, 1)}},
      {"tp 2 pp 2 shared rows", {shared(mesh(2, 1, 2, 0, two))}},
      {"own ranks tp 1 and 2", {mesh(1, 1, 1), mesh(2, 1, 1, 1)}},
      {"interleaved", {mesh(1, 1, 2, 0, "ears 0 | ears 1 | llm 0-1 | llm 2-3")}, "interleaved", 2},
  };
}

std::vector<Grid> both_grids() {
  const std::string two = "eyes 0-3, ears 0 | ears 1, llm 0-3";
  const std::string three = "eyes 0-2 | eyes 3, ears 0-1, llm embed-0 | llm 1-3";
  const std::string four = "eyes 0-1 | eyes 2-3 | ears 0-1, llm 0 | llm 1-3";
  return {
      {"dp 2", {mesh(1, 2, 1)}},
      {"pp 2 gpipe", {mesh(1, 1, 2, 0, two)}, "gpipe"},
      {"pp 3 list", {mesh(1, 1, 3, 0, three)}, "list"},
      {"pp 4 1f1b", {mesh(1, 1, 4, 0, four)}},
      {"pp 4 zero-bubble", {mesh(1, 1, 4, 0, four)}, "zero-bubble"},
      {"pp 3 auto", {mesh(1, 1, 3)}},
      {"dp 2 pp 2 zero 1", {mesh(1, 2, 2, 0, two)}, "1f1b", 1, true},
      {"interleaved", {mesh(1, 1, 2, 0, "eyes 0-1 | eyes 2-3, ears 0 | ears 1, llm 0-1 | llm 2-3")}, "interleaved", 2},
      {"tp 2 pp 2", {mesh(2, 1, 2, 0, two)}},
      {"tp 2 dp 2 pp 2", {mesh(2, 2, 2, 0, two)}, "zero-bubble"},
      {"tp 2 pp 2 shared rows, encoders alike",
       {shared(mesh(2, 1, 2, 0, two))},
       "1f1b",
       1,
       false,
       false,
       app::ProjectorPlace::automatic,
       true},
      {"tp 2 shared rows interleaved",
       {shared(mesh(2, 1, 2, 0, "eyes 0-1 | eyes 2-3, ears 0 | ears 1, llm 0-1 | llm 2-3"))},
       "interleaved",
       2},
      {"own ranks", {mesh(1, 1, 1), mesh(1, 1, 1, 1), mesh(1, 1, 1, 2)}},
      // The two chains in parallel, of different depth.
      {"own ranks, eyes pp 3, llm pp 2",
       {mesh(1, 1, 3, 0, "eyes 0 | eyes 1-2 | eyes 3"), mesh(1, 1, 1, 3), mesh(1, 1, 2, 4, "llm 0-1 | llm 2-3")}},
      {"own ranks tp 2, 1, 2, list", {mesh(2, 1, 1), mesh(1, 1, 1, 2), mesh(2, 1, 1, 3)}, "list"},
      {"own ranks, projectors with the LLM",
       {mesh(1, 1, 1), mesh(1, 1, 1, 1), mesh(1, 1, 2, 2)},
       "list",
       1,
       false,
       false,
       app::ProjectorPlace::llm},
      // The eyes' rows pass the place of the ears.
      {"pp 3, projectors of both at the LLM's place",
       {mesh(1, 1, 3, 0, "eyes 0-exit | ears 0-exit | eyes projector, ears projector, llm 0-3")},
       "1f1b",
       1,
       false,
       false,
       app::ProjectorPlace::llm},
      {"pp 4 auto, projectors with the LLM", {mesh(1, 1, 4)}, "1f1b", 1, false, false, app::ProjectorPlace::llm},
      {"pp 4 auto, projectors with the encoders",
       {mesh(1, 1, 4)},
       "list",
       1,
       false,
       false,
       app::ProjectorPlace::encoder},
      {"own ranks dp 2, zero-bubble",
       {mesh(1, 2, 1), mesh(1, 2, 1, 2), mesh(1, 2, 2, 4, "llm 0-1 | llm 2-3")},
       "zero-bubble"},
  };
}

}  // namespace mmt::test
