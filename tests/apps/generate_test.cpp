// Answers: the key/value cache against recomputation, evaluation against generation, draws against their seed.
#include "tests/apps/dump_file.h"
#include "tests/apps/fixture.h"

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <sstream>

using namespace mmt::app_test;
using nlohmann::json;

namespace {

std::vector<json> json_lines(const std::string& text) {
  std::vector<json> list;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) list.push_back(json::parse(line));
  return list;
}

std::vector<json> generate(const TinyRun& tiny, std::vector<std::string> more, const Launch& launch = {}) {
  more.emplace_back("--json");
  return json_lines(require_done(tiny.run("generate", {}, launch, more)).out);
}

/// A model that answers some of the evaluation's questions.
void train(const TinyRun& tiny) { require_done(tiny.run("train", {"train.steps=60"})); }

}  // namespace

TEST_CASE("generated answers are those that evaluation counts") {
  const TinyRun tiny;
  train(tiny);
  const json eval = json::parse(require_done(tiny.run("eval", {}, {}, {"--json"})).out);
  REQUIRE(eval.at("step") == 60);
  REQUIRE(eval.at("sets").size() == 1);
  const json& set = eval.at("sets")[0];
  CHECK(set.at("name") == "eval");
  CHECK(set.at("samples") == 12);
  CHECK(set.at("answers") == 12);
  const std::vector<json> answers = generate(tiny, {"--samples", "12"});
  REQUIRE(answers.size() == 12);
  const auto right = std::ranges::count_if(
      answers, [](const json& a) { return a.at("ended") && a.at("answer") == a.at("reference"); });
  CHECK(set.at("answer_accuracy").get<double>() == Approx(static_cast<double>(right) / 12.0));
  CHECK(right > 0);
  CHECK(right < 12);  // else this model proves nothing
  // The same on several ranks.
  const json many = json::parse(require_done(tiny.run("eval", {}, {.ranks = 3}, {"--json"})).out).at("sets")[0];
  for (const char* key : {"samples", "failed", "tokens", "token_accuracy", "answers", "answer_accuracy"})
    CHECK(many.at(key) == set.at(key));
  CHECK(many.at("loss").get<double>() == Approx(set.at("loss").get<double>()).epsilon(1e-5));
  CHECK(generate(tiny, {"--samples", "12"}, {.ranks = 2}) == answers);
  // A vocabulary over two ranks.
  const Set tp = {"parallel.layout.all.tp=2"};
  const json shared = json::parse(require_done(tiny.run("eval", tp, {.ranks = 2}, {"--json"})).out).at("sets")[0];
  for (const char* key : {"samples", "failed", "tokens", "token_accuracy", "answers", "answer_accuracy"})
    CHECK(shared.at(key) == set.at(key));
  CHECK(shared.at("loss").get<double>() == Approx(set.at("loss").get<double>()).epsilon(1e-5));
  CHECK(json_lines(require_done(tiny.run("generate", tp, {.ranks = 2}, {"--samples", "12", "--json"})).out) == answers);
  // The training's own last evaluation found the same.
  CHECK(read_metrics(tiny.run_folder()).at(60).at("eval/answer_accuracy").get<double>() ==
        Approx(set.at("answer_accuracy").get<double>()));
}

