#include "core/config/reader.h"

#include "core/config/scalars.h"
#include "core/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"

#include <fmt/core.h>
#include <catch2/catch.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

using namespace mmt;
using namespace mmt::config;
namespace fs = std::filesystem;
using Catch::Contains;

namespace {

enum class Precision { fp32, bf16 };

struct Set {
  std::string path;
  double weight = 1.0;
};

struct Example {
  std::string output_dir = "runs/demo";
  std::uint64_t seed = 1;
  std::int64_t steps = 0;
  Precision precision = Precision::fp32;
  std::optional<std::int64_t> microbatches;  // empty: auto
  std::array<double, 2> betas = {0.9, 0.95};
  bool tensorboard = true;
  std::int64_t cache = 1 << 20;
  std::vector<Set> sets;
  std::vector<std::string> names;
};

void bind(Reader& r, Example& e) {
  r.section("run", [&](Reader& run) {
    run.optional("output_dir", as_path(e.output_dir));
    run.optional("seed", e.seed);
  });
  r.section("train", [&](Reader& train) {
    train.required("steps", e.steps, at_least(1));
    train.optional("precision",
                   as_choice(e.precision, {{"fp32", Precision::fp32}, {"bf16", Precision::bf16}}, {"fp8"}));
    train.optional("microbatches", or_word("auto", e.microbatches), at_least(1));
    train.optional("betas", e.betas, Bounds{.min = 0, .max = 1, .below_max = true});
    train.optional("cache", as_bytes(e.cache), at_least(0));
    train.unsupported("compile", "graphs are not captured");
  });
  r.section("data", [&](Reader& data) {
    data.list("sets", [&](Value& v) {
      Set& set = e.sets.emplace_back();
      v.read_map([&](Reader& s) {
        s.required("path", as_path(set.path));
        s.optional("weight", set.weight, above(0));
      });
    });
  });
  r.section("log", [&](Reader& log) { log.optional("tensorboard", e.tensorboard); });
  r.entries("modules", [&](const std::string& name, Value& v) {
    e.names.push_back(name);
    v.read_map([](Reader& m) {
      std::string kind;
      m.required("kind", kind);
    });
  });
}

Example read(Document& document) {
  Example e;
  document.read([&](Reader& r) { bind(r, e); });
  return e;
}

Example read(const std::string& text, std::vector<std::string> overrides = {}) {
  Document document = Document::from_text(text, "t.yaml", "/cfg", std::move(overrides));
  return read(document);
}

std::string mistakes(const std::string& text, std::vector<std::string> overrides = {}) {
  return test::message_of<ConfigError>([&] { read(text, std::move(overrides)); });
}

}  // namespace

TEST_CASE("numbers are read exactly and by our own rules") {
  REQUIRE(parse_int("1e5").value == 100000);
  REQUIRE(parse_int("010").value == 10);
  REQUIRE(parse_int("-3").value == -3);
  REQUIRE(parse_int("1.5e3").value == 1500);
  REQUIRE(parse_int("2.0").value == 2);
  REQUIRE(parse_int("100e-2").value == 1);
  REQUIRE(parse_int("9223372036854775807").value == std::numeric_limits<std::int64_t>::max());
  REQUIRE(parse_int("-9223372036854775808").value == std::numeric_limits<std::int64_t>::min());
  REQUIRE(parse_int("9223372036854775808").fault == NumberFault::out_of_range);
  REQUIRE(parse_int("1e19").fault == NumberFault::out_of_range);
  REQUIRE(parse_int("1e999999999999999999999").fault == NumberFault::out_of_range);
  REQUIRE(parse_int("0e999999999999999999999").value == 0);
  REQUIRE(parse_int("1.5").fault == NumberFault::not_whole);
  REQUIRE(parse_int("1e-1").fault == NumberFault::not_whole);
  REQUIRE(parse_uint("18446744073709551615").value == std::numeric_limits<std::uint64_t>::max());
  REQUIRE(parse_uint("-1").fault == NumberFault::out_of_range);
  REQUIRE(parse_uint("-0").value == 0);
  for (const char* bad :
       {"", "+", "e5", "1e", "1_000", "0x10", "0b1", "1,000", "abc", "1 ", ".", "--1", "1e+", "inf", ".nan"}) {
    INFO(bad);
    REQUIRE(parse_int(bad).fault == NumberFault::not_a_number);
    REQUIRE(parse_double(bad).fault == NumberFault::not_a_number);
  }
  REQUIRE(parse_double("2e-5").value == 2e-5);
  REQUIRE(parse_double("+.5").value == 0.5);
  REQUIRE(parse_double("5.").value == 5);
  REQUIRE(parse_double("010").value == 10);
  REQUIRE(parse_double("1e999").fault == NumberFault::out_of_range);
  REQUIRE(parse_double("1e-999").fault == NumberFault::out_of_range);
  REQUIRE(parse_double("0e-999").value == 0);
  REQUIRE(parse_bytes("4MiB").value == 4 << 20);
  REQUIRE(parse_bytes("1.5 GiB").value == 3ll << 29);
  REQUIRE(parse_bytes("2GB").value == 2000000000);
  REQUIRE(parse_bytes("512").value == 512);
  REQUIRE(parse_bytes("0.1kB").value == 100);
  REQUIRE(parse_bytes("0.1GiB").fault == NumberFault::not_whole);
  REQUIRE(parse_bytes("4M").fault == NumberFault::not_a_number);
  REQUIRE(parse_bytes("MiB").fault == NumberFault::not_a_number);
  REQUIRE(parse_bytes("8388608TiB").fault == NumberFault::out_of_range);
}

