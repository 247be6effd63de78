// Published towers of sound: Qwen2-Audio whole, and its tower before another LLM (loss and gradients: pretrained_test).
#include "tests/apps/pretrained_run.h"

using namespace mmt::app_test;
using nlohmann::json;

namespace fs = std::filesystem;

TEST_CASE("clips of a published model are prepared as it wants them") {
  const PretrainedRun p;
  const json expected = p.expected("qwen2_audio");
  CHECK(joined(wrong_numbers(p.dump("qwen2_audio.yaml"), expected)).empty());
  // Padding that may be attended to is another model; so is a clip without what lies behind it.
  for (const char* window : {"full", "none"}) {
    INFO(window);
    CHECK_FALSE(
        wrong_numbers(p.dump("qwen2_audio.yaml", {std::string("modules.ears.window=") + window}), expected).empty());
  }
  // The clip of 1.25 windows.
  const auto rows = [&](const std::string& policy) {
    return p.dump("qwen2_audio.yaml", {"modules.ears.over_long=" + policy}).samples.at(4).ids.size();
  };
  CHECK(rows("chunk") == rows("truncate") + 6);
}

TEST_CASE("what a published tower of sound decides is not contradicted") {
  const PretrainedRun p;
  const auto dump = [&](const std::string& name, const Set& set = {}) {
    return p.run("dump", name, set, {}, {"--out", (p.folder() / "d.h5").string()});
  };
  SECTION("another preparation of sound") {
    const fs::path file = p.folder() / "qwen2_audio" / "preprocessor_config.json";
    json j = json::parse(read_text(file));
    j["feature_size"] = 80;
    write_text(file, j.dump());
    require_refused(dump("qwen2_audio.yaml"), {"preprocessor_config.json", "feature_size", "128"});
  }
  SECTION("what a published tower of sound decides") {
    require_refused(dump("qwen2_audio.yaml", {"modules.ears.pool=1"}), {"pool", "contradicts"});
    require_refused(dump("qwen2_audio.yaml", {"modules.ears.kind=whisper"}), {"kind", "qwen2_audio"});
    require_refused(dump("qwen2_audio.yaml", {"modules.ears.mels=80"}), {"mels: 80 given", "has 128"});
  }
}

TEST_CASE("a tower of sound that was not imported goes out as a Qwen2AudioEncoder and comes back") {
  const PretrainedRun p;
  const std::string tower =
      "modules.ears={role: encoder, modality: audio, kind: qwen2_audio, hidden: 32, intermediate: 48, layers: 1, "
      "heads: "
      "2, max_positions: 50";
  require_done(p.run("train", "composed_audio.yaml", {tower + "}"}));
  const fs::path out = p.folder() / "out";
  require_done(p.run("export", "composed_audio.yaml", {tower + "}"}, {}, {"--out", out.string(), "--dtype", "F32"}));
  CHECK(json::parse(read_text(out / "ears/config.json"))["model_type"] == "qwen2_audio_encoder");
  const json preparation = json::parse(read_text(out / "ears/preprocessor_config.json"));
  const json published = json::parse(read_text(p.folder() / "qwen2_audio/preprocessor_config.json"));
  for (const auto& [key, value] : preparation.items()) {
    INFO(key);
    CHECK(published.at(key) == value);
  }
  const std::string step = (p.folder() / "run/checkpoints/step_00000001").string();
  const DumpFile before = p.dump(
      "composed_audio.yaml", {tower + ", init: {checkpoint: " + step + "}}", "modules.llm.init.checkpoint=" + step});
  const DumpFile after =
      p.dump("composed_audio.yaml", {"modules.ears.init.hf=" + (out / "ears").string(),
                                     "modules.ears.projector.init.hf=" + (out / "ears.projector").string(),
                                     "modules.llm.init.hf=" + (out / "llm").string()});
  CHECK(after.loss == before.loss);
}
