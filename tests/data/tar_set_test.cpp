// Samples of tar shards: records, media, faults, the second start, and the whole way to loaded rows.
#include "core/data/records/tar_set.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "core/data/loader.h"
#include "tests/data/tar_support.h"
#include "tests/data/text_support.h"
#include "tests/support/message_of.h"

using namespace mmt;
using namespace mmt::data;
using Catch::Contains;
using mmt::test::message_of;

namespace {

std::string content_of(const MediaFile& file) {
  std::string text;
  for (const std::byte b : file.source.read("x", 1 << 20, DataFault::image_too_large)) text += static_cast<char>(b);
  return text;
}

/// "user: [jpg] | assistant: text", media as their names and contents.
std::string told(const Record& r) {
  std::string text;
  for (const Turn& turn : r.turns) {
    text += (text.empty() ? "" : " | ") + std::string(name_of(turn.role)) + ":";
    for (const Part& p : turn.parts) {
      const auto m = static_cast<std::size_t>(p.media);
      text += p.media < 0 ? " " + p.text : " [" + r.media[m].path + "=" + content_of(r.media[m]) + "]";
    }
  }
  return text;
}

struct ShardFixture {
  TempFolder folder;
  SetSpec spec;
  explicit ShardFixture(const std::vector<TarMembers>& shards) {
    for (std::size_t i = 0; i < shards.size(); ++i)
      folder.write("set/" + std::to_string(i) + ".tar", tar_of(shards[i]));
    spec.path = folder / "set";
    spec.format = SetFormat::webdataset;
  }
  std::unique_ptr<const TarSet> open() const { return TarSet::open(spec, {}); }
  std::string fault(std::int64_t i) const {
    return message_of<DataError>([&] { open()->read(i); });
  }
};

const std::string kDialogue = R"({"conversations": [{"from": "human", "value": "<image>\nwhat?"}, )"
                              R"({"from": "gpt", "value": "a boot"}]})";

}  // namespace

TEST_CASE("a picture and a text make a caption record") {
  const ShardFixture set(
      {{{"d/0001.jpg", "P"}, {"d/0001.txt", " a boot\n"}, {"d/0001.cls", "7"}, {"0002.TXT", "text alone"}},
       {{"0003.img10.png", "c"},
        {"0003.0.webp", "z"},
        {"0003.img2.png", "b"},
        {"0003.mp3", "m"},
        {"0003.jpg", "a"},
        {"0003.json", R"({"caption": "four", "width": 3})"}}});
  const auto records = set.open();
  REQUIRE(records->size() == 3);
  CHECK(told(records->read(0)) == "user: [jpg=P] | assistant: a boot");
  CHECK(records->read(0).id == "d/0001");
  CHECK(told(records->read(1)) == "user: | assistant: text alone");
  CHECK(told(records->read(2)) == "user: [jpg=a] [0.webp=z] [img2.png=b] [img10.png=c] [mp3=m] | assistant: four");
  CHECK(records->where(2).ends_with("1.tar: sample 2"));
}

TEST_CASE("a dialogue in json names the sample's fields or takes them in order") {
  const std::string named = R"({"id": "own", "images": ["img2.png", "0002.IMG1.png", "d/0002.img2.png"], "messages": [
    {"role": "user", "content": "<image><image><image>"}, {"role": "assistant", "content": "ok"}]})";
  const std::string parts =
      R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "img1.png"},
    {"type": "audio", "audio": "wav"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]},
    {"role": "assistant", "content": "ok"}]})";
  const ShardFixture set({{{"0001.png", "P"}, {"0001.json", kDialogue}},
                          {{"d/0002.img1.png", "x"}, {"d/0002.img2.png", "y"}, {"d/0002.json", named}},
                          {{"0003.img1.png", "u"}, {"0003.wav", "w"}, {"0003.json", parts}}});
  const auto records = set.open();
  CHECK(told(records->read(0)) == "user: [png=P] \nwhat? | assistant: a boot");
  const Record r = records->read(1);
  CHECK(r.id == "own");
  CHECK(told(r) == "user: [img2.png=y] [0002.IMG1.png=x] [d/0002.img2.png=y] | assistant: ok");
  CHECK(told(records->read(2)) == "user: [img1.png=u] [wav=w] [data:image/png;base64, 2 bytes=hi] | assistant: ok");
}