TEST_CASE("a config is bound with defaults and paths relative to its file") {
  const Example e = read(R"(
run: {output_dir: out/../here}
train:
  steps: 1e3
  precision: bf16
  microbatches: 4
  betas: [0.8, 0.99]
  cache: 2GiB
data: {sets: [{path: a.json}, {path: /abs/b.json, weight: 0.5}]}
modules: {eyes: {kind: clip}, llm: {kind: llama}}
)",
                         {"data.sets.1.weight=2", "log.tensorboard=false", "data.sets.2={path: c.json}"});
  REQUIRE(e.output_dir == "/cfg/here");
  REQUIRE(e.seed == 1);
  REQUIRE(e.steps == 1000);
  REQUIRE(e.precision == Precision::bf16);
  REQUIRE(e.microbatches == 4);
  REQUIRE(e.betas == std::array<double, 2>{0.8, 0.99});
  REQUIRE(e.cache == 2ll << 30);
  REQUIRE_FALSE(e.tensorboard);
  REQUIRE(e.sets.size() == 3);
  REQUIRE(e.sets[0].path == "/cfg/a.json");
  REQUIRE(e.sets[1].path == "/abs/b.json");
  REQUIRE(e.sets[1].weight == 2);
  REQUIRE(e.sets[2].path == (fs::current_path() / "c.json").string());
  REQUIRE(e.names == std::vector<std::string>{"eyes", "llm"});
}

TEST_CASE("all mistakes are reported at once with their places") {
  const std::string text = mistakes(R"(run:
  sede: 3
  output_dir: ""
train:
  steps: 0
  steps: 5
  precision: bf61
  microbatches: many
  betas: [0.9, 1.0]
  cache: 4M
  compile: true
  lr: 1
data:
  sets:
    - path: [1]
      weight: 0
    - 7
log: {tensorboard: yes, tensorbord: true}
modules: {a.b: {kind: x}, c: {}}
)");
  INFO(text);
  const char* expected[] = {
      "t.yaml:2:3: run.sede: unknown key (did you mean \"seed\"?)",
      "t.yaml:3:15: run.output_dir: expected a path, got an empty text",
      "t.yaml:5:10: train.steps: must be at least 1, got `0`",
      "t.yaml:6:3: train.steps: duplicate key; it is set in line 5 already",
      "t.yaml:7:14: train.precision: expected one of fp32, bf16, got `bf61` (did you mean \"bf16\"?)",
      "t.yaml:8:17: train.microbatches: expected a whole number or `auto`, got `many`",
      "t.yaml:9:16: train.betas.1: must be at least 0 and below 1, got `1.0`",
      "t.yaml:10:10: train.cache: expected a size such as 512MiB, 4GiB or 1000000, got `4M`",
      "t.yaml:11:3: train.compile: not supported yet: graphs are not captured",
      "t.yaml:12:3: train.lr: unknown key (the keys here are steps, precision, microbatches, betas, cache, compile)",
      "t.yaml:15:13: data.sets.0.path: expected a path, got a list",
      "t.yaml:16:15: data.sets.0.weight: must be above 0, got `0`",
      "t.yaml:17:7: data.sets.1: expected a map, got `7`",
      "t.yaml:18:20: log.tensorboard: expected true or false, got `yes`",
      "t.yaml:18:25: log.tensorbord: unknown key (did you mean \"tensorboard\"?)",
      "t.yaml:19:11: modules.a.b: a name must not hold a dot",
      "t.yaml:19:27: modules.c.kind: missing",
  };
  std::string joined;
  for (const char* line : expected) joined += (joined.empty() ? "" : "\n") + std::string(line);
  REQUIRE(text == joined);
}

