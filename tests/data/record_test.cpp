// Data files: both containers, both spellings, what is refused, and files that mean harm.
#include <catch2/catch.hpp>
#include <random>
#include <thread>

#include "core/data/records/record_file.h"
#include "tests/data/text_support.h"

using namespace mmt;
using namespace mmt::data;

namespace {

DataFault record_fault_of(const std::string& json) {
  try {
    parse_record(json, "x");
  } catch (const DataError& e) {
    return e.fault();
  }
  FAIL("no fault in " << json);
  return DataFault::bad_record;
}

std::string llava(const std::string& keys, const std::string& human, const std::string& gpt = "ok") {
  return "{" + keys + R"("conversations": [{"from": "human", "value": ")" + human +
         R"("}, {"from": "gpt", "value": ")" + gpt + "\"}]}";
}

}  // namespace

TEST_CASE("LLaVA records with one picture a list or none") {
  const Record one = parse_record(llava(R"("id": 7, "image": "d/test1.jpg", )", "<image>\\nwhat?"), "x");
  CHECK(one.id == "7");
  REQUIRE(one.media.size() == 1);
  CHECK(one.media[0].path == "d/test1.jpg");
  REQUIRE(one.turns.size() == 2);
  CHECK(one.turns[0].role == Role::user);
  REQUIRE(one.turns[0].parts.size() == 2);
  CHECK(one.turns[0].parts[0].media == 0);
  CHECK(one.turns[0].parts[1].text == "\nwhat?");
  CHECK(parse_record(llava(R"("image": ["a", "b"], )", "<image> or <image>?"), "x").media.size() == 2);
  CHECK(parse_record(llava(R"("images": null, )", "text"), "x").media.empty());
  CHECK(parse_record(llava(R"("images": [], "audio": "a.wav", )", "<audio>"), "x").media[0].modality ==
        Modality::audio);
}

TEST_CASE("placeholder counts") {
  using enum DataFault;
  CHECK(record_fault_of(llava(R"("image": "a", )", "no slot")) == placeholder_count);
  CHECK(record_fault_of(llava(R"("image": "a", )", "<image><image>")) == placeholder_count);
  CHECK(record_fault_of(llava(R"("images": ["a", "b"], )", "<image>")) == placeholder_count);
  CHECK(record_fault_of(llava(R"("images": [], )", "<image>")) == placeholder_count);
  CHECK(record_fault_of(llava(R"("image": "a", )", "<audio>")) == placeholder_count);
  CHECK_THROWS_WITH(parse_record(llava(R"("id": "k1", "image": "a", )", "none"), "t.json:4: sample 3"),
                    Catch::Contains("t.json:4: sample 3 (id k1)") && Catch::Contains("0 <image> placeholders") &&
                        Catch::Contains("1 image file"));
  // Without the key the word is text; so it is in answers.
  const Record literal = parse_record(llava("", "what does <image> mean in HTML?"), "x");
  CHECK(literal.media.empty());
  CHECK(literal.turns[0].parts[0].text == "what does <image> mean in HTML?");
  const Record answer = parse_record(llava(R"("image": "a", )", "<image>", "{type<image>|bold}"), "x");
  CHECK(answer.media.size() == 1);
  CHECK(answer.turns[1].parts[0].text == "{type<image>|bold}");
}

TEST_CASE("OpenAI style content parts") {
  const Record r = parse_record(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a <image> "},
    {"type": "image_url", "image_url": {"url": "p.png"}}, {"type": "text", "text": "b"}, {"type": "audio", "audio": "s.wav"},
    {"type": "image", "path": "q.png"}]}, {"role": "assistant", "content": "c", "loss": false}]})",
                                "x");
  REQUIRE(r.media.size() == 3);
  CHECK(r.media[0].path == "p.png");
  CHECK(r.media[1].path == "s.wav");
  CHECK(r.media[2].path == "q.png");
  CHECK(r.turns[0].parts[0].text == "a <image> ");
  CHECK_FALSE(r.turns[1].loss);
  const Record listed =
      parse_record(R"({"images": ["p.png"], "messages": [{"role": "user", "content": [{"type": "image"}]},
    {"role": "assistant", "content": "c"}]})",
                   "x");
  CHECK(listed.media[0].path == "p.png");
}