TEST_CASE("videos of shards are gif or webp fields or lists of pictures") {
  const std::string frames = R"({"videos": [["1.jpg", "0003.2.JPG"]], "image": "9.jpg", "messages": [
    {"role": "user", "content": "<video><image>"}, {"role": "assistant", "content": "ok"}]})";
  const std::string named = R"({"messages": [{"role": "user", "content": [{"type": "video", "video": "webp"},
    {"type": "text", "text": "<image>"}]}, {"role": "assistant", "content": "ok"}]})";
  const std::string implied = R"({"videos": ["webp"], "messages": [{"role": "user", "content": "<image><video>"},
    {"role": "assistant", "content": "ok"}]})";
  const ShardFixture set({{{"0001.gif", "g"}, {"0001.jpg", "p"}, {"0001.video2.webp", "w"}, {"0001.txt", "two films"}},
                          {{"0003.1.jpg", "a"}, {"0003.2.jpg", "b"}, {"0003.9.jpg", "c"}, {"0003.json", frames}},
                          {{"0004.webp", "w"}, {"0004.json", R"({"video": "webp", "conversations": [
                             {"from": "human", "value": "<video>"}, {"from": "gpt", "value": "x"}]})"}},
                          {{"0005.webp", "w"}, {"0005.png", "p"}, {"0005.json", implied}},
                          {{"0006.webp", "w"}, {"0006.json", named}}});
  const auto records = set.open();
  CHECK(told(records->read(0)) == "user: [jpg=p] [gif=g] [video2.webp=w] | assistant: two films");
  const Record r = records->read(1);
  REQUIRE(r.media.size() == 2);
  CHECK(r.media[0].modality == Modality::video);
  CHECK(r.media[0].source.pictures("x")[1].name() == "0003.2.jpg");
  CHECK(r.media[1].path == "9.jpg");
  // A field that is named as a video is not implied as a picture, too.
  CHECK(told(records->read(2)) == "user: [webp=w] | assistant: x");
  CHECK(told(records->read(3)) == "user: [png=p] [webp=w] | assistant: ok");
  CHECK(told(records->read(4)) == "user: [webp=w] <image> | assistant: ok");
}

TEST_CASE("samples of shards that cannot be used say why") {
  const std::string elsewhere = R"({"image": "../0009.png", "conversations": [{"from": "human", "value": "<image>"},
    {"from": "gpt", "value": "x"}]})";
  const ShardFixture set(
      {{{"0000.jpg", "P"}, {"0001.txt", "a"}, {"0001.TXT", "b"}, {"0002.json", "{"}, {"0003.txt", "\xff"}},
       {{"0004.png", "p"},
        {"0004.json", elsewhere},
        {"0005.bmp", "g"},
        {"0005.txt", "t"},
        {"Track 2.0.mp3", "m"},
        {"Track 2.1.mp3", "m"},
        {"0006.jpg", "p"},
        {"0006.json",
         R"({"messages": [{"role": "user", "content": "no slot"}, {"role": "assistant", "content": "x"}]})"}}});
  CHECK_THAT(set.fault(0), Contains("0.tar: sample 0 (id 0000)") && Contains("no text") && Contains("--sort=name"));
  CHECK_THAT(set.fault(1), Contains("bad_record") && Contains("\"txt\" is there twice") && Contains("0001.txt"));
  CHECK_THAT(set.fault(2), Contains("0002.json: not JSON: at 1:2"));
  CHECK_THAT(set.fault(3), Contains("0003.txt is not UTF-8"));
  CHECK_THAT(set.fault(4), Contains("missing_file") && Contains("\"../0009.png\"") && Contains("fields are png, json"));
  CHECK_THAT(set.fault(5), Contains("unsupported_media") && Contains("0005.bmp"));
  CHECK_THAT(set.fault(6), Contains("no text"));  // webdataset#237: two fields, "0.mp3" and "1.mp3", of one key
  CHECK_THAT(set.fault(7), Contains("placeholder_count") && Contains("1 image file"));
  const ShardFixture empty(std::vector<TarMembers>{TarMembers{{"noname", "x"}}});
  CHECK_THAT(message_of<ConfigError>([&] { empty.open(); }), Contains("no sample: members are called KEY.FIELD"));
}