TEST_CASE("wrong types and empty values are named") {
  REQUIRE_THAT(mistakes("train: {steps: 1.5}"), Contains("train.steps: expected a whole number, got `1.5`"));
  REQUIRE_THAT(mistakes("train: {steps: \"5\"}"), Contains("got the text \"5\""));
  REQUIRE_THAT(mistakes("train: {steps: 1e30}"), Contains("must be between -9223372036854775808 and"));
  REQUIRE_THAT(mistakes("train: {steps: {a: 1}}"), Contains("expected a whole number, got a map"));
  REQUIRE_THAT(mistakes("train:\n  steps:\n"), Contains("t.yaml:2:3: train.steps: the key has no value"));
  REQUIRE_THAT(mistakes("train: 5"), Contains("t.yaml:1:8: train: expected a map, got `5`"));
  REQUIRE_THAT(mistakes("train: {steps: 5, betas: [0.1]}"), Contains("expected 2 values, got 1"));
  REQUIRE_THAT(mistakes("train: {steps: 5, precision: fp8}"), Contains("`fp8` is not supported yet"));
  REQUIRE_THAT(mistakes("train: {steps: 5}\nlog: {tensorboard: \"true\"}"), Contains("expected true or false"));
  REQUIRE_THAT(mistakes("log: {tensorboard: true}"), Contains("train.steps: missing"));
  REQUIRE_THAT(mistakes("train: {steps: 5}\nseed: 1"), Contains("seed: unknown key (did you mean \"run.seed\"?)"));
  REQUIRE_THAT(mistakes("- a\n- b"), Contains("must be a map of keys and values"));
  REQUIRE_THAT(mistakes(""), Contains("t.yaml:1:1: train.steps: missing"));
  REQUIRE_THAT(mistakes("run: {seed: -1}\ntrain: {steps: 5}"),
               Contains("run.seed: must be between 0 and 18446744073709551615"));
}

TEST_CASE("text that is not YAML is refused with its place") {
  REQUIRE_THAT(mistakes("train: {steps: 5"), Contains("t.yaml:1:") && Contains("not valid YAML"));
  REQUIRE_THAT(mistakes("train:\n\tsteps: 5\n"), Contains("line 2 is indented with a tab"));
  REQUIRE_THAT(mistakes("train: {steps: 5}\n---\na: 1\n"), Contains("more than one YAML document"));
  REQUIRE_THAT(mistakes(std::string("train: {steps: 5}\nx: \0", 22)),
               Contains("t.yaml:2:4: the text has a control character (0x00)"));
  REQUIRE_THAT(mistakes("a: \xff"), Contains("t.yaml:1:4: the text is not UTF-8"));
  REQUIRE_THAT(mistakes("a: \xc0\xaf"), Contains("not UTF-8"));
  REQUIRE_THAT(mistakes("? {a: 1}\n: 2\n"), Contains("a key must be a name"));
  REQUIRE_THAT(mistakes("train: {steps: !!int 5}"), Contains("train.steps: tags") && Contains("not supported"));
  REQUIRE_THAT(mistakes("train: {steps: *nobody}"), Contains("not valid YAML"));
  REQUIRE(read("\xEF\xBB\xBFtrain: {steps: 5}\r\n").steps == 5);
}

