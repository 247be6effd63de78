// Published models (Hugging Face folders) in and out: what PyTorch computes with them, and that nothing is lost.
// tests/data/pretrained holds tiny models as transformers saves them; scripts/reference/ made them and the numbers.
#include "core/data/weights/safetensors.h"
#include "tests/apps/pretrained_run.h"

#include <cstring>

using namespace mmt::app_test;
using nlohmann::json;

namespace fs = std::filesystem;

TEST_CASE("published models compute what PyTorch does in loss logits and every gradient") {
  const PretrainedRun p;
  const std::string name = GENERATE("llama3", "mistral", "qwen2", "qwen3", "llava_clip", "llava_siglip", "llava_next",
                                    "qwen2_vl", "qwen2_vl_video", "qwen2_audio", "composed", "composed_audio");
  INFO(name);
  const json expected = p.expected(name);
  const DumpFile one = p.dump(name + ".yaml");
  CHECK(joined(wrong_numbers(one, expected)).empty());

  // In a parallel layout, and there the comparison must see a gradient that is not what it should be.
  DumpFile two = p.dump(name + ".yaml", {"parallel.layout.all.pp=2", "parallel.layout.all.dp=1"}, 2);
  CHECK(joined(wrong_numbers(two, expected)).empty());
  for (float& v : two.grads.begin()->second.values) v *= 1.01F;
  CHECK_FALSE(wrong_numbers(two, expected).empty());

  // bf16: as near to fp32 as PyTorch in bf16 is, by a factor of two over all gradients together.
  const DumpFile half = p.dump(name + ".yaml", {"train.precision=bf16"});
  double ours = 0.0, theirs = 0.0;
  for (const auto& [tensor, g] : one.grads) {
    ours += std::pow(distance(g.values, half.grads.at(tensor).values), 2);
    theirs += std::pow(expected["bf16_error"][tensor].get<double>(), 2);
  }
  CHECK(std::sqrt(ours) <= 2 * std::sqrt(theirs));
}

namespace {

/// Names, dtypes, shapes and bits. `prefix`: what the names in `before` have in front and those in `after` have not;
/// other names are passed over.
void require_same_tensors(const fs::path& before, const fs::path& after, const std::string& prefix = "") {
  const auto a = mmt::data::SafetensorsModel::open(before.string()),
             b = mmt::data::SafetensorsModel::open(after.string());
  std::size_t count = 0;
  for (const std::string& name : a.names()) {
    if (!name.starts_with(prefix)) continue;
    INFO(name);
    ++count;
    const std::string other = name.substr(prefix.size());
    CHECK(b.tensor(other).dtype == a.tensor(name).dtype);
    CHECK(b.tensor(other).shape == a.tensor(name).shape);
    const auto x = a.data(name), y = b.data(other);
    CHECK((x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size()) == 0));
  }
  CHECK(b.names().size() == count);
}

}  // namespace

TEST_CASE("a published model goes out as it came in bit for bit") {
  const PretrainedRun p;
  const std::string name =
      GENERATE("llama3", "qwen2", "llava_clip", "llava_next", "qwen2_vl", "qwen2_audio", "composed", "composed_audio");
  INFO(name);
  const std::string precision = GENERATE("fp32", "bf16");
  // A step that changes no bit: the weights of the checkpoint are those that were read. A frozen module is kept in the
  // precision of the run.
  Set set = {"optimizer.lr=1e-30", "optimizer.weight_decay=0", "train.precision=" + precision};
  if (name == "llava_clip") set.emplace_back("modules.eyes.trainable=false");
  require_done(p.run("train", name + ".yaml", set));
  const fs::path out = p.folder() / "out";
  require_done(p.run("export", name + ".yaml", set, {}, {"--out", out.string()}));
  struct Pair {
    std::string from, to;
  };
  std::vector<Pair> pairs = {{name, "out"}};
  if (name == "composed")
    pairs = {{"siglip", "out/eyes"},
             {"whisper", "out/ears"},
             {"qwen3", "out/llm"},
             {"projector_eyes", "out/eyes.projector"},
             {"projector_ears", "out/ears.projector"}};
  if (name == "composed_audio")
    pairs = {{"qwen2_audio_tower", "out/ears"}, {"llama3", "out/llm"}, {"projector_ears", "out/ears.projector"}};
  for (const Pair& pair : pairs) {
    INFO(pair.to);
    require_same_tensors(p.folder() / pair.from, p.folder() / pair.to);
    if (fs::exists(p.folder() / pair.from / "config.json"))
      CHECK(read_text(p.folder() / pair.to / "config.json") == read_text(p.folder() / pair.from / "config.json"));
  }
}

