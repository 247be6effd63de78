// Adapters on trained weights: from a base run to a run of adapters, through a resume, other layouts, and back.
#include "tests/apps/checkpoint_file.h"
#include "tests/apps/dump_file.h"
#include "tests/apps/fixture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <catch2/catch.hpp>

using namespace mmt::app_test;

namespace {

const Set kLora = {
    "modules.llm.lora={on: [q_proj, v_proj, down_proj], rank: 4, alpha: 8, dropout: 0.1}",
    "modules.eyes.lora={on: \"layers[.]1[.].*(k_proj|fc1)$\", rank: 2}",
    "modules.ears.trainable=false",
    "modules.ears.projector.trainable=false",
    "modules.eyes.projector.lora={on: linear_2, rank: 4, rslora: true}",
};

Set from(const std::string& checkpoint, const Set& more) {
  Set set = kLora;
  for (const char* module : {"llm", "eyes", "ears"})
    set.push_back(fmt::format("modules.{}.init={{checkpoint: {}}}", module, checkpoint));
  set.insert(set.end(), more.begin(), more.end());
  return set;
}

bool of_adapter(const std::string& name) { return name.find(".lora_") != std::string::npos; }

DumpFile dump_of(const TinyRun& tiny, const Set& set, int ranks) {
  static int number = 0;
  const auto file = tiny.folder() / fmt::format("dump_{}.h5", number++);
  require_done(tiny.run("dump", set, {.ranks = ranks}, {"--out", file.string()}));
  return read_dump(file);
}

}  // namespace

TEST_CASE("adapters on trained weights learn, resume bit for bit, and leave the base as it was") {
  const TinyRun tiny;
  require_done(tiny.run("train", {"run.output_dir=base", "train.steps=3"}));
  const std::string base = tiny.checkpoint(3, "base").string();
  const Outcome whole = tiny.run("train", from(base, {"run.output_dir=whole", "train.steps=5"}));
  require_done(whole);
  // 2 layers of 3 on the LLM, 2 on the upper layer of the eyes, 1 on their projector.
  CHECK_THAT(whole.out + whole.err, Catch::Contains("(6 adapters)") && Catch::Contains("(3 adapters)") &&
                                        Catch::Contains("; 6 adapters start anew"));
  require_done(tiny.run("train", from(base, {"run.output_dir=parts", "train.steps=2"})));
  require_done(tiny.run("train", from(base, {"run.output_dir=parts", "train.steps=5"})));
  CHECK(checkpoint_differences(tiny.checkpoint(5, "whole"), tiny.checkpoint(5, "parts")) == Set{});

  const auto before = read_checkpoint(tiny.checkpoint(3, "base")), after = read_checkpoint(tiny.checkpoint(5, "whole"));
  int adapters = 0, unchanged = 0;
  for (const auto& [name, bytes] : after) {
    INFO(name);
    if (of_adapter(name)) {
      adapters += name.starts_with("model/") ? 1 : 0;
      const bool zero = std::ranges::all_of(bytes, [](std::uint8_t b) { return b == 0; });
      CHECK_FALSE(zero);
      continue;
    }
    CHECK_FALSE(name.starts_with("optimizer/"));
    if (!name.starts_with("model/")) continue;
    CHECK(before.at(name) == bytes);
    ++unchanged;
  }
  CHECK(adapters == 2 * (6 + 3));
  CHECK(unchanged > 40);
  CHECK(after.contains("model/llm/model.layers.1.mlp.down_proj.lora_B.weight"));
  CHECK(after.contains("optimizer/first_moment/llm/model.layers.1.mlp.down_proj.lora_B.weight"));
  // Only the frozen part is marked as such.
  const Outcome inspected = run_binary(tiny.folder(), {"inspect", (tiny.folder() / "whole").string(), "--json"});
  require_done(inspected);
  const nlohmann::json held = nlohmann::json::parse(inspected.out);
  for (const auto& tensor : held.at("tensors")) {
    const auto name = tensor.at("name").get<std::string>();
    if (name.starts_with("model/")) CHECK(tensor.at("frozen").get<bool>() == !of_adapter(name));
  }

  // Their weights are no model without them.
  const Outcome lost = tiny.run("eval", {}, {}, {"--checkpoint", tiny.checkpoint(5, "whole").string()});
  require_code(lost, 2);
  CHECK_THAT(lost.err, Catch::Contains("same `lora`") && Catch::Contains("model.layers.0.self_attn.q_proj.lora_A"));
  require_done(tiny.run("eval", kLora, {}, {"--checkpoint", tiny.checkpoint(5, "whole").string()}));
}