TEST_CASE("samples do not cross shards and all are there, in any order and from many threads") {
  std::vector<TarMembers> shards(7);
  for (std::size_t s = 0; s < shards.size(); ++s) {
    for (int k = 0; k < 20; ++k) {
      // The last key of a shard is the first of the next one: two samples, not one.
      const std::string key = std::to_string(s * 19 + static_cast<std::size_t>(k));
      shards[s].emplace_back(key + ".jpg", "picture " + key);
      shards[s].emplace_back(key + ".txt", "text of shard " + std::to_string(s));
    }
  }
  const ShardFixture set(shards);
  OpenOptions options;
  options.threads = 4;
  const auto records = TarSet::open(set.spec, options);
  REQUIRE(records->size() == 140);
  std::atomic<int> wrong = 0;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::int64_t n = 0; n < 140; ++n) {
        const std::int64_t i = (n * 37 + t) % 140, s = i / 20;
        const std::string key = std::to_string(s * 19 + i % 20);
        wrong +=
            told(records->read(i)) != "user: [jpg=picture " + key + "] | assistant: text of shard " + std::to_string(s);
      }
    });
  }
  threads.clear();
  CHECK(wrong == 0);
}

TEST_CASE("a second start reads no shard again, and a changed one alone") {
  ShardFixture set({{{"a.txt", "1"}, {"b.txt", "2"}}, {{"c.txt", "3"}}});
  const auto first = set.open();
  CHECK(first->scanned() == 2);
  const auto second = set.open();
  CHECK(second->scanned() == 0);
  CHECK(second->stamp() == first->stamp());
  CHECK(told(second->read(2)) == "user: | assistant: 3");
  set.folder.write("set/1.tar", tar_of({{"c.txt", "3"}, {"d.txt", "four"}}));
  const auto third = set.open();
  CHECK(third->scanned() == 1);
  CHECK(third->stamp() != first->stamp());
  CHECK(told(third->read(3)) == "user: | assistant: four");
  // The same size at another time.
  const std::filesystem::path shard = set.folder / "set/0.tar";
  std::filesystem::last_write_time(shard, std::filesystem::last_write_time(shard) + std::chrono::seconds(2));
  CHECK(set.open()->scanned() == 1);
  OpenOptions reader;
  reader.write = false;
  for (const auto& entry : std::filesystem::directory_iterator(set.folder.path())) {
    if (entry.path().extension() == ".mmtshards") set.folder.write(entry.path().filename().string(), "damaged");
  }
  CHECK(TarSet::open(set.spec, reader)->scanned() == 2);
  CHECK(TarSet::open(set.spec, reader)->scanned() == 2);
  CHECK(set.open()->scanned() == 2);
  CHECK(set.open()->scanned() == 0);
}

TEST_CASE("a shard that shrinks or goes away after the start gives bad samples") {
  const ShardFixture set(std::vector<TarMembers>{TarMembers{{"a.jpg", std::string(9000, 'p')}, {"a.txt", "1"}}});
  const auto records = set.open();
  const Record r = records->read(0);
  std::filesystem::resize_file(set.folder / "set/0.tar", 5000);
  CHECK_THAT(message_of<DataError>([&] { content_of(r.media[0]); }), Contains("shrunk"));
  CHECK_THAT(message_of<DataError>([&] { records->read(0); }), Contains("shrunk"));
  const auto never_read =
      ShardFixture(std::vector<TarMembers>{TarMembers{{"a.txt", "1"}}}).open();  // its folder is gone by now
  CHECK_THAT(message_of<DataError>([&] { never_read->read(0); }), Contains("missing_file") && Contains("0.tar"));
}

TEST_CASE("a stopped start leaves what an earlier one knew") {
  const ShardFixture set({{{"a.txt", "1"}}, {{"b.txt", "2"}}});
  std::atomic<bool> stop = true;
  OpenOptions options;
  options.stop = &stop;
  CHECK_FALSE(TarSet::open(set.spec, options)->whole());
  CHECK(set.open()->scanned() == 2);
}