TEST_CASE("a published folder that does not fit is refused with its tensors") {
  const PretrainedRun p;
  const fs::path llm = p.folder() / "llama3";
  const auto dump = [&](const std::string& name = "llama3.yaml", const Set& set = {}, int ranks = 0) {
    return p.run("dump", name, set, {.ranks = ranks}, {"--out", (p.folder() / "d.h5").string()});
  };
  SECTION("no folder") {
    fs::rename(llm, p.folder() / "elsewhere");
    require_refused(dump(), {"llama3.yaml:3", "config.json", "save_pretrained"});
  }
  SECTION("config.json has one layer more") {
    change_config(llm, [](json& j) { j["num_hidden_layers"] = 3; });
    require_refused(dump("llama3.yaml", {}, 2), {"missing", "model.layers.2.input_layernorm.weight", "llama3"});
  }
  SECTION("config.json has one layer less") {
    change_config(llm, [](json& j) { j["num_hidden_layers"] = 1; });
    require_refused(dump(), {"no place for", "model.layers.1.input_layernorm.weight"});
  }
  SECTION("biases that the config does not speak of") {
    // The weights of a Qwen2 read as those of a llama would compute something else without a word.
    change_config(p.folder() / "qwen2", [](json& j) { j["model_type"] = "llama"; });
    require_refused(dump("qwen2.yaml"), {"no place for", "model.layers.0.self_attn.q_proj.bias"});
  }
  SECTION("other shapes") {
    change_config(llm, [](json& j) { j["intermediate_size"] = 64; });
    require_refused(dump(),
                    {"another shape or kind", "model.layers.0.mlp.up_proj.weight is [48,32], the model wants [64,32]"});
  }
  SECTION("an untied head that is not there") {
    change_config(p.folder() / "qwen2", [](json& j) { j["tie_word_embeddings"] = false; });
    require_refused(dump("qwen2.yaml"), {"lm_head.weight", "tie_word_embeddings: true"});
  }
  SECTION("sizes written beside the folder") {
    require_refused(dump("llama3.yaml", {"modules.llm.hidden=64"}), {"hidden: 64 given", "has 32"});
  }
  SECTION("what the config.json decides") {
    require_refused(dump("llama3.yaml", {"modules.llm.rope_theta=1e6"}), {"rope_theta", "contradicts"});
    require_refused(dump("llama3.yaml", {"modules.llm.norm_epsilon=1e-3"}), {"norm_epsilon", "contradicts"});
    require_refused(dump("llava_clip.yaml", {"modules.eyes.activation=gelu"}), {"activation", "contradicts"});
    require_done(dump("llama3.yaml", {"modules.llm.rope_theta=500"}));  // what it says
  }
  SECTION("weights of whole numbers") {
    std::string bytes = read_text(llm / "model.safetensors");
    for (std::size_t at = bytes.find("\"BF16\""); at != std::string::npos; at = bytes.find("\"BF16\""))
      bytes.replace(at, 6, "\"I16\" ");
    write_text(llm / "model.safetensors", bytes);
    require_refused(dump(), {"is of dtype I16", "model.embed_tokens.weight"});
  }
  SECTION("sizes that no memory holds") {
    change_config(llm, [](json& j) { j["num_hidden_layers"] = 2000000000; });
    require_refused(dump(), {"num_hidden_layers", "4096"});
  }
  SECTION("a kind that the folder is not") {
    require_refused(dump("llama3.yaml", {"modules.llm.kind=qwen3"}), {"kind: qwen3 given", "llama"});
  }
  SECTION("a tower where an LLM is wanted") {
    require_refused(dump("llama3.yaml", {"modules.llm.init.hf=" + (p.folder() / "siglip").string()}), {"has no LLM"});
  }
  SECTION("a damaged file") {
    const std::string bytes = read_text(llm / "model.safetensors");
    write_text(llm / "model.safetensors", bytes.substr(0, bytes.size() - 2));
    require_refused(dump("llama3.yaml", {}, 2), {"model.safetensors"});
  }
  SECTION("a key of init that there is not") {
    const Outcome o = dump("llama3.yaml", {"modules.llm.init={hff: llama3}"});
    require_refused(o, {"modules.llm.init.hff: unknown key"});
    CHECK_THAT(o.err + o.out, !Catch::Contains("missing"));  // what the folder would have said
    require_refused(dump("llama3.yaml", {"modules.llm.init={}"}), {"modules.llm.init.checkpoint: missing"});
    CHECK_THAT(dump("llava_clip.yaml", {"modules.eyes.init={hf: nowhere}"}).err, !Catch::Contains("kind"));
  }
  SECTION("sizes of tiles") {
    const std::string sizes = "modules.eyes.anyres.pinpoints=";
    require_refused(dump("llava_next.yaml", {sizes + "[[56, 112]]"}), {"anyres: contradicts"});
    require_refused(dump("llava_next.yaml", {"modules.eyes.fit=crop"}), {"fit: has no meaning beside anyres"});
    require_refused(dump("llava_clip.yaml", {sizes + "[[56, 112]]"}), {"anyres: contradicts"});
    const Set anew = {"modules.eyes.projector.init=random"};
    require_refused(dump("llava_clip.yaml", with(anew, {sizes + "[[56, 100]]"})), {"multiples of image_size 56"});
    require_refused(dump("llava_clip.yaml", with(anew, {sizes + "[[56]]"})), {"expected 2 values"});
    require_refused(dump("llava_clip.yaml", with(anew, {sizes + "[[56, 112]]", "modules.eyes.select=full"})),
                    {"select: full"});
    change_config(p.folder() / "llava_next", [](json& j) { j["image_grid_pinpoints"] = {{56, 112}}; });
    require_refused(dump("llava_next.yaml"), {"image_grid_pinpoints of its preprocessor"});
  }
  SECTION("a folder without its newline") {
    std::string bytes = read_text(p.folder() / "llava_next/model.safetensors");
    bytes.replace(bytes.find("image_newline"), 13, "image_newlime");
    write_text(p.folder() / "llava_next/model.safetensors", bytes);
    require_refused(dump("llava_next.yaml"), {"tensors that are missing", "image_newline"});
  }
  SECTION("a projector for another LLM") {
    require_refused(dump("llava_clip.yaml", {"modules.eyes.projector.kind=linear"}), {"linear.weight", "init: random"});
    require_done(dump("llava_clip.yaml", {"modules.eyes.projector.kind=linear", "modules.eyes.projector.init=random"}));
  }
}