TEST_CASE("adapters with dropout have the same gradients in every layout") {
  const TinyRun tiny;
  // Trained for some steps, so that no B is zero.
  Set train = kLora;
  train.insert(train.end(), {"run.output_dir=tuned", "train.steps=3"});
  require_done(tiny.run("train", train));
  const std::string tuned = tiny.checkpoint(3, "tuned").string();
  const DumpFile one = dump_of(tiny, from(tuned, {}), 0);
  CHECK(one.grads.size() == 2 * (6 + 3));
  for (const auto& [name, g] : one.grads) {
    INFO(name);
    CHECK(of_adapter(name));
    CHECK(norm(g.values) > 0.0);
  }
  const std::string grid = "parallel.layout.all.";
  const std::vector<std::pair<int, Set>> layouts = {
      {2, {grid + "tp=2"}},
      {2, {grid + "pp=2", "parallel.schedule.policy=zero-bubble"}},
      {2, {"parallel.zero.llm=1", "parallel.zero.eyes=1"}},
      {4, {grid + "tp=2", grid + "pp=2"}},
  };
  for (const auto& [ranks, layout] : layouts) {
    INFO(fmt::format("{} on {} ranks", fmt::join(layout, ", "), ranks));
    CHECK(differences(one, dump_of(tiny, from(tuned, layout), ranks)) == Set{});
  }
  // Full recompute draws the same; without dropout, and at another step, other elements are dropped.
  CHECK(differences(one, dump_of(tiny, from(tuned, {"train.recompute=full"}), 0)) == Set{});
  CHECK(differences(one, dump_of(tiny, from(tuned, {"modules.llm.lora.dropout=0"}), 0)).size() > one.grads.size() / 2);
}

TEST_CASE("adapters that are wrong are refused with place and reason") {
  const TinyRun tiny;
  const auto refused = [&](const Set& set, const std::string& text) {
    const Outcome o = tiny.run("validate", set);
    INFO(o.text());
    CHECK(o.code == 2);
    CHECK_THAT(o.err, Catch::Contains(text));
  };
  refused({"modules.llm.lora={on: q_proj, rank: 0}"}, "modules.llm.lora.rank");
  refused({"modules.llm.lora={on: q_proj, rank: 4, dropout: 1}"}, "modules.llm.lora.dropout");
  refused({"modules.llm.lora={on: q_proj, rank: 4, dropout: -0.1}"}, "modules.llm.lora.dropout");
  refused({"modules.llm.lora={on: q_proj, rank: 4, alpha: 0}"}, "modules.llm.lora.alpha");
  refused({"modules.llm.lora={rank: 4}"}, "modules.llm.lora.on: missing");
  refused({"modules.llm.lora={on: [], rank: 4}"}, "modules.llm.lora.on: names no layer");
  refused({"modules.llm.lora={on: q_proj}"}, "modules.llm.lora.rank: missing");
  refused({"modules.llm.lora={target_modules: q_proj, r: 4}"}, "target_modules: unknown key: it is called on here");
  refused({"modules.llm.lora={target_modules: q_proj, r: 4}"},
          "modules.llm.lora.r: unknown key: it is called rank here");
  refused({"modules.llm.lora={on: q_proj, rank: 4, bias: all}"}, "the keys here are on, rank, alpha, dropout, rslora");
  refused({"modules.llm.lora={on: q_prjo, rank: 4}"}, "\"q_prjo\" matches no linear layer of llm");
  refused({"modules.llm.lora={on: \"q_proj(\", rank: 4}"}, "modules.llm.lora.on: pattern");
  refused({"modules.llm.lora={on: q_proj, rank: 4}", "modules.llm.trainable=false"}, "modules.llm.trainable: false");
  refused({"modules.eyes.projector.lora={on: linear_3, rank: 4}"}, "modules.eyes.projector.lora.on");
}