TEST_CASE("shards are indexed and loaded as files are") {
  // The same samples as files and as members: the same entries, the same rows.
  const TempFolder folder;
  TarMembers members;
  std::string lines;
  for (int i = 0; i < 30; ++i) {
    const std::string key = "s" + std::to_string(i), rows = std::to_string(3 + i % 4), answer = "boot " + key;
    members.emplace_back(key + ".jpg", i == 7 ? "bad" : rows);
    members.emplace_back(key + ".json", R"({"conversations": [{"from": "human", "value": "<image>\nwhat?"},
      {"from": "gpt", "value": ")" + answer +
                                            "\"}]}");
    folder.write(key + ".jpg", i == 7 ? "bad" : rows);
    lines += R"({"id": ")" + key + R"(", "image": ")" + key +
             R"(.jpg", "conversations": [{"from": "human", "value": "<image>\nwhat?"}, {"from": "gpt", "value": ")" +
             answer + "\"}]}\n";
  }
  const ChatTemplate chat{named_template("vicuna_v1"), usual_tokenizer()};
  Preparation preparation;
  preparation.tokenizer = &usual_tokenizer();
  preparation.chat = &chat;
  preparation.encoders = {fake_encoder("eyes", Modality::image, 3)};
  const SetSpec as_files{"files", folder.write("set.jsonl", lines), folder.path()};
  const SetSpec as_shard{"shard", folder.write("shards/0.tar", tar_of(members)), {}, {}, SetFormat::webdataset};
  const DatasetIndex files = DatasetIndex::build(as_files, preparation, {});
  const DatasetIndex shard = DatasetIndex::build(as_shard, preparation, {});
  REQUIRE(shard.complete());
  REQUIRE(shard.usable() == files.usable());
  CHECK(shard.usable().size() == 29);
  CHECK_THAT(shard.explain(7, preparation), Contains("0.tar: sample 7 (id s7)") && Contains("corrupt_image"));
  Loader loader({&files, &shard}, preparation, {});
  std::vector<Wanted> wanted;
  for (const std::int64_t i : shard.usable()) {
    wanted.push_back({0, i, true, {0}});
    wanted.push_back({1, i, true, {0}});
  }
  loader.request(1, wanted);
  const auto loaded = loader.take(1, nullptr, nullptr);
  for (std::size_t i = 0; i < loaded.size(); i += 2) {
    CHECK_FALSE(loaded[i + 1].failed);
    CHECK(loaded[i].input_ids == loaded[i + 1].input_ids);
    CHECK(loaded[i].labels == loaded[i + 1].labels);
    CHECK(loaded[i].items[0].values == loaded[i + 1].items[0].values);
  }
  CHECK(DatasetIndex::build(as_shard, preparation, {}).reused() == 30);
}

TEST_CASE("shards that scripts/parquet_to_webdataset.py made are read") {
  const std::string data = std::string(MMT_TEST_DATA) + "/";
  SetSpec spec;
  spec.path = data + "webdataset/parquet";
  spec.format = SetFormat::webdataset;
  OpenOptions options;
  options.write = false;
  const auto records = TarSet::open(spec, options);
  const auto in_brackets = [&](const std::string& field, const std::string& file) {
    return " [" + field + "=" + read_whole(data + "media/" + file) + "]";
  };
  const std::string expected[] = {
      "user:" + in_brackets("png", "grey.png") + " | assistant: a grey slope",
      "user:" + in_brackets("jpg", "jgrey.jpg") + " | assistant: \xc3\xa9t\xc3\xa9",
      "user:" + in_brackets("image0.png", "grey.png") + " and" + in_brackets("image1.jpg", "jgrey.jpg") +
          in_brackets("wav", "mono8.wav") + " | assistant: both",
      "user: alone? | assistant: yes",
      "user:" + in_brackets("png", "bit.png") + " \nwhat? | assistant: a slope",
      "user:" + in_brackets("webp", "lossy.webp") + " \nwhat? | assistant: a slope",
  };
  REQUIRE(records->size() == 6);
  for (std::int64_t i = 0; i < 6; ++i) CHECK((told(records->read(i)) == expected[i]));
  CHECK(records->read(2).id == "7");
}