TEST_CASE("a tower that looks at tiles before another LLM goes out with its newline and comes back") {
  const PretrainedRun p;
  const Set tiles = {"modules.eyes.anyres.pinpoints=[[60, 120], [120, 60]]"};
  const Set anew = with(tiles, {"modules.eyes.projector.init=random", "optimizer.lr=0.05"});
  require_done(p.run("train", "composed.yaml", anew));
  const std::string step = (p.folder() / "run/checkpoints/step_00000001").string();
  const DumpFile after = p.dump(
      "composed.yaml", with(anew, {"modules.eyes.init.checkpoint=" + step, "modules.ears.init.checkpoint=" + step,
                                   "modules.llm.init.checkpoint=" + step}));
  REQUIRE(after.grads.contains("eyes.projector/image_newline"));
  const fs::path out = p.folder() / "out";
  require_done(p.run("export", "composed.yaml", anew, {}, {"--out", out.string(), "--dtype", "F32"}));
  CHECK(mmt::data::SafetensorsModel::open((out / "eyes.projector").string()).contains("image_newline"));
  Set again = tiles;
  for (const char* module : {"eyes", "ears", "llm"})
    again.push_back(fmt::format("modules.{}.init.hf={}", module, (out / module).string()));
  for (const char* module : {"eyes", "ears"})
    again.push_back(
        fmt::format("modules.{}.projector.init.hf={}", module, (out / (std::string(module) + ".projector")).string()));
  CHECK(p.dump("composed.yaml", again).loss == after.loss);
}