TEST_CASE("ShareGPT, LLaMA-Factory and ms-swift spellings") {
  const Record shared =
      parse_record(R"({"system": "be kind", "tools": "", "images": ["p.png", "q.png"], "conversations": [
    {"from": "human", "value": "<image>who?"}, {"from": "function_call", "value": "{\"name\": \"f\"}"},
    {"from": "observation", "value": "found <image>"}, {"from": "gpt", "value": "me"}]})",
                   "x");
  REQUIRE(shared.turns.size() == 5);
  const Role roles[] = {Role::system, Role::user, Role::assistant, Role::tool, Role::assistant};
  for (std::size_t t = 0; t < 5; ++t) CHECK(shared.turns[t].role == roles[t]);
  CHECK(shared.media[1].path == "q.png");
  CHECK(shared.turns[3].parts[1].media == 1);
  const Record in_turn =
      parse_record(R"({"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "a"},
    {"from": "gpt", "value": "b"}]})",
                   "x");
  CHECK(in_turn.turns[0].role == Role::system);

  const Record swift = parse_record(R"({"image": "p.png", "audios": [{"path": "s.wav"}], "channel": "c", "messages": [
    {"role": "system", "content": "s"}, {"role": "user", "content": "<image><audio>who?"},
    {"role": "assistant", "content": "no", "loss": false}, {"role": "user", "content": "again"},
    {"role": "tool_call", "content": "{}"}, {"role": "tool_response", "content": "r"},
    {"role": "assistant", "content": "yes", "loss": true}]})",
                                    "x");
  REQUIRE(swift.media.size() == 2);
  CHECK(swift.media[0].path == "p.png");
  CHECK(swift.media[1].path == "s.wav");
  CHECK_FALSE(swift.turns[2].loss);
  CHECK(swift.turns[4].role == Role::assistant);
  CHECK(swift.turns[5].role == Role::tool);
  CHECK(swift.turns[6].loss);
  const Record encoded = parse_record(R"({"messages": [{"role": "user", "content": [
    {"type": "image_url", "image_url": "data:image/png;base64,iVBORw=="},
    {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}, {"type": "image", "url": "p.png"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "c"}]}]})",
                                      "x");
  REQUIRE(encoded.media.size() == 3);
  CHECK(encoded.media[0].path == "data:image/png;base64,iVBORw==");
  CHECK(encoded.media[1].path == "data:audio;base64,UklGRg==");
  CHECK(encoded.media[1].modality == Modality::audio);
  CHECK(encoded.turns[1].parts[0].text == "c");
}

TEST_CASE("videos are files or lists of their frames") {
  const auto videos = [](const std::string& keys, const std::string& text) {
    return parse_record(llava(keys, text), "x").media;
  };
  const auto one = videos(R"("video": "a.gif", )", "<video>what?");
  REQUIRE(one.size() == 1);
  CHECK(one[0].modality == Modality::video);
  CHECK(one[0].path == "a.gif");
  CHECK(one[0].frames.empty());
  // One list is one video, `videos` lists several.
  const auto frames = videos(R"("video": ["1.png", {"path": "2.png"}], )", "<video>");
  REQUIRE(frames.size() == 1);
  CHECK(frames[0].frames == std::vector<std::string>{"1.png", "2.png"});
  const auto mixed =
      videos(R"("videos": ["a.gif", ["1.png", "2.png"]], "image": "p.png", )", "<video> <image> <video>");
  REQUIRE(mixed.size() == 3);
  CHECK(mixed[0].path == "a.gif");
  CHECK(mixed[1].modality == Modality::image);
  CHECK(mixed[2].frames.size() == 2);
  CHECK(videos(R"("video": [["1.png"], ["2.png"]], )", "<video><video>").size() == 2);
  CHECK(videos(R"("videos": null, )", "the word <video>").empty());
  const Record parts = parse_record(R"({"messages": [{"role": "user", "content": [
    {"type": "video", "video": ["1.png", "2.png"]}, {"type": "video_url", "video_url": {"url": "a.gif"}}]},
    {"role": "assistant", "content": "c"}]})",
                                    "x");
  REQUIRE(parts.media.size() == 2);
  CHECK(parts.media[0].frames.size() == 2);
  CHECK(parts.media[1].path == "a.gif");
  using enum DataFault;
  CHECK(record_fault_of(llava(R"("video": "a.gif", )", "no slot")) == placeholder_count);
  CHECK(record_fault_of(llava(R"("video": ["1.png", "2.png"], )", "<video><video>")) == placeholder_count);
  CHECK(record_fault_of(llava(R"("videos": [[]], )", "<video>")) == empty_video);
  std::string many = R"("video": ["f")";
  for (int i = 0; i < 65536; ++i) many += R"(,"f")";
  CHECK(record_fault_of(llava(many + "], ", "<video>")) == too_many_frames);
  // Their paths are as safe as those of pictures, and data URIs may be frames.
  Record record;
  record.media.push_back({Modality::video, "", {}, {"1.png", "data:;base64,iVBORw=="}});
  find_media(record, "root", "set.json: sample 3");
  CHECK(record.media[0].source.is_list());
  CHECK(record.media[0].source.pictures("x").size() == 2);
  CHECK(record.media[0].source.name() == "1.png and 1 more frames");
  record.media[0].frames[0] = "/etc/passwd";
  CHECK_THROWS_WITH(find_media(record, "root", "s"), Catch::Contains("[unsafe_path]"));
}

