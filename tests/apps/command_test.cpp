// What the other commands print, for people and for programs, and how they end.
#include "tests/apps/fixture.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <set>

using namespace mmt::app_test;
using Catch::Contains;
using nlohmann::json;

namespace {

json require_json(const Outcome& o) {
  INFO(o.text());
  REQUIRE(o.code == 0);
  return json::parse(o.out);
}

}  // namespace

TEST_CASE("help and version need no launcher and usage errors end with 2") {
  const TempFolder folder;
  const auto run = [&](const std::vector<std::string>& arguments) { return run_binary(folder.path(), arguments); };
  const Outcome help = run({"--help"});
  CHECK(help.code == 0);
  for (const char* command :
       {"train", "eval", "generate", "dump", "index", "profile", "validate", "inspect", "env", "version"}) {
    CHECK_THAT(help.out, Contains(command));
    const Outcome own = run({command, "--help"});
    CHECK(own.code == 0);
    CHECK_THAT(own.out, Contains("--help"));
  }
  const Outcome version = run({"version"});
  CHECK(version.code == 0);
  CHECK_THAT(version.out, Catch::StartsWith("mmtrain "));
  CHECK(run({}).code == 2);
  CHECK(run({"trian", "x.yaml"}).code == 2);
  CHECK(run({"train"}).code == 2);
  CHECK(run({"train", "x.yaml", "--no-such-option"}).code == 2);
  CHECK(run({"dump", "x.yaml"}).code == 2);
  CHECK(run({"generate", "x.yaml", "--top-p", "2"}).code == 2);
  const Outcome missing = run({"train", "nothing.yaml"});
  CHECK(missing.code == 2);
  CHECK_THAT(missing.err, Contains("nothing.yaml"));
}

TEST_CASE("env describes the machine once for all ranks") {
  const TempFolder folder;
  const json alone = require_json(run_binary(folder.path(), {"env", "--json"}));
  CHECK(alone.at("ranks") == "1");
  CHECK(alone.at("OMP_NUM_THREADS") == "1");
  const json least =
      require_json(run_binary(folder.path(), {"env", "--json"}, {.environment = {{"MMTRAIN_ISA", "portable"}}}));
  CHECK(least.at("instruction set") == "portable");
  CHECK(least.at("attention in bf16") == "widened to f32");
  CHECK(least.at("matrix products").get<std::string>().find("oneDNN 2.") == 0);
  const json two = require_json(run_binary(folder.path(), {"env", "--json"}, {.ranks = 2}));
  CHECK(two.at("ranks") == "2");
  CHECK(two.at("instruction set") == alone.at("instruction set"));
}

TEST_CASE("index counts rows and finds what it knows again") {
  const TinyRun tiny;
  const json first = require_json(tiny.run("index", {}, {.ranks = 2}, {"--json"}));
  REQUIRE(first.size() == 5);
  std::set<std::string> names;
  for (const json& set : first) {
    names.insert(set.at("name").get<std::string>());
    CHECK(set.at("samples") == 12);
    CHECK(set.at("usable") == 12);
    CHECK(set.at("faults").empty());
    CHECK(set.at("rows").get<int>() > set.at("supervised").get<int>());
    CHECK(std::filesystem::exists(set.at("index").get<std::string>()));
  }
  CHECK(names == std::set<std::string>{"pictures", "sounds", "both", "text", "eval"});
  CHECK(first[2].at("items") == 24);
  CHECK(first[3].at("items") == 0);
  // Pictures: 16 patches each stand among the rows of the text around them.
  CHECK(first[0].at("rows").get<int>() > 12 * 16);
  CHECK(require_json(tiny.run("index", {}, {}, {"--json"})) == first);
  const Outcome again = tiny.run("index");
  CHECK_THAT(again.out + again.err, Contains("12 known before"));
}

TEST_CASE("validate looks at every sample and inspect at every tensor") {
  const TinyRun tiny;
  const json valid = require_json(tiny.run("validate", {}, {}, {"--json", "--decode"}));
  CHECK(valid.at("valid") == true);
  REQUIRE(valid.at("sets").size() == 5);
  std::filesystem::remove(tiny.folder() / "media" / "p3.png");
  const Outcome broken = tiny.run("validate", {}, {}, {"--json"});
  CHECK(broken.code == 1);
  const json report = json::parse(broken.out);
  CHECK(report.at("valid") == false);
  CHECK(report.at("sets")[0].at("usable") == 11);
  CHECK(report.at("sets")[0].at("faults").at("missing_file") == 1);
  CHECK_THAT(report.at("sets")[0].at("messages")[0].get<std::string>(), Contains("p3.png"));
  write_picture(tiny.folder() / "media" / "p3.png", 3, 3);

  const Outcome trained =
      tiny.run("train", {"train.steps=2", "eval.every_steps=2", "modules.ears.trainable=false"}, {.ranks = 2});
  INFO(trained.text());
  REQUIRE(trained.code == 0);
  CHECK_THAT(trained.out + trained.err, Contains("data of this run"));
  const json held = require_json(run_binary(tiny.folder(), {"inspect", tiny.checkpoint(2).string(), "--json"}));
  CHECK(held.at("step") == 2);
  CHECK(held.at("samples") == 32);
  CHECK_THAT(held.at("config").get<std::string>(), Contains("global_batch_size: 16"));
  CHECK(held.at("metrics").contains("answer_accuracy"));
  int frozen = 0, moments = 0;
  for (const json& tensor : held.at("tensors")) {
    const std::string name = tensor.at("name").get<std::string>();
    CHECK(tensor.at("dtype") == "f32");
    frozen += tensor.at("frozen").get<bool>() ? 1 : 0;
    CHECK(tensor.at("frozen").get<bool>() == name.starts_with("model/ears/"));
    moments += name.starts_with("optimizer/first_moment/") ? 1 : 0;
    if (name == "model/llm/model.embed_tokens.weight") CHECK(tensor.at("shape") == json({265, 32}));
  }
  CHECK(frozen > 10);
  CHECK(moments > 20);
  for (const std::string& path : {tiny.run_folder().string(), tiny.config()}) {
    CHECK(require_json(run_binary(tiny.folder(), {"inspect", path, "--json"})).at("path") == held.at("path"));
  }
}

TEST_CASE("inspect lists published weights and says what is wrong with a file") {
  const TempFolder folder;
  const std::string header = R"({"lm_head.weight":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}})";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  write_text(folder / "model.safetensors", bytes + header + std::string(12, 'x'));
  for (const std::string& path : {folder.path().string(), folder / "model.safetensors"}) {
    const json held = require_json(run_binary(folder.path(), {"inspect", path, "--json"}));
    REQUIRE(held.at("tensors").size() == 1);
    CHECK(held["tensors"][0].at("name") == "lm_head.weight");
    CHECK(held["tensors"][0].at("shape") == json({2, 3}));
    require_outcome(run_binary(folder.path(), {"inspect", path}), 0, "1 tensors, 6 elements, 12B");
  }
  write_text(folder / "model.safetensors", bytes + header + std::string(11, 'x'));
  require_outcome(run_binary(folder.path(), {"inspect", folder / "model.safetensors"}), kFailed,
                  "model.safetensors: its tensors end at byte 12 of the data, which has 11");
}