TEST_CASE("a published model goes on with a checkpoint's weights") {
  const PretrainedRun p;
  require_done(p.run("train", "llama3.yaml", {"train.steps=2"}));
  const std::string step = (p.folder() / "run/checkpoints/step_00000002").string();
  const DumpFile trained = p.dump("llama3.yaml", {"modules.llm.init.checkpoint=" + step});
  // The third step of the run itself.
  const fs::path file = p.folder() / "third.h5";
  require_done(
      p.run("dump", "llama3.yaml", {"train.steps=3"}, {}, {"--out", file.string(), "--step", "3", "--logits"}));
  const DumpFile third = read_dump(file);
  CHECK(trained.loss == third.loss);
  CHECK(trained.grads.at("llm/lm_head.weight").values == third.grads.at("llm/lm_head.weight").values);
  CHECK(trained.loss != p.dump("llama3.yaml").loss);
}

TEST_CASE("three steps of training have PyTorch's losses") {
  const PretrainedRun p;
  const std::string name = GENERATE("llama3", "mistral", "qwen2", "qwen3", "llava_clip", "llava_siglip", "llava_next",
                                    "qwen2_vl", "qwen2_vl_video", "qwen2_audio", "composed", "composed_audio");
  INFO(name);
  const json expected = p.expected(name)["train"];
  require_done(p.run("train", name + ".yaml",
                     {"train.steps=3", fmt::format("optimizer.lr={}", expected["lr"].get<double>()),
                      fmt::format("optimizer.weight_decay={}", expected["weight_decay"].get<double>())}));
  const auto steps = read_metrics(p.folder() / "run");
  REQUIRE(steps.size() == 3);
  // AdamW's first steps are signs of gradients: an element whose gradient is rounding noise may go either way, which
  // moves the loss by less than 1e-5.
  for (const auto& [step, values] : steps) {
    INFO(step);
    CHECK(values.at("loss").get<double>() ==
          Approx(expected["losses"][static_cast<std::size_t>(step - 1)].get<double>()).epsilon(1e-5));
  }
}

