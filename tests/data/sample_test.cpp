// Rows of a sample: expansion, truncation, segment runs.
#include "core/data/sample.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "core/data/records/record_file.h"
#include "tests/data/text_support.h"

using namespace mmt;
using namespace mmt::data;

namespace {

struct SampleFixture {
  ChatTemplate chat{named_template("vicuna_v1"), usual_tokenizer()};
  Preparation preparation;
  explicit SampleFixture(const std::string& name = "vicuna_v1") : chat(named_template(name), usual_tokenizer()) {
    preparation.tokenizer = &usual_tokenizer();
    preparation.chat = &chat;
    preparation.encoders = {fake_encoder("eyes", Modality::image, 3), fake_encoder("ears", Modality::audio, 2),
                            fake_encoder("more_eyes", Modality::image, 5)};
  }
};

ItemShape rows(std::int32_t n) { return {n, n + 1, n, 3, {1, n, 1}}; }

/// The runs must say what the labels say, row by row.
void check_runs(const Prepared& p) {
  std::int32_t at = 0, supervised = 0;
  for (const SegmentRun& run : p.runs) {
    REQUIRE(run.first_row == at);
    REQUIRE(run.length > 0);
    for (std::int32_t r = 0; r < run.length; ++r) {
      const auto next = static_cast<std::size_t>(at + r + 1);
      const bool predicts = next < p.labels.size() && p.labels[next] != kIgnoreLabel;
      REQUIRE(predicts == (r >= run.length - run.supervised));
    }
    if (run.item >= 0) {
      const Item& item = p.items[static_cast<std::size_t>(run.item)];
      REQUIRE(item.first_row == at);
      REQUIRE(item.shape.rows == run.length);
    }
    at += run.length;
    supervised += run.supervised;
  }
  REQUIRE(at == static_cast<std::int32_t>(p.ids.size()));
  REQUIRE(supervised == p.supervised);
  REQUIRE(p.labels.size() == p.ids.size());
  REQUIRE(p.labels[0] == kIgnoreLabel);
}

const char* kPicture = R"({"image": "a", "conversations": [{"from": "human", "value": "<image>\nwhat is this?"},
  {"from": "gpt", "value": "ankle boot"}, {"from": "human", "value": "sure?"}, {"from": "gpt", "value": "yes."}]})";

}  // namespace

TEST_CASE("a slot becomes one item per encoder of its modality in config order") {
  const SampleFixture f;
  const Record r = parse_record(kPicture, "x");
  const Prepared p = assemble(f.preparation, r, {{{rows(4)}}, {{}}, {{rows(3), rows(2)}}}, "x");
  check_runs(p);
  REQUIRE(p.items.size() == 3);
  CHECK(p.items[0].encoder == 0);
  CHECK(p.items[1].encoder == 2);
  CHECK(p.items[2].encoder == 2);
  CHECK(p.items[2].part == 1);
  CHECK(p.items[1].first_row == p.items[0].first_row + 4);
  const Dialogue d = f.chat.build(r, "x");
  CHECK(p.ids.size() == d.ids.size() - 1 + 9);
  // The text around the media is untouched, and the media rows hold the placeholder.
  std::vector<TokenId> without;
  for (std::size_t i = 0; i < p.ids.size(); ++i) {
    const auto first = static_cast<std::size_t>(p.items[0].first_row);
    if (i >= first && i < first + 9) {
      CHECK(p.ids[i] == f.chat.placeholder(Modality::image));
      if (i > first) continue;
    }
    without.push_back(p.ids[i]);
  }
  CHECK(without == d.ids);
  // text, three items, text with the first answer, text with the second answer, the last row
  REQUIRE(p.runs.size() == 7);
  CHECK(p.runs[0].item == -1);
  CHECK(p.runs[4].supervised > 0);
  CHECK(p.runs[6].length == 1);
}

TEST_CASE("a caption right behind its picture is predicted by the picture's last row") {
  const SampleFixture f("plain");
  const Record r = parse_record(R"({"image": "a", "conversations": [{"from": "human", "value": "<image>"},
    {"from": "gpt", "value": "boot"}]})",
                                "x");
  const Prepared p = assemble(f.preparation, r, {{{rows(4)}}, {{}}, {{rows(2)}}}, "x");
  check_runs(p);
  CHECK(p.runs[1].supervised == 0);
  CHECK(p.runs[2].item == 1);
  CHECK(p.runs[2].supervised == 1);
}

