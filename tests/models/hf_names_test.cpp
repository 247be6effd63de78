// One tensor in every spelling of its name, and whose it is.
#include "models/hf_names.h"
#include "core/error.h"
#include "tests/support/message_of.h"

#include <catch2/catch.hpp>

using namespace mmt;
using namespace mmt::models;
using mmt::test::message_of;

namespace {

/// What the file calls the parameter when it holds just this name; empty: nothing of the part.
std::string found(HfPart part, const std::string& file_name, const std::string& parameter) {
  const std::vector<std::string> names = {file_name};
  const HfNames known(part, names, "f");
  const std::string* name = known.find(parameter);
  return name == nullptr ? "" : *name;
}

}  // namespace

TEST_CASE("tensors are found under all spellings of their names") {
  struct Case {
    HfPart part;
    std::string parameter;
    std::vector<std::string> spellings;
  };
  const Case cases[] = {
      {HfPart::llm,
       "model.layers.1.self_attn.q_proj.weight",
       {"model.layers.1.self_attn.q_proj.weight", "language_model.model.layers.1.self_attn.q_proj.weight",
        "model.language_model.layers.1.self_attn.q_proj.weight",
        "language_model.model.model.layers.1.self_attn.q_proj.weight"}},
      {HfPart::llm, "lm_head.weight", {"lm_head.weight", "language_model.lm_head.weight"}},
      {HfPart::vision,
       "encoder.layers.0.mlp.fc1.bias",
       {"encoder.layers.0.mlp.fc1.bias", "vision_model.encoder.layers.0.mlp.fc1.bias",
        "vision_tower.encoder.layers.0.mlp.fc1.bias", "vision_tower.vision_model.encoder.layers.0.mlp.fc1.bias",
        "model.vision_tower.encoder.layers.0.mlp.fc1.bias",
        "model.vision_tower.vision_model.encoder.layers.0.mlp.fc1.bias",
        "model.vision_tower.vision_tower.vision_model.encoder.layers.0.mlp.fc1.bias"}},
      {HfPart::audio,
       "layers.2.fc1.weight",
       {"layers.2.fc1.weight", "encoder.layers.2.fc1.weight", "model.encoder.layers.2.fc1.weight",
        "audio_tower.layers.2.fc1.weight", "model.audio_tower.layers.2.fc1.weight"}},
      {HfPart::projector,
       "linear_1.weight",
       {"linear_1.weight", "multi_modal_projector.linear_1.weight", "model.multi_modal_projector.linear_1.weight",
        "model.mm_projector.0.weight"}},
      {HfPart::projector, "linear_2.bias", {"multi_modal_projector.linear_2.bias", "model.mm_projector.2.bias"}},
      {HfPart::projector, "linear.weight", {"multi_modal_projector.linear.weight", "linear.weight"}},
      {HfPart::projector, "image_newline", {"image_newline", "model.image_newline"}},
  };
  for (const Case& c : cases) {
    for (const std::string& name : c.spellings) {
      INFO(name);
      CHECK(found(c.part, name, c.parameter) == name);
    }
  }
}

TEST_CASE("a tensor of one part is not taken for another's") {
  // Without their prefixes these would be equal.
  CHECK(found(HfPart::llm, "audio_tower.layers.0.fc1.weight", "model.layers.0.fc1.weight").empty());
  CHECK(
      found(HfPart::llm, "model.vision_tower.encoder.layers.0.mlp.fc1.bias", "encoder.layers.0.mlp.fc1.bias").empty());
  CHECK(found(HfPart::audio, "model.decoder.layers.2.fc1.weight", "layers.2.fc1.weight").empty());
  CHECK(found(HfPart::audio, "language_model.model.layers.2.fc1.weight", "layers.2.fc1.weight").empty());
  CHECK(found(HfPart::vision, "text_model.encoder.layers.0.mlp.fc1.bias", "encoder.layers.0.mlp.fc1.bias").empty());
  CHECK(found(HfPart::projector, "model.layers.0.linear_1.weight", "linear_1.weight").empty());
  CHECK(found(HfPart::projector, "vision_tower.linear_1.weight", "linear_1.weight").empty());
}

TEST_CASE("two names of one tensor are refused") {
  const std::vector<std::string> names = {"language_model.model.norm.weight", "model.language_model.norm.weight"};
  const std::string message = message_of<ConfigError>([&] { HfNames(HfPart::llm, names, "folder"); });
  CHECK_THAT(message, Catch::Contains("folder") && Catch::Contains(names[0]) && Catch::Contains(names[1]));
  CHECK_NOTHROW(HfNames(HfPart::vision, names, "folder"));
}

TEST_CASE("a fused tensor is the place of its parameters and a merger is the projector's") {
  const std::vector<std::string> names = {"model.visual.blocks.3.attn.qkv.weight", "visual.blocks.3.attn.proj.weight",
                                          "visual.merger.ln_q.weight", "visual.merger.mlp.0.weight"};
  const HfNames tower(HfPart::vision, names, "f"), projector(HfPart::projector, names, "f");
  const auto k = tower.place("blocks.3.attn.k.weight");
  REQUIRE(k.has_value());
  CHECK(k->name == names[0]);
  CHECK(k->part == 1);
  CHECK(k->parts == 3);
  CHECK(tower.place("blocks.3.attn.proj.weight")->parts == 1);
  CHECK_FALSE(tower.place("blocks.2.attn.k.weight").has_value());
  CHECK(tower.all().size() == 2);
  CHECK(projector.place("ln_q.weight")->name == names[2]);
  CHECK(projector.place("mlp.0.weight")->name == names[3]);
  CHECK(projector.all().size() == 2);
}