TEST_CASE("adapters go out merged or as PEFT folders and come back") {
  const PretrainedRun p;
  const std::string name = GENERATE("llama3", "llava_clip");
  INFO(name);
  Set lora = {"modules.llm.lora={on: [q_proj, down_proj], rank: 4, alpha: 6}", "optimizer.lr=0.05"};
  if (name == "llava_clip")
    lora = with(lora, {"modules.eyes.lora={on: fc1, rank: 2}", "modules.eyes.projector.trainable=false"});
  require_done(p.run("train", name + ".yaml", with(lora, {"train.steps=3"})));
  const std::string step = (p.folder() / "run/checkpoints/step_00000003").string();
  Set trained = with(lora, {"modules.llm.init.checkpoint=" + step});
  if (name == "llava_clip") trained.push_back("modules.eyes.init.checkpoint=" + step);
  const DumpFile after = p.dump(name + ".yaml", trained);
  const auto before = p.dump(name + ".yaml", lora);
  CHECK(std::abs(after.loss - before.loss) > 1e-2);

  // Alone: the base is as it was, its adapters are read from their folders.
  const fs::path out = p.folder() / "separate";
  require_done(p.run("export", name + ".yaml", lora, {}, {"--out", out.string(), "--lora", "separate"}));
  Set from_peft = {"modules.llm.lora={init: {hf: " + (out / "llm-adapter").string() + "}}"};
  if (name == "llava_clip") {
    from_peft = with(from_peft, {"modules.eyes.lora={init: {hf: " + (out / "eyes-adapter").string() + "}}",
                                 "modules.eyes.projector.trainable=false"});
  }
  const DumpFile again = p.dump(name + ".yaml", from_peft);
  CHECK(again.loss == after.loss);
  REQUIRE(again.grads.size() == after.grads.size());
  for (const auto& [tensor, g] : after.grads) CHECK(again.grads.at(tensor).values == g.values);
  // PEFT's names: what it wraps is the model in memory.
  const auto adapter = mmt::data::SafetensorsModel::open((out / "llm-adapter").string());
  CHECK(adapter.contains(name == "llama3"
                             ? "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
                             : "base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_A.weight"));

  // Merged: no adapter, the same function.
  const fs::path whole = p.folder() / "merged";
  require_done(p.run("export", name + ".yaml", lora, {}, {"--out", whole.string(), "--dtype", "F32"}));
  Set merged = {"modules.llm.init.hf=" + whole.string()};
  if (name == "llava_clip") merged.push_back("modules.eyes.init.hf=" + whole.string());
  // The merged weight is rounded once in f32: errors of an ulp of weights, as other orders of sums make.
  CHECK(p.dump(name + ".yaml", merged).loss == Approx(after.loss).epsilon(1e-6));

  // What has no counterpart, and adapters of another model.
  const fs::path config = out / "llm-adapter" / "adapter_config.json";
  const std::string text = read_text(config);
  json j = json::parse(text);
  j["use_dora"] = true;
  write_text(config, j.dump());
  require_refused(p.run("dump", name + ".yaml", from_peft, {}, {"--out", "d.h5"}), {"use_dora", "DoRA"});
  write_text(config, text);
  require_refused(p.run("dump", name + ".yaml", with(from_peft, {"modules.llm.lora.on=q_proj"}), {}, {"--out", "d.h5"}),
                  {"no place for", "down_proj.lora_A.weight"});
  require_refused(p.run("dump", name + ".yaml", with(from_peft, {"modules.llm.lora.rank=8"}), {}, {"--out", "d.h5"}),
                  {"rank: 8 given", "have 4"});
}