TEST_CASE("truncation keeps media whole") {
  SampleFixture f;
  const Record r = parse_record(kPicture, "x");
  const Shapes shapes = {{{rows(16)}}, {{}}, {{rows(1)}}};
  const Prepared whole = assemble(f.preparation, r, shapes, "x");
  const auto total = static_cast<std::int32_t>(whole.ids.size());
  f.preparation.max_sequence = total;
  CHECK_FALSE(assemble(f.preparation, r, shapes, "x").truncated);
  f.preparation.max_sequence = total - 1;
  CHECK_THROWS_WITH(assemble(f.preparation, r, shapes, "x"), Catch::Contains("too_long"));
  f.preparation.over_length = OverLength::text;
  int kept = 0, empty = 0, impossible = 0;
  for (std::int32_t cap = total - 1; cap > 0; --cap) {
    f.preparation.max_sequence = cap;
    try {
      const Prepared p = assemble(f.preparation, r, shapes, "x");
      check_runs(p);
      CHECK(static_cast<std::int32_t>(p.ids.size()) == cap);
      CHECK(p.truncated);
      CHECK(p.items.size() == 2);
      CHECK(p.items[0].shape.rows == 16);
      CHECK(std::count(p.ids.begin(), p.ids.end(), f.chat.placeholder(Modality::image)) == 17);
      ++kept;
    } catch (const DataError& e) {
      (e.fault() == DataFault::no_labels ? empty : impossible) += 1;
      CHECK((e.fault() == DataFault::no_labels || e.fault() == DataFault::too_long));
      if (cap < 17) CHECK(e.fault() == DataFault::too_long);
    }
  }
  CHECK(kept > 5);
  CHECK(empty > 5);
  CHECK(impossible == 16);
}

TEST_CASE("samples without labels and items over the cap are refused") {
  SampleFixture f;
  const Record silent = parse_record(R"({"messages": [{"role": "user", "content": "a"},
    {"role": "assistant", "content": "b", "loss": false}]})",
                                     "x");
  CHECK_THROWS_WITH(assemble(f.preparation, silent, Shapes(3), "x"), Catch::Contains("no_labels"));
  CHECK_NOTHROW(assemble(f.preparation, silent, Shapes(3), "x", true));
  const Record r = parse_record(kPicture, "x");
  f.preparation.encoders[0].max_rows = 4;
  CHECK_THROWS_WITH(assemble(f.preparation, r, {{{rows(4)}}, {{}}, {{rows(1)}}}, "x"),
                    Catch::Contains("cap of 4") && Catch::Contains("eyes"));
  CHECK_NOTHROW(assemble(f.preparation, r, {{{rows(3)}}, {{}}, {{rows(1)}}}, "x"));
  f.preparation.encoders = {fake_encoder("ears", Modality::audio, 2)};
  CHECK_THROWS_AS(assemble(f.preparation, r, {{{}}}, "x"), ConfigError);
}

TEST_CASE("prepare measures files below the media root") {
  const TempFolder folder;
  folder.write("a", "6");
  const SampleFixture f;
  Record r = parse_record(kPicture, "x");
  find_media(r, folder.path(), "x");
  const Prepared p = prepare(f.preparation, r, "x");
  CHECK(p.items[0].shape.rows == 6);
  std::filesystem::remove(folder.path() / "a");
  CHECK_THROWS_WITH(prepare(f.preparation, r, "set:1: sample 0"),
                    Catch::Contains("set:1: sample 0") && Catch::Contains("missing_file"));
}

TEST_CASE("the key changes with everything that changes rows") {
  SampleFixture f;
  std::vector<std::uint64_t> keys = {f.preparation.key()};
  f.preparation.max_sequence = 100;
  keys.push_back(f.preparation.key());
  f.preparation.over_length = OverLength::text;
  keys.push_back(f.preparation.key());
  f.preparation.encoders[0].max_rows = 9;
  keys.push_back(f.preparation.key());
  f.preparation.encoders[0].key = 77;
  keys.push_back(f.preparation.key());
  std::swap(f.preparation.encoders[0], f.preparation.encoders[2]);
  keys.push_back(f.preparation.key());
  const ChatTemplate other(named_template("plain"), usual_tokenizer());
  f.preparation.chat = &other;
  keys.push_back(f.preparation.key());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) CHECK(keys[i] != keys[j]);
  }
}

TEST_CASE("videos and pictures of a sample go to one encoder and have placeholders of their own") {
  const Tokenizer tokenizer = test_tokenizer(
      {"<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"});
  const ChatTemplate chat(named_template("chatml"), tokenizer);
  Preparation preparation;
  preparation.tokenizer = &tokenizer;
  preparation.chat = &chat;
  preparation.encoders = {fake_encoder("eyes", Modality::image, 3)};
  const Record r = parse_record(R"({"video": "v", "image": "p", "conversations": [
    {"from": "human", "value": "<video>then<image>?"}, {"from": "gpt", "value": "yes"}]})",
                                "x");
  // An encoder that takes pictures alone.
  CHECK_THROWS_WITH(assemble(preparation, r, {{{rows(4)}, {rows(2)}}}, "x"),
                    Catch::Contains("holds videos") && Catch::Contains("qwen2_vl"));
  EncoderInput& eyes = preparation.encoders[0];
  eyes.measure_video = eyes.measure;
  const Prepared p = assemble(preparation, r, {{{rows(4)}, {rows(2)}}}, "x");
  check_runs(p);
  REQUIRE(p.items.size() == 2);
  CHECK(p.items[0].media == 0);
  CHECK(std::ranges::count(p.ids, *tokenizer.id_of("<|video_pad|>")) == 4);
  CHECK(std::ranges::count(p.ids, *tokenizer.id_of("<|image_pad|>")) == 2);
  CHECK(p.ids[static_cast<std::size_t>(p.items[0].first_row) - 1] == *tokenizer.id_of("<|vision_start|>"));
  CHECK(p.ids[static_cast<std::size_t>(p.items[0].first_row)] == *tokenizer.id_of("<|video_pad|>"));
}