TEST_CASE("aliases and merge keys are applied") {
  const Example e = read(R"(
train: {steps: 5}
data:
  sets:
    - &a {path: x.json, weight: 3}
    - {<<: *a, path: y.json}
    - *a
)");
  REQUIRE(e.sets.size() == 3);
  REQUIRE(e.sets[1].path == "/cfg/y.json");
  REQUIRE(e.sets[1].weight == 3);
  REQUIRE(e.sets[2].path == "/cfg/x.json");
  REQUIRE_THAT(mistakes("train: {<<: 5, steps: 1}"), Contains("<< takes a map"));
  REQUIRE_THAT(mistakes("train: {<<: [], steps: 1}"), Contains("<< takes a map"));
  REQUIRE_THAT(mistakes("train: &t {steps: *t}"), Contains("refers to a value that contains it"));
}

TEST_CASE("alias bombs and huge documents are refused before they are built") {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    bomb += fmt::format("a{}: &a{} [", i, i);
    for (int j = 0; j < 10; ++j) bomb += fmt::format("{}*a{}", j > 0 ? ", " : "", i - 1);
    bomb += "]\n";
  }
  REQUIRE_THAT(mistakes(bomb), Contains("more than 100000 values, aliases expanded"));
  // Anchors in anchors: every copy kept for an alias counts.
  std::string nested;
  for (int i = 0; i < 60; ++i) nested += fmt::format("&n{} [", i);
  for (int i = 0; i < 20000; ++i) nested += "x, ";
  REQUIRE_THAT(mistakes("a: " + nested + std::string(60, ']')), Contains("more than 100000 values"));
  REQUIRE_THAT(mistakes("a: " + std::string(200, '[')), Contains("nested more than 64 deep"));
  REQUIRE_THAT(mistakes("a: " + std::string(100000, '[')), Contains("t.yaml"));
  REQUIRE_THAT(mistakes("a: " + std::string(100000, '{')), Contains("t.yaml"));
  std::string wide = "a: [";
  for (int i = 0; i < 150000; ++i) wide += "1,";
  REQUIRE_THAT(mistakes(wide + "]"), Contains("more than 100000 values"));
  REQUIRE_THAT(mistakes("a: " + std::string(2 << 20, 'x')), Contains("the limit is 1048576"));
  // Very many mistakes: the first hundred are shown.
  std::string many;
  for (int i = 0; i < 300; ++i) many += fmt::format("unknown{}: 1\n", i);
  REQUIRE_THAT(mistakes(many), Contains("... and 201 more"));
}

TEST_CASE("overrides come from the command line and pass through the same reader") {
  const std::string base = "train: {steps: 5}\n";
  REQUIRE(read(base, {"train.steps=7"}).steps == 7);
  REQUIRE(read("", {"train.steps=7"}).steps == 7);
  REQUIRE(read(base, {"train={steps: 9}"}).steps == 9);
  REQUIRE(read(base, {"data.sets=[{path: a}]"}).sets.size() == 1);
  REQUIRE_THAT(mistakes(base, {"train.steps=x"}),
               Contains("command line: train.steps: expected a whole number, got `x`"));
  REQUIRE_THAT(mistakes(base, {"train.stps=3"}),
               Contains("command line: train.stps: unknown key (did you mean \"steps\"?)"));
  REQUIRE_THAT(mistakes(base, {"train.steps.x=3"}), Contains("command line: train.steps.x: `steps` is a single value"));
  REQUIRE_THAT(mistakes(base, {"train.steps=null"}), Contains("train.steps: missing"));
  REQUIRE_THAT(mistakes(base, {"train.nothing=null"}), Contains("nothing to remove"));
  REQUIRE_THAT(mistakes(base, {"train.steps="}), Contains("no value"));
  REQUIRE_THAT(mistakes(base, {"train..steps=1"}), Contains("empty name between dots"));
  REQUIRE_THAT(mistakes(base, {"run.output_dir=runs/a #2"}), Contains("reads as `runs/a`; put it in quotes"));
  REQUIRE(read(base, {"run.output_dir='/runs/a #2'"}).output_dir == "/runs/a #2");
  REQUIRE_THAT(mistakes(base, {"novalue"}), Contains("not of the form key=value"));
  REQUIRE_THAT(mistakes(base, {"=5"}), Contains("not of the form key=value"));
  REQUIRE_THAT(mistakes(base, {"data.sets=[]", "data.sets.1={path: a}"}), Contains("no index into a list of 0"));
  REQUIRE_THAT(mistakes(base, {"data.sets=[]", "data.sets.x.path=a"}), Contains("no index"));
  REQUIRE_THAT(mistakes(base, {"extends=a.yaml"}), Contains("in files only"));
  REQUIRE_THAT(mistakes(base, {"train.steps=[1"}), Contains("command line: train.steps: not valid YAML"));
}

