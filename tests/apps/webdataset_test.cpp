// Training from tar shards is training from the same samples as files.
#include <catch2/catch.hpp>

#include "tests/apps/fixture.h"
#include "tests/data/tar_support.h"

using namespace mmt::app_test;
using nlohmann::json;

TEST_CASE("a run from shards computes what a run from files does") {
  const TinyRun tiny;
  mmt::data::TarMembers shards[3];
  const json records = json::parse(read_text(tiny.folder() / "pictures.json"));
  for (std::size_t i = 0; i < records.size(); ++i) {
    const std::string key = records[i]["id"];
    auto& shard = shards[i * 3 / records.size()];
    shard.emplace_back(key + ".png", read_text(tiny.folder() / records[i]["image"].get<std::string>()));
    shard.emplace_back(key + ".json", json{{"conversations", records[i]["conversations"]}}.dump());
  }
  for (int s = 0; s < 3; ++s) {
    write_text(tiny.folder() / ("shards/train-0" + std::to_string(s) + ".tar"), mmt::data::tar_of(shards[s]));
  }
  const Set base = {"train.steps=3", "learning_rate.warmup_steps=0", "train.global_batch_size=8", "eval={sets: []}"};
  const Set files = {"data.sets=[{path: pictures.json, format: llava}]", "run.output_dir=files"};
  const Set tars = {"data.sets=[{path: \"shards/train-{00..02}.tar\", format: webdataset}]", "run.output_dir=tars"};
  require_done(tiny.run("train", with(base, files)));
  require_done(tiny.run("train", with(base, tars), {.ranks = 2}));
  const auto a = read_metrics(tiny.folder() / "files"), b = read_metrics(tiny.folder() / "tars");
  REQUIRE(a.size() == 3);
  REQUIRE(b.size() == 3);
  for (const auto& [step, values] : a) {
    // Two ranks add in another order: rounding of f32.
    CHECK(values.at("loss").get<double>() == Approx(b.at(step).at("loss").get<double>()).epsilon(1e-5));
  }
  // Only the shards' folder has to be there, a folder names them, too, and what is kept is beside them.
  require_outcome(tiny.run("validate", with(base, {"data.sets=[{path: shards/, format: webdataset}]"})), 0,
                  "12 samples, 12 usable");
  require_outcome(tiny.run("validate", with(base, {"data.sets=[{path: shards, format: webdataset, media_root: x}]"})),
                  kUsage, "leave this key out");
  const std::string cut = read_text(tiny.folder() / "shards/train-01.tar");
  write_text(tiny.folder() / "shards/train-01.tar", cut.substr(0, cut.size() / 2));
  require_outcome(tiny.run("train", with(base, tars), {.ranks = 2}), kUsage, "train-01.tar: is cut off inside");
}
