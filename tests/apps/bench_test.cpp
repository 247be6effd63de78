// mmtrain-bench: its rows have names, its output can be read by programs. Nothing is compared with a clock.
#ifdef MMT_BENCH  // not built under a sanitizer

#include "tests/apps/fixture.h"

#include <catch2/catch.hpp>

#include <set>
#include <sstream>

using namespace mmt::app_test;
using Catch::Matchers::Contains;

namespace {

Outcome bench(const std::vector<std::string>& arguments, Launch launch = {}) {
  launch.binary = MMT_BENCH;
  const TempFolder folder;
  return run_binary(folder.path(), arguments, launch);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// Checks the keys that programs rely on; returns the names.
std::set<std::string> names_of(const std::string& json_lines) {
  std::set<std::string> names;
  for (const std::string& line : lines_of(json_lines)) {
    INFO(line);
    const auto row = nlohmann::json::parse(line);
    for (const char* key : {"figure", "best", "median"}) CHECK(row.at(key).get<double>() > 0.0);
    CHECK(row.at("figure") == row.at("best"));
    CHECK_FALSE(row.at("unit").get<std::string>().empty());
    CHECK(row.at("limit").is_null() == row.at("share").is_null());
    if (!row.at("limit").is_null()) {
      const double share = row.at("best").get<double>() / row.at("limit").get<double>();
      CHECK(row.at("share").get<double>() == Approx(share));
    }
    CHECK(names.insert(row.at("name")).second);
  }
  return names;
}

}  // namespace

TEST_CASE("bench lists its rows by name") {
  const Outcome o = bench({"--list"});
  INFO(o.err);
  REQUIRE(o.code == 0);
  const std::vector<std::string> lines = lines_of(o.out);
  const std::set<std::string> names(lines.begin(), lines.end());
  CHECK(names.size() == lines.size());
  for (const char* name : {"product/768x3072/M256/forward/f32",
                           "product/50304x768/M512/weight-gradient/bf16",
                           "attention/full/T4096/D64/f32/forward",
                           "attention/causal/T4096/D64/f32/backward/1t",
                           "attention/image/T4096/D128/bf16/forward/tiles",
                           "attention/causal/T4096/D64/gqa4/bf16/backward",
                           "attention/packed-images/T4096/D64/f32/forward",
                           "attention/full/T729/D72/f32/forward",
                           "norm/rms/forward/dram/f32",
                           "norm/layer/input-gradient/cache/bf16",
                           "activation/swiglu/gradient/dram/bf16",
                           "rotary/forward/dram/f32",
                           "embedding/gradient/dram/f32",
                           "loss/V50304/logits/f32",
                           "loss/V32000/head/M694/bf16",
                           "adamw/124M/bf16",
                           "conv/whisper/conv1/forward/f32",
                           "conv/clip/patch14/forward/bf16",
                           "gather/rows/dram/f32",
                           "scatter/add/dram/f32",
                           "data/jpeg-224",
                           "data/log-mel",
                           "data/tokenizer",
                           "reduction/64MiB/2ranks",
                           "reduction/64MiB/4ranks",
                           "step/gpt2-124m/B4T64/f32",
                           "step/gpt2-124m/B1T512/bf16",
                           "step/llava-151m/frozen/f32",
                           "memory/llava-151m/projector/bf16"}) {
    INFO(name);
    CHECK(names.contains(name));
  }
  const Outcome some = bench({"--list", "^gather/.*f32$"});
  CHECK(lines_of(some.out) == std::vector<std::string>{"gather/rows/dram/f32", "gather/rows/cache/f32"});
}

TEST_CASE("bench writes a JSON object a row", "[slow]") {
  const std::vector<std::string> arguments = {
      "^gather/rows/cache/f32$", "^reduction/64MiB/2ranks$", "--json", "--threads", "2", "--repeat", "1"};
  std::set<std::string> names = {"limit/fma/f32/2t", "limit/dot/bf16/2t", "limit/gemm/f32/2t",    "limit/gemm/bf16/2t",
                                 "limit/copy/2t",    "limit/in-place/2t", "gather/rows/cache/f32"};
  // Without mpirun the rows of several ranks are left out.
  const Outcome alone = bench(arguments, {.environment = {{"PATH", "/nonexistent"}}});
  INFO(alone.text());
  REQUIRE(alone.code == 0);
  CHECK(names_of(alone.out) == names);
  CHECK_THAT(alone.err, Contains("reduction/64MiB/2ranks is left out: it needs mpirun"));

  const Outcome o = bench(arguments);
  INFO(o.text());
  REQUIRE(o.code == 0);
  names.insert("reduction/64MiB/2ranks");
  CHECK(names_of(o.out) == names);
}

TEST_CASE("bench started as ranks measures what is for so many") {
  const Outcome o = bench({"^reduction/", "--json", "--repeat", "1"}, {.ranks = 2});
  INFO(o.text());
  REQUIRE(o.code == 0);
  CHECK(names_of(o.out) == std::set<std::string>{"reduction/64MiB/2ranks"});
  const Outcome wrong = bench({"^norm/", "--repeat", "1"}, {.ranks = 2});
  CHECK(wrong.code == 1);
  CHECK_THAT(wrong.err, Contains("only reduction/64MiB/2ranks can be measured"));
}

TEST_CASE("bench refuses what it does not know") {
  const auto refused = [](const std::vector<std::string>& arguments, const std::string& message) {
    const Outcome o = bench(arguments);
    INFO(o.text());
    CHECK(o.code != 0);
    CHECK(o.out.empty());
    CHECK_THAT(o.err, Contains(message));
  };
  refused({"norm/("}, "norm/(");
  refused({"nothing-like-it"}, "--list shows them all");
  refused({"--threads", "0"}, "--threads");
  refused({"--repeat", "x"}, "--repeat");
  refused({"--jason"}, "--jason");
}

#endif