TEST_CASE("an export loses nothing without a word") {
  const PretrainedRun p;
  const fs::path out = p.folder() / "out";
  const auto exported = [&](const std::string& config, const Set& set, const std::vector<std::string>& more = {}) {
    std::vector<std::string> list = {"--out", out.string()};
    list.insert(list.end(), more.begin(), more.end());
    return p.run("export", config, set, {}, list);
  };
  SECTION("adapters that the config does not name") {
    require_done(p.run("train", "llama3.yaml", {"modules.llm.lora={on: [q_proj], rank: 4}"}));
    require_refused(exported("llama3.yaml", {}), {"adapters that this configuration lacks", "lora_A"});
    // Another scale is another model: said, not refused.
    const Outcome o = exported("llama3.yaml", {"modules.llm.lora={on: [q_proj], rank: 4, alpha: 400}"});
    require_outcome(o, 0, "not the model that the checkpoint was trained as");
  }
  SECTION("a projector that replaced the published one goes into the whole model") {
    const Set set = {"modules.eyes.projector.init=random", "optimizer.lr=0.05"};
    require_done(p.run("train", "llava_clip.yaml", set));
    require_done(exported("llava_clip.yaml", set, {"--dtype", "f32"}));
    const auto before = mmt::data::SafetensorsModel::open((p.folder() / "llava_clip").string());
    const auto after = mmt::data::SafetensorsModel::open((fs::exists(out / "eyes") ? out / "eyes" : out).string());
    const std::string name = "multi_modal_projector.linear_1.weight";
    std::vector<float> a(32 * 32), b(a.size());
    before.read_box(name, {{0, 0}, {32, 32}}, mmt::DType::f32, a.data());
    after.read_box(name, {{0, 0}, {32, 32}}, mmt::DType::f32, b.data());
    CHECK(a != b);
  }
  SECTION("layers whose rows leave are written into the config") {
    const Set set = {"modules.eyes.feature_layer=-1", "modules.eyes.select=full"};
    require_done(p.run("train", "llava_clip.yaml", set));
    require_done(exported("llava_clip.yaml", set));
    const json j = json::parse(read_text(out / "config.json"));
    CHECK(j["vision_feature_layer"] == -1);
    CHECK(j["vision_feature_select_strategy"] == "full");
  }
  SECTION("two towers from one folder") {
    const Set set = {"modules.more={role: encoder, init: {hf: " + (p.folder() / "llava_clip").string() + "}}"};
    require_done(p.run("train", "llava_clip.yaml", set));
    require_done(exported("llava_clip.yaml", set));
    CHECK(fs::exists(out / "eyes" / "model.safetensors"));
    CHECK(fs::exists(out / "more" / "model.safetensors"));
  }
  SECTION("a folder that cannot be made") {
    require_done(p.run("train", "llama3.yaml"));
    write_text(p.folder() / "file", "x");
    require_refused(p.run("export", "llama3.yaml", {}, {}, {"--out", (p.folder() / "file").string()}),
                    {"not a folder"});
    require_refused(p.run("export", "llama3.yaml", {}, {}, {"--out", (p.folder() / "file/x").string()}), {"--out"});
  }
}

TEST_CASE("towers of adapters that go deeper than what is built are read") {
  const PretrainedRun p;
  // Trained on all three layers of the tower, used by a model that ends before the last.
  Set lora = {"modules.eyes.lora={on: fc1, rank: 2}", "modules.eyes.feature_layer=-1",
              "modules.eyes.projector.trainable=false", "modules.llm.trainable=false", "optimizer.lr=0.05"};
  require_done(p.run("train", "llava_clip.yaml", lora));
  const fs::path out = p.folder() / "out";
  require_done(p.run("export", "llava_clip.yaml", lora, {}, {"--out", out.string(), "--lora", "separate"}));
  require_done(p.run("dump", "llava_clip.yaml",
                     {"modules.eyes.lora={on: fc1, init: {hf: " + (out / "eyes-adapter").string() + "}}"}, {},
                     {"--out", (p.folder() / "d.h5").string()}));
}

TEST_CASE("a published model is evaluated and asked without training") {
  const PretrainedRun p;
  const Outcome o = p.run("eval", "llama3.yaml", {"eval.sets=[{path: text.json, format: llava}]"}, {}, {"--json"});
  require_code(o, 0);
  // The same tokens weigh the same: the loss of the first step.
  const json expected = p.expected("llama3");
  const json result = json::parse(o.out);
  CHECK(result["sets"][0]["loss"].get<double>() == Approx(expected["loss"].get<double>()).epsilon(1e-5));
  // A module without weights would answer with noise: that is refused.
  require_refused(p.run("eval", "llava_clip.yaml",
                        {"eval.sets=[{path: text.json, format: llava}]", "modules.eyes.projector.init=random"}),
                  {"no checkpoint"});
}