TEST_CASE("a config extends another and keeps the places of both files") {
  const test::TempFolder folder;
  folder.write("base/base.yaml",
               "train: {steps: 5, precision: bf16}\ndata:\n  sets: [{path: b.json}, {path: c.json}]\nrun: {sed: 1}\n");
  folder.write("mid.yaml", "extends: base/base.yaml\ntrain: {steps: 6}\n");
  const std::string top =
      folder.write("top.yaml", "extends: mid.yaml\ndata: {sets: [{path: t.json}]}\nrun: null\nmodules: {a: {}}\n");
  Document document = Document::load(top);
  try {
    read(document);
    FAIL("a mistake was expected");
  } catch (const ConfigError& e) {
    REQUIRE(e.what() == top + ":4:11: modules.a.kind: missing");
  }
  const std::string good = folder.write("good.yaml", "extends: mid.yaml\nrun: null\n");
  Document second = Document::load(good, {"train.precision=fp32"});
  const Example e = read(second);
  REQUIRE(e.steps == 6);
  REQUIRE(e.precision == Precision::fp32);
  REQUIRE(e.sets.size() == 2);
  REQUIRE(e.sets[0].path == folder / "base/b.json");
  REQUIRE(second.where("data.sets.0.path") == folder / "base/base.yaml:3:17");
  REQUIRE(second.where("train.precision") == "command line");
  REQUIRE(second.where("train.steps") == folder / "mid.yaml:2:16");
  REQUIRE_THROWS_WITH(
      [&] {
        Document third = Document::load(folder.write("third.yaml", "extends: mid.yaml\n"));
        read(third);
      }(),
      Contains("base/base.yaml:4:7: run.sed: unknown key (did you mean \"seed\"?)"));
}

TEST_CASE("broken chains of configs are refused") {
  const test::TempFolder folder;
  folder.write("a.yaml", "extends: b.yaml\n");
  const std::string b = folder.write("b.yaml", "extends: ./a.yaml\n");
  REQUIRE_THROWS_WITH(Document::load(b), Contains("is extended by itself"));
  REQUIRE_THROWS_WITH(Document::load(folder.write("c.yaml", "extends: none.yaml\n")),
                      Contains("c.yaml: extends: ") && Contains("none.yaml: cannot open"));
  REQUIRE_THROWS_WITH(Document::load(folder / "nope.yaml"), Contains("nope.yaml: cannot open"));
  REQUIRE_THROWS_AS(Document::load(folder.path()), ConfigError);
  REQUIRE_THROWS_WITH(Document::load("/dev/zero"), Contains("not a regular file"));
  for (int i = 0; i < 20; ++i)
    folder.write(fmt::format("chain{}.yaml", i), fmt::format("extends: chain{}.yaml\n", i + 1));
  REQUIRE_THROWS_WITH(Document::load(folder / "chain0.yaml"), Contains("more than 16 files"));
  Document wrong = Document::load(folder.write("d.yaml", "extends: [a.yaml]\ntrain: {steps: 1}\n"));
  REQUIRE_THROWS_WITH(read(wrong), Contains("d.yaml:1:1: extends: expected the path of one YAML file"));
  REQUIRE_THAT(mistakes("extends: a.yaml\ntrain: {steps: 1}"), Contains("files only"));
}

TEST_CASE("environment variables are put in where they are asked for") {
  ::setenv("MMT_TEST_DIR", "/data/x y", 1);
  ::setenv("MMT_TEST_STEPS", "12", 1);
  ::unsetenv("MMT_TEST_UNSET");
  REQUIRE(read("train: {steps: 1}\nrun: {output_dir: \"${MMT_TEST_DIR}/out\"}").output_dir == "/data/x y/out");
  REQUIRE(read("train: {steps: '${MMT_TEST_STEPS}'}\n").steps == 12);
}