TEST_CASE("data URIs are their own bytes") {
  const auto found = [](const std::string& path) {
    Record r;
    r.media.push_back({Modality::image, path});
    find_media(r, "root", "set.json: sample 3");
    std::string text;
    for (const std::byte b : r.media[0].source.read("x", 100, DataFault::image_too_large)) text += static_cast<char>(b);
    return text;
  };
  CHECK(found("data:image/png;base64,aGVsbG8=") == "hello");
  CHECK(found("data:image/png;base64,aGVsbG8") == "hello");  // without its padding
  CHECK(found("data:;base64,aGVsbA==") == "hell");
  CHECK(found("data:image/png;charset=x;base64,/+8A") == std::string("\xff\xef\0", 3));
  CHECK(found("data:x;base64,").empty());
  using Catch::Contains;
  for (const std::string bad : {"data:image/png,hello", "data:image/png;base64", "data:;base64,a", "data:;base64,a=b=",
                                "data:;base64,aG===", "data:;base64,a-_b", "data:;base64,aG\n=="}) {
    INFO(bad);
    CHECK_THROWS_WITH(found(bad), Contains("bad_record") && Contains("set.json: sample 3"));
  }
  Record big;
  big.media.push_back({Modality::image, "data:;base64," + std::string(kMaxDataUri, 'A')});
  CHECK_THROWS_WITH(find_media(big, "root", "x"), Contains("bytes, more than the"));
  Record shown;
  shown.media.push_back({Modality::image, "data:image/png;base64," + std::string(1000, 'A')});
  find_media(shown, "root", "x");
  CHECK(shown.media[0].path == "data:image/png;base64, 750 bytes");
  const std::vector<std::byte> head = shown.media[0].source.read("x", 1000, DataFault::image_too_large, 10);
  CHECK(head.size() == 10);
  CHECK_THROWS_WITH(shown.media[0].source.read("x", 700, DataFault::image_too_large), Contains("image_too_large"));
}

TEST_CASE("records that cannot be used say why") {
  using enum DataFault;
  for (const char* bad :
       {"",
        "3",
        "[]",
        "{}",
        "{\"messages\": 3}",
        "{\"messages\": []}",
        "{\"messages\": [3]}",
        "{\"messages\": [{}]}",
        "{\"messages\": [{\"role\": \"user\"}]}",
        "{\"messages\": [{\"role\": \"owl\", \"content\": \"x\"}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": null}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": 3}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": [3]}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"file\"}]}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\", \"image\": 3}]}]}",
        "{\"messages\": [{\"role\": \"assistant\", \"content\": [{\"type\": \"image\", \"image\": \"x\"}]}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\", \"loss\": 1}]}",
        "{\"image\": 3, \"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}",
        "{\"image\": [null], \"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}",
        "{\"image\": \"a\", \"images\": [\"a\"], \"messages\": [{\"role\": \"user\", \"content\": \"<image>\"}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"conversations\": []}",
        "{\"tools\": [{}], \"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"input_audio\", \"input_audio\": {}}]}]}",
        "{\"images\": [{\"bytes\": \"a\"}], \"messages\": [{\"role\": \"user\", \"content\": \"<image>\"}]}",
        "{\"videos\": [3], \"messages\": [{\"role\": \"user\", \"content\": \"<video>\"}]}",
        "{\"videos\": [[\"a\", [\"b\"]]], \"messages\": [{\"role\": \"user\", \"content\": \"<video>\"}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"system\", \"content\": \"x\"}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\"}]}",
        "{\"messages\": [",
        "{\"id\": 1e999}"}) {
    INFO(bad);
    CHECK(record_fault_of(bad) == bad_record);
  }
  CHECK(record_fault_of(std::string(1000, '[')) == bad_record);
  CHECK(record_fault_of("{\"a\":" + std::string(100, '[') + std::string(100, ']') + "}") == bad_record);
}

