// A whole model on one rank: encoders with projectors, whose rows a decoder's embedding takes.
#pragma once

#include "tests/models/tiny.h"

namespace mmt::test {

struct Model {
  std::vector<run::Stage> encoders;
  run::Stage llm;
  NamedValues values;
};

inline Model make_model(const std::vector<EncoderSpec>& encoders, const LlmSpec& llm, DType dtype,
                        const Trainable& trainable = all_train) {
  Model m;
  std::vector<models::EmbeddingPort> ports;
  for (const EncoderSpec& s : encoders) {
    m.encoders.push_back(models::build_encoder(s, llm.hidden, setting(dtype, trainable)));
    ports.push_back({s.name, models::output_needs_grad(m.encoders.back())});
  }
  m.llm = models::build_llm(llm, ports, setting(dtype, trainable));
  for (const run::Stage& stage : m.encoders) add_random_values(m.values, stage);
  add_random_values(m.values, m.llm);
  return m;
}

inline Model eyes_and_ears(DType dtype, const Trainable& trainable = all_train) {
  EncoderSpec ears = tiny_encoder("whisper");
  ears.projector.kind = "linear";
  return make_model({tiny_encoder("clip"), ears}, tiny_llm("llama"), dtype, trainable);
}

struct ModelPass {
  double objective = 0.0;
  Values loss;
  std::vector<Values> features;  ///< by encoder
  NamedValues grads;
};

/// Blocks of the encoders hold the items in the order in which the decoder's rows name them.
inline ModelPass run_model(const Model& m, const std::vector<BlockData>& media, const BlockData& text,
                           const RunOptions& options) {
  ModelPass pass;
  std::vector<std::unique_ptr<Params>> params;
  std::vector<std::unique_ptr<StageRun>> runs;
  for (std::size_t k = 0; k < m.encoders.size(); ++k) {
    params.push_back(std::make_unique<Params>(m.encoders[k], m.values));
    params.back()->begin_step();
    runs.push_back(std::make_unique<StageRun>(m.encoders[k], *params.back(), media[k], options));
    runs.back()->forward();
    pass.features.push_back(runs.back()->out());
  }
  Params llm(m.llm, m.values);
  llm.begin_step();
  StageRun run(m.llm, llm, text, options);
  run.forward(pass.features);
  pass.loss = run.loss();
  pass.objective = run.objective();
  run.backward();
  pass.grads = llm.gradients();
  for (std::size_t k = 0; k < m.encoders.size(); ++k) {
    if (!models::output_needs_grad(m.encoders[k])) continue;
    runs[k]->backward(run.d_in(k));
    for (auto& [name, g] : params[k]->gradients()) pass.grads[name] = std::move(g);
  }
  return pass;
}

/// Four samples: picture and question, text, sound and picture, sound. 4 patches a picture, 7, 4 frames the sounds.
struct FourSamples {
  std::vector<std::vector<Piece>> samples{
      {{.text = 2}, {.media = 4, .port = 0}, {.text = 3, .supervised = true}},
      {{.text = 2}, {.text = 3, .supervised = true}},
      {{.text = 1}, {.media = 4, .port = 1}, {.media = 4, .port = 0}, {.text = 2}, {.text = 3, .supervised = true}},
      {{.media = 2, .port = 1}, {.text = 2, .supervised = true}}};
  /// By sample: its pictures' patches and its sounds' frames.
  std::vector<std::vector<int>> patches{{4}, {}, {4}, {}}, frames{{}, {}, {7}, {4}};
};

/// The blocks of some of the four samples, with the ids, weights and media that they have in every packing.
struct FourBlocks {
  std::vector<BlockData> media;
  BlockData text;
};
inline FourBlocks blocks_of(const std::vector<std::size_t>& which) {
  const FourSamples all;
  const BlockData whole = BlockData::text(all.samples, 37, 2);
  FourBlocks b;
  std::vector<std::vector<Piece>> samples;
  std::vector<int> patches, frames;
  Values pixels, sound;
  for (const std::size_t s : which) {
    samples.push_back(all.samples[s]);
    for (const int n : all.patches[s]) {
      patches.push_back(n);
      const Values v = random_values(n * 12, 200 + static_cast<unsigned>(s));
      pixels.insert(pixels.end(), v.begin(), v.end());
    }
    for (const int n : all.frames[s]) {
      frames.push_back(n);
      const Values v = random_values(n * 5, 300 + static_cast<unsigned>(s));
      sound.insert(sound.end(), v.begin(), v.end());
    }
  }
  b.text = BlockData::text(samples, 37, 2);
  for (std::size_t i = 0; i < which.size(); ++i) {
    b.text.ids[i] = whole.ids[which[i]];
    b.text.labels[i] = whole.labels[which[i]];
    b.text.weights[i] = whole.weights[which[i]];
  }
  b.media.push_back(BlockData::pictures(patches, 12, true, false));
  b.media.push_back(BlockData::clips(frames, 5));
  b.media[0].source = pixels;
  b.media[1].source = sound;
  return b;
}

}  // namespace mmt::test
