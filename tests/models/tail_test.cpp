// The tail of a quantum: rows beyond the block's items and samples change nothing and get nothing.
#include "tests/models/tiny_model.h"

#include "kernels/backend.h"

#include <catch2/catch.hpp>

using namespace mmt;
using namespace mmt::test;

TEST_CASE("tail rows of a block change no loss and no gradient") {
  for (const char* family : {"llama", "gpt2", "mistral"}) {
    for (const char* kind : {"clip", "siglip"}) {
      INFO(family << " " << kind);
      LlmSpec llm = tiny_llm(family);
      EncoderSpec ears = tiny_encoder("whisper");
      ears.train_positions = true;
      const Model model = make_model({tiny_encoder(kind), ears}, llm, DType::f64);
      FourBlocks plain = blocks_of({0, 1, 2, 3});
      if (std::string(kind) == "siglip") {
        const Values pixels = plain.media[0].source;
        plain.media[0] = BlockData::pictures({4, 4}, 12, false, false);
        plain.media[0].source = pixels;
      }
      const std::vector<std::int32_t> windows = models::mask_windows(llm);
      plain.text.plan.masks.resize(windows.size(), plain.text.plan.masks[0]);
      plain.text = with_tail(plain.text, 0, windows);
      FourBlocks tail = plain;
      tail.text = with_tail(tail.text, 5, windows);
      tail.media[0] = with_tail(tail.media[0], 3, {0});
      tail.media[1] = with_tail(tail.media[1], 2, {0});
      for (const bool recompute : {false, true}) {
        RunOptions options;
        options.stream = reference_stream();
        options.recompute = recompute;
        const ModelPass a = run_model(model, plain.media, plain.text, options),
                        b = run_model(model, tail.media, tail.text, options);
        CHECK(a.loss == b.loss);
        CHECK(a.features == b.features);
        for (const auto& [name, g] : a.grads) {
          INFO(name);
          // The scalar kernels add rows in order; zeros at the end change no sum.
          CHECK(g == b.grads.at(name));
        }
      }
    }
  }
}