TEST_CASE("a dialogue that begins with an answer loses it") {
  const Record r = parse_record(R"({"conversations": [{"from": "gpt", "value": "hi"}, {"from": "human", "value": "a"},
    {"from": "gpt", "value": "b"}]})",
                                "x");
  REQUIRE(r.turns.size() == 2);
  CHECK(r.turns[0].parts[0].text == "a");
}

TEST_CASE("media paths stay inside their root") {
  CHECK(media_path("/data/media", "a/b.png", "x") == "/data/media/a/b.png");
  CHECK(media_path("root", "./a..b/c", "x") == std::filesystem::path("root/./a..b/c"));
  for (const std::string& bad :
       {std::string(""), std::string("/etc/passwd"), std::string("../x"), std::string("a/../../x"), std::string("a/.."),
        std::string("http://x/y.png"), std::string("data:image/png;base64,AA"), std::string("a\0b", 3)}) {
    INFO(bad);
    CHECK_THROWS_AS(media_path("root", bad, "x"), DataError);
    CHECK_THROWS_WITH(media_path("root", bad, "x"), Catch::Contains("unsafe_path"));
  }
}

TEST_CASE("an array and lines give the same records at their offsets") {
  const TempFolder folder;
  std::vector<std::string> records;
  for (int i = 0; i < 50; ++i) {
    records.push_back(
        llava("\"id\": " + std::to_string(i) + ", ", "brackets ]}[{ \\\"quoted\\\" \\\\ " + std::to_string(i)));
  }
  std::string lines = "\n", array = "\xef\xbb\xbf \n[\n";
  for (std::size_t i = 0; i < records.size(); ++i) {
    lines += records[i] + (i % 3 == 0 ? "\r\n\n" : "\n");
    array += (i == 0 ? "  " : " ,\n") + records[i];
  }
  array += "\n]\n";
  lines.pop_back();  // no line break at the end
  const RecordFile a = RecordFile::open(folder.write("a.json", array)),
                   l = RecordFile::open(folder.write("l.jsonl", lines));
  REQUIRE(a.size() == 50);
  REQUIRE(l.size() == 50);
  for (std::int64_t i = 0; i < 50; ++i) {
    CHECK(a.text(i) == records[static_cast<std::size_t>(i)]);
    CHECK(a.read(i).id == std::to_string(i));
    CHECK(l.read(i).turns[0].parts[0].text == a.read(i).turns[0].parts[0].text);
    CHECK(array.substr(static_cast<std::size_t>(a.offset(i)), 5) == records[static_cast<std::size_t>(i)].substr(0, 5));
  }
  CHECK(a.where(2).ends_with("a.json:5: sample 2"));
  CHECK(l.where(0).ends_with("l.jsonl:2: sample 0"));
  CHECK(l.where(1).ends_with("l.jsonl:4: sample 1"));
}