TEST_CASE("environment variables that are unset or misspelt are mistakes") {
  ::unsetenv("MMT_TEST_UNSET");
  REQUIRE_THAT(mistakes("train: {steps: 1}\nrun: {output_dir: \"${MMT_TEST_UNSET}/o\"}"),
               Contains("t.yaml:2:19: run.output_dir: the environment variable MMT_TEST_UNSET is not set"));
  REQUIRE_THAT(mistakes("train: {steps: 1}\nrun: {output_dir: \"${a-b}\"}"), Contains("must be followed by the name"));
  REQUIRE_THAT(mistakes("train: {steps: 1}\nrun: {output_dir: \"${}\"}"), Contains("must be followed by the name"));
  REQUIRE_THAT(mistakes("train: {steps: 1}\nrun: {output_dir: \"${\"}"), Contains("must be followed by the name"));
  REQUIRE(read("train: {steps: 1}\nrun: {output_dir: \"/$${x}/$y$\"}").output_dir == "/${x}/$y$");
}

TEST_CASE("the resolved config holds every value and reads back to itself") {
  Document document = Document::from_text(R"(
run: {output_dir: "/$${x}/a b\"'\\:#"}
train: {steps: 1e3, betas: [0.8, 2e-5]}
data: {sets: [{path: a.json}]}
modules: {eyes: {kind: "true"}, llm: {kind: "12"}}
)",
                                          "t.yaml", "/cfg", {"train.cache=1KiB"});
  read(document);
  const std::string resolved = document.resolved();
  REQUIRE(resolved == R"(run:
  output_dir: "/$${x}/a b\"'\\:#"
  seed: 1
train:
  steps: 1000
  precision: fp32
  microbatches: auto
  betas: [0.8, 2e-05]
  cache: 1024
data:
  sets:
    -
      path: /cfg/a.json
      weight: 1
log:
  tensorboard: true
modules:
  eyes:
    kind: "true"
  llm:
    kind: "12"
)");
  Document again = Document::from_text(resolved, "resolved.yaml", "/elsewhere");
  const Example e = read(again);
  REQUIRE(e.output_dir == "/${x}/a b\"'\\:#");
  REQUIRE(again.resolved() == resolved);
}

TEST_CASE("a default path is relative to the config file too") {
  Document document = Document::from_text("train: {steps: 1}", "t.yaml", "/cfg");
  REQUIRE(read(document).output_dir == "/cfg/runs/demo");
}

TEST_CASE("two resolved configs are compared key by key") {
  const auto changes =
      diff("a: {x: 1, y: [1, 2], gone: 5}\nb: same\n", "a: {x: 2, y: [1, 2, 3], fresh: {z: t}}\nb: same\n");
  std::vector<std::string> lines;
  for (const Change& c : changes) lines.push_back(to_string(c));
  REQUIRE(lines == std::vector<std::string>{"a.x: 1 -> 2", "a.gone: 5 -> (not set)", "a.y.2: (not set) -> 3",
                                            "a.fresh.z: (not set) -> t"});
  REQUIRE(diff("a: 1", "a: 1").empty());
  REQUIRE_THROWS_AS(diff("a: [", "a: 1"), ConfigError);
}