namespace {

void check_answers(const TinyRun& tiny, const std::vector<const char*>& precisions) {
  train(tiny);
  for (const char* precision : precisions) {
    const std::string set_precision = std::string("train.precision=") + precision;
    const Outcome o = require_done(tiny.run("generate", {set_precision}, {}, {"--samples", "12", "--json"}));
    const std::vector<json> answers = json_lines(o.out);
    REQUIRE(answers.size() == 12);
    // The generated answers become the labels of a data set.
    std::istringstream in(read_text(tiny.folder() / "eval.jsonl"));
    std::string lines;
    std::size_t next = 0, used = 0, tokens = 0;
    for (std::string line; std::getline(in, line); ++next) {
      json record = json::parse(line);
      REQUIRE(record.at("id") == answers[next].at("id"));
      if (!answers[next].at("ended").get<bool>()) continue;  // a label ends the turn, this answer does not
      record["messages"][1]["content"] = answers[next].at("answer");
      ++used;
      tokens += answers[next].at("tokens").get<std::size_t>();
      lines += record.dump() + "\n";
    }
    write_text(tiny.folder() / "own.jsonl", lines);
    const std::string init = "={checkpoint: " + tiny.checkpoint(60).string() + "}";
    const auto file = tiny.folder() / fmt::format("{}.h5", precision);
    require_done(tiny.run("dump",
                          {set_precision, "modules.eyes.init" + init, "modules.ears.init" + init,
                           "modules.llm.init" + init, "data.sets=[{path: own.jsonl, format: messages}]",
                           "data.shuffle=false", fmt::format("train.global_batch_size={}", used)},
                          {}, {"--logits", "--out", file.string()}));
    const DumpFile dump = read_dump(file);
    REQUIRE(used > 6);
    REQUIRE(dump.samples.size() == used);
    std::size_t compared = 0, other = 0;
    for (const auto& [place, s] : dump.samples) {
      const auto vocabulary = static_cast<std::size_t>(s.logits.shape.at(1));
      for (std::size_t t = 0; t + 1 < s.ids.size(); ++t) {
        if (s.labels[t + 1] == -100) continue;
        const float* row = s.logits.values.data() + t * vocabulary;
        const auto best = std::max_element(row, row + vocabulary) - row;
        ++compared;
        other += best == s.labels[t + 1] ? 0 : 1;
      }
    }
    CHECK(compared == tokens);
    CHECK(compared > 40);
    CHECK(other == 0);
  }
}

}  // namespace

TEST_CASE("answers with the cache are the arg max of logits computed without it") {
  check_answers(TinyRun(), {"fp32", "bf16"});
}

TEST_CASE("answers about pictures of any size go on at the position behind them") {
  const TinyRun tiny;
  tiny.use_pictures_of_any_size();
  check_answers(tiny, {"fp32"});
}

TEST_CASE("draws are addressed by seed and sample") {
  const TinyRun tiny;
  train(tiny);
  const std::vector<std::string> warm = {"--samples", "12", "--temperature", "1.5"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), warm.begin(), warm.end());
    return generate(tiny, more);
  };
  const std::vector<json> seven = with({"--seed", "7"});
  CHECK(with({"--seed", "7"}) == seven);
  CHECK(with({"--seed", "8"}) != seven);
  const std::vector<json> greedy = generate(tiny, {"--samples", "12"});
  CHECK(seven != greedy);
  CHECK(with({"--top-p", "1e-6"}) == greedy);  // the likeliest token alone
  // An answer does not depend on how many were asked for before it.
  const std::vector<json> four = generate(tiny, {"--samples", "4", "--temperature", "1.5", "--seed", "7"});
  REQUIRE(four.size() == 4);
  CHECK(std::equal(four.begin(), four.end(), seven.begin()));
}

TEST_CASE("a prompt with files is answered as the same sample is") {
  const TinyRun tiny;
  train(tiny);
  const std::vector<json> samples = generate(tiny, {"--samples", "3"});
  const auto own = [&](const std::vector<std::string>& arguments) {
    const std::vector<json> list = generate(tiny, arguments);
    REQUIRE(list.size() == 1);
    return list[0].at("answer");
  };
  CHECK(own({"--prompt", "<image>\nwhere is it?", "--image", "media/p12.png"}) == samples[0].at("answer"));
  CHECK(own({"--prompt", "<audio>\nhow many?", "--audio", "media/s13.wav"}) == samples[1].at("answer"));
  CHECK(own({"--prompt", "colour 2?"}) == samples[2].at("answer"));
  const Outcome missing = tiny.run("generate", {}, {}, {"--prompt", "<image> and <image>", "--image", "media/p1.png"});
  INFO(missing.text());
  CHECK(missing.code == 2);
  CHECK_THAT(missing.err, Catch::Contains("more <image>"));
  const Outcome nothing = tiny.run("generate", {"run.output_dir=nothing"});
  CHECK(nothing.code == 2);
  CHECK_THAT(nothing.err, Catch::Contains("holds no checkpoint"));
}