TEST_CASE("an import holds what training would start from") {
  const PretrainedRun p;
  const fs::path out = p.folder() / "out", weights = p.folder() / "llava_clip/model.safetensors";
  const int ranks = GENERATE(0, 2);
  Set set;
  if (ranks == 2) set = {"parallel.layout.all.pp=2", "parallel.layout.all.dp=1"};
  require_done(p.run("import", "llava_clip.yaml", set, {.ranks = ranks}, {"--out", out.string()}));
  require_refused(p.run("import", "llava_clip.yaml", {}, {}, {"--out", out.string()}), {"not empty"});
  require_refused(p.run("import", "llava_clip.yaml", {}, {}, {"--out", weights.string()}), {"not a folder"});
  fs::remove(weights);  // from now on the checkpoint alone has them
  const std::string both =
      fmt::format("{{hf: {}, checkpoint: {}}}", (p.folder() / "llava_clip").string(), (out / "step_00000000").string());
  CHECK(joined(wrong_numbers(p.dump("llava_clip.yaml", {"modules.eyes.init=" + both, "modules.llm.init=" + both}),
                             p.expected("llava_clip")))
            .empty());
}

TEST_CASE("a Qwen2-VL that was not imported is exported in its family's form") {
  // The weights are those that transformers wrote; the config does not know where they came from.
  const PretrainedRun p;
  const std::string eyes =
      "modules.eyes={role: encoder, modality: image, kind: qwen2_vl, hidden: 32, intermediate: 64, layers: 2, heads: "
      "2, min_pixels: "
      "1568, "
      "max_pixels: 4704}";
  const auto llm = [](const char* more) {
    return fmt::format(
        "modules.llm={{role: llm, kind: qwen2, vocabulary: 272, hidden: 32, intermediate: 48, layers: 2, heads: 2, "
        "kv_heads: 1, "
        "rope_theta: "
        "1000, norm_epsilon: 1e-6{}}}",
        more);
  };
  require_done(p.run("import", "qwen2_vl.yaml", {}, {}, {"--out", (p.folder() / "start").string()}));
  const auto exported = [&](const Set& set, const fs::path& out) {
    require_done(p.run(
        "export", "qwen2_vl.yaml", set, {},
        {"--out", out.string(), "--dtype", "BF16", "--checkpoint", (p.folder() / "start/step_00000000").string()}));
  };
  const fs::path whole = p.folder() / "whole", parts = p.folder() / "parts";
  exported({eyes, llm(", mrope_section: [2, 3, 3]")}, whole);
  require_same_tensors(p.folder() / "qwen2_vl", whole);
  const json written = json::parse(read_text(whole / "config.json"));
  const json published = json::parse(read_text(p.folder() / "qwen2_vl" / "config.json"));
  for (const char* key : {"image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"})
    CHECK(written[key] == published[key]);
  const std::string from = (p.folder() / "whole").string();
  CHECK(joined(wrong_numbers(p.dump("qwen2_vl.yaml",
                                    {"modules.eyes.init={hf: " + from + "}", "modules.llm.init={hf: " + from + "}"}),
                             p.expected("qwen2_vl")))
            .empty());

  // With an LLM of one position a row the tower and its merger are a model alone, and can be read as one.
  exported({eyes, llm("")}, parts);
  require_same_tensors(p.folder() / "qwen2_vl", parts / "eyes", "visual.");
  require_done(p.run("dump", "qwen2_vl.yaml", {"modules.eyes.init={hf: " + (parts / "eyes").string() + "}"}, {},
                     {"--out", "d.h5"}));
}

TEST_CASE("an export says what it cannot do") {
  const PretrainedRun p;
  require_done(p.run("train", "llama3.yaml"));
  const fs::path out = p.folder() / "out";
  write_text(out / "file", "x");
  require_refused(p.run("export", "llama3.yaml", {}, {}, {"--out", out.string()}), {"not empty"});
  require_code(p.run("export", "llama3.yaml", {}, {}, {"--out", out.string(), "--dtype", "I8"}), kUsage);
  require_refused(p.run("export", "llama3.yaml", {"run.output_dir=nowhere"}, {}, {"--out", "o"}), {"no checkpoint"});
}