TEST_CASE("alternatives between keys are checked with both places") {
  const auto check = [](const std::string& text) -> std::string {
    Document document = Document::from_text(text, "t.yaml");
    try {
      document.read([](Reader& r) {
        r.section("train", [](Reader& t) {
          std::int64_t n = 0;
          t.optional("steps", n);
          t.optional("epochs", n);
          t.exactly_one({"steps", "epochs"});
        });
      });
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "";
  };
  REQUIRE(check("train: {epochs: 1}").empty());
  REQUIRE_THAT(check("train: {}"), Contains("train: exactly one of steps, epochs must be set; none is"));
  REQUIRE_THAT(check("train: {steps: 1, epochs: 2}"),
               Contains("t.yaml:1:27: train.epochs: only one of") && Contains("steps is set too (t.yaml:1:9)"));
}

TEST_CASE("checks across keys after the reading name the place") {
  Document document = Document::from_text("train:\n  steps: 5\nlog: {}\n", "t.yaml", ".", {"run.seed=3"});
  read(document);
  REQUIRE_NOTHROW(document.throw_problems());
  document.problem("train.steps", "is not a multiple of 2");
  document.problem("log.every", "is needed");
  document.problem("run.seed", "is odd");
  REQUIRE_THROWS_WITH(document.throw_problems(),
                      "command line: run.seed: is odd\nt.yaml:2:10: train.steps: is not a multiple of 2\n"
                      "t.yaml:3:6: log.every: is needed");
}

TEST_CASE("gathered sources travel as one text") {
  const test::TempFolder folder;
  folder.write("base.yaml", "train: {steps: 5}\nrun: {output_dir: \"${MMT_TEST_DIR}\"}\n");
  ::setenv("MMT_TEST_DIR", "/from/rank0", 1);
  const std::string packed = gather(folder.write("top.yaml", "extends: base.yaml\n"), {"run.seed=4"}).pack();
  // Another rank: other environment, no files.
  ::setenv("MMT_TEST_DIR", "/other", 1);
  Document document{Sources::unpack(packed)};
  const Example e = read(document);
  REQUIRE(e.steps == 5);
  REQUIRE(e.seed == 4);
  REQUIRE(e.output_dir == "/from/rank0");
  for (std::size_t n = 0; n < packed.size(); ++n) REQUIRE_THROWS_AS(Sources::unpack(packed.substr(0, n)), ConfigError);
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string damaged = packed;
    damaged[random() % damaged.size()] = static_cast<char>(random());
    try {
      Sources::unpack(damaged);
    } catch (const ConfigError&) {
    }
  }
}

TEST_CASE("any damage to a document ends in a config error or a good config") {
  const std::string seeds[] = {
      "run: {output_dir: out, seed: 3}\ntrain:\n  steps: 10\n  betas: [0.9, 0.95]\n  cache: 4MiB\ndata:\n  sets:\n    "
      "- &a {path: x, weight: "
      "2}\n    - {<<: *a, path: \"q\\n${HOME}\"}\nlog: {tensorboard: true} # c\nmodules: {e: {kind: 'clip'}, l: {kind: "
      "|\n  text\n  }}\n",
      "a: &x [1, {b: *x}]\n? k\n: v\n--- >\n  folded\n...\n%TAG ! a\n!!set {a, b}\n\"\\u0041\\x\": !foo bar\n- - - [\n",
  };
  const std::string tokens[] = {
      "[",  "]", "{", "}",      ":",  "- ", "\n",  "  ", "&a ", "*a",    "<<: ", "\"",           "'",    "|", ">",
      "#",  "%", "!", "!!str ", "?",  ",",  "${",  "}",  "\t",  "---\n", "\xff", "\xe2\x80\xa8", "null", "~", "1e400",
      "\\", "@", "`", "=",      "\r", "0x", "\x01"};
  std::mt19937 random(7);
  const int rounds =
      std::getenv("MMTRAIN_FUZZ_ROUNDS") != nullptr ? std::atoi(std::getenv("MMTRAIN_FUZZ_ROUNDS")) : 3000;
  int good = 0;
  for (int i = 0; i < rounds; ++i) {
    std::string text = seeds[random() % std::size(seeds)];
    const std::size_t edits = 1 + random() % 6;
    for (std::size_t e = 0; e < edits; ++e) {
      const std::size_t at = random() % (text.size() + 1);
      switch (random() % 4) {
        case 0: text.insert(at, tokens[random() % std::size(tokens)]); break;
        case 1: text.erase(at, random() % 8); break;
        case 2: text.insert(at, text.substr(random() % (text.size() + 1), random() % 40)); break;
        default:
          if (at < text.size()) text[at] = static_cast<char>(random());
      }
    }
    try {
      read(text);
      ++good;
    } catch (const ConfigError& error) {
      REQUIRE(std::string(error.what()).find("t.yaml") != std::string::npos);
    }
    try {
      read("train: {steps: 5}", {text.substr(0, 40), "data.sets=" + text});
    } catch (const ConfigError&) {
    }
  }
  REQUIRE(good > 0);
  REQUIRE(good < rounds);
}