TEST_CASE("files that are no data files are refused with the place") {
  const TempFolder folder;
  const auto fails = [&](const std::string& text, const std::string& expected) {
    INFO(text);
    CHECK_THROWS_AS(RecordFile::open(folder.write("bad.json", text)), ConfigError);
    CHECK_THROWS_WITH(RecordFile::open(folder.write("bad.json", text)),
                      Catch::Contains("bad.json") && Catch::Contains(expected));
  };
  fails("", "empty");
  fails(" \n ", "empty");
  fails("<html>", "bad.json:1:1");
  fails("[]", "no sample");
  fails("[{}\n {}]", "bad.json:2:2: ',' or ']'");
  fails("[{},\n,{}]", "before ','");
  fails("[{},]", "after ','");
  fails("[{}] x", "follows the end");
  fails("[{\"a\": \"b", "ends inside sample 0");
  fails("[{},\n{\"a\"", "ends inside sample 1 (which begins in line 2)");
  fails("[{}", "ends inside the array");
  CHECK_THROWS_WITH(RecordFile::open(folder.path() / "none.json"), Catch::Contains("No such file"));
  CHECK_THROWS_WITH(RecordFile::open(folder.path()), Catch::Contains("not a regular file"));
  // One broken line or element is one broken sample.
  const RecordFile lines = RecordFile::open(folder.write("l.jsonl", "{\"a\n{}\nnonsense\n"));
  REQUIRE(lines.size() == 3);
  CHECK_THROWS_WITH(lines.read(0), Catch::Contains("l.jsonl:1: sample 0") && Catch::Contains("bad_record"));
  const RecordFile array = RecordFile::open(folder.write("a.json", "[3, \"x\", {\"a\": tru}, [1]]"));
  REQUIRE(array.size() == 4);
  for (std::int64_t i = 0; i < 4; ++i) CHECK_THROWS_AS(array.read(i), DataError);
}

TEST_CASE("a data file that shrinks while it is read gives bad records") {
  const TempFolder folder;
  const auto path = folder.write("l.jsonl", llava("", "a") + "\n" + llava("", "b") + "\n");
  const RecordFile file = RecordFile::open(path);
  std::filesystem::resize_file(path, 20);
  CHECK_THROWS_WITH(file.read(1), Catch::Contains("shrunk"));
}

TEST_CASE("records are read by many threads at once") {
  const TempFolder folder;
  std::string lines;
  for (int i = 0; i < 200; ++i)
    lines += llava("\"id\": " + std::to_string(i) + ", ", std::string(static_cast<std::size_t>(i), 'x')) + "\n";
  const RecordFile file = RecordFile::open(folder.write("l.jsonl", lines));
  std::atomic<int> wrong = 0;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (std::int64_t i = 0; i < file.size(); ++i) wrong += file.read(i).id != std::to_string(i);
    });
  }
  threads.clear();
  CHECK(wrong == 0);
}

TEST_CASE("fuzz: mutated data files only give config and data errors") {
  const TempFolder folder;
  std::mt19937 rng(3);
  const std::string good = "[" + llava(R"("id": "a", "image": "a.png", )", "<image>\\nwhat \\u00e9 \\ud83d\\ude42?") +
                           ",\n" +
                           R"({"messages": [{"role": "user", "content": [{"type": "image", "image": "x"}]},)"
                           R"({"role": "assistant", "content": "c", "loss": true}]})" +
                           "]\n";
  int records = 0, faults = 0, refused = 0;
  const int rounds = fuzz_rounds(1500);
  for (int round = 0; round < rounds; ++round) {
    std::string bad = round % 2 == 0 ? good : good.substr(1, good.size() - 3);
    for (std::size_t n = 1 + rng() % 5; n > 0 && !bad.empty(); --n) {
      const std::size_t at = rng() % bad.size();
      switch (rng() % 5) {
        case 0: bad[at] = static_cast<char>(rng()); break;
        case 1: bad.erase(at, 1 + rng() % 9); break;
        case 2: bad.insert(at, 1 + rng() % 70, "[]{}\",:0-e\\"[rng() % 11]); break;
        case 3: bad.insert(at, bad.substr(rng() % bad.size(), rng() % 40)); break;
        default: bad[at] = "0123456789nulltrefas"[rng() % 20]; break;
      }
    }
    try {
      const RecordFile file = RecordFile::open(folder.write("m.json", bad));
      for (std::int64_t i = 0; i < file.size(); ++i) {
        try {
          const Record r = file.read(i);
          for (const MediaFile& m : r.media) media_path("root", m.path, "x");
          ++records;
        } catch (const DataError&) {
          ++faults;
        }
      }
    } catch (const ConfigError&) {
      ++refused;
    }
  }
  CHECK(records > 50);
  CHECK(faults > 50);
  CHECK(refused > 50);
}
