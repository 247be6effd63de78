// Tiny specs of every family and blocks for them.
#pragma once

#include "models/build.h"
#include "tests/models/harness.h"

#include <functional>
#include <string>

namespace mmt::test {

using models::EncoderSpec;
using models::LlmSpec;

using Trainable = std::function<bool(const std::string&)>;
inline bool all_train(const std::string&) { return true; }
inline bool none_train(const std::string&) { return false; }
inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline run::UnitPlanner::Setting setting(DType dtype, Trainable trainable = all_train) {
  run::UnitPlanner::Setting s;
  s.dtype = dtype;
  s.trainable = std::move(trainable);
  return s;
}

/// Families and the variants that the options allow: "llama" (grouped heads), "qwen2", "qwen3" (head_dim is not hidden
/// / heads), "mistral" (window in the upper layers), "gpt2", "mrope" (three positions a row).
inline LlmSpec tiny_llm(const std::string& family, int layers = 2) {
  LlmSpec s = models::llm_preset(family == "mrope" ? "qwen2" : family);
  s.vocabulary = 37;
  s.hidden = 32;
  s.layers = layers;
  s.heads = 2;
  s.intermediate = 40;
  s.head_dim = 16;
  if (family == "llama" || family == "mistral") s.kv_heads = 1;
  if (family == "qwen3") {
    s.heads = 4;
    s.kv_heads = 2;
  }
  if (family == "mistral") {
    s.sliding_window = 3;
    s.window_from_layer = 1;
  }
  if (family == "gpt2") s.max_positions = 40;
  if (family == "mrope") s.mrope_section = {2, 3, 3};
  models::resolve(s);
  return s;
}

/// Of a family, or "clip tiles": pictures in tiles of 3 x 3 patches.
inline EncoderSpec tiny_encoder(const std::string& variant, int layers = 2) {
  const std::string kind = variant == "clip tiles" ? "clip" : variant;
  EncoderSpec s = models::encoder_preset(kind);
  s.name = s.modality == "audio" ? "ears" : "eyes";
  s.hidden = 32;
  s.layers = layers;
  s.heads = 2;
  s.intermediate = 40;
  s.patch = 2;
  if (kind != "qwen2_vl") s.image_size = 6;
  if (variant == "clip tiles") s.pinpoints = {{6, 12}, {12, 6}, {6, 6}};
  s.mels = 5;
  s.max_positions = 12;
  s.projector.hidden = 24;
  models::resolve(s, 32);
  return s;
}

/// Three packed samples with media of two ports, one without labels.
inline BlockData llm_block_data(const LlmSpec& s, int num_ports = 0) {
  std::vector<std::vector<Piece>> samples;
  if (num_ports == 0) {
    samples = {{{.text = 4}, {.text = 3, .supervised = true}}, {{.text = 3}}, {{.text = 6, .supervised = true}}};
  } else {
    samples = {{{.text = 2}, {.media = 3, .port = 0}, {.text = 3, .supervised = true}},
               {{.text = 4}},
               {{.text = 1}, {.media = 2, .port = num_ports - 1}, {.text = 2}, {.text = 2, .supervised = true}}};
  }
  return BlockData::text(samples, static_cast<int>(s.vocabulary), num_ports, models::mask_windows(s), num_positions(s));
}

inline BlockData encoder_block_data(const EncoderSpec& s) {
  if (s.modality == "audio" && s.pool > 1) return BlockData::clips({15, 7, 8}, s.mels, s.pool);
  if (s.modality == "audio") return BlockData::clips({9, 4, 1}, s.mels);
  if (!s.pinpoints.empty())
    return BlockData::tiles({{1, 2, 1, 0}, {2, 1, 0, 0}, {1, 1, 0, 1}}, 3, 3 * s.patch * s.patch, s.class_token);
  if (s.kind == "qwen2_vl") return BlockData::grids({{1, 2, 1}, {2, 1, 2}}, s.merge, 3 * s.frames * s.patch * s.patch);
  return BlockData::pictures({9, 4}, 3 * s.patch * s.patch, s.class_token, s.select == "full");
}

/// The block with `rows` more rows, which belong to no sample or item. `windows` by mask.
inline BlockData with_tail(BlockData data, int rows, const std::vector<std::int32_t>& windows) {
  plan::RowsPlan& p = data.plan;
  p.size.rows += rows;
  p.positions.insert(p.positions.end(), static_cast<std::size_t>(rows * p.num_positions), 0);
  p.tiles.clear();
  for (std::size_t m = 0; m < p.masks.size(); ++m) {
    p.masks[m].push_padding(rows);
    p.tiles.push_back(make_tile_plan(query_side(p.masks[m]), key_side(p.masks[m]), windows[m]));
  }
  return data;
}

/// Values for the stage's ports and its output's gradient.
struct Edges {
  std::vector<Values> in;
  Values d_out;
};

inline Edges edges_of(const run::Stage& stage, const BlockData& data) {
  Edges e;
  std::size_t p = 0;
  for (const run::Stage::Port& at : stage.ports()) {
    const run::PortPlan& port =
        stage.units[static_cast<std::size_t>(at.unit)]->plan().inputs[static_cast<std::size_t>(at.port)];
    const std::int64_t rows = port.count == run::RowCount::port  ? data.port_rows[p]
                              : port.count == run::RowCount::out ? data.plan.size.out
                                                                 : data.plan.size.rows;
    e.in.push_back(random_values(rows * port.cols, 50 + static_cast<unsigned>(p)));
    ++p;
  }
  const run::PortPlan& out = stage.units.back()->plan().output;
  if (out.cols > 0)
    e.d_out =
        random_values((out.count == run::RowCount::out ? data.plan.size.out : data.plan.size.rows) * out.cols, 60);
  return e;
}

}  // namespace mmt::test
