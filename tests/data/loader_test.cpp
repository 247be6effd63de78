// Prefetch threads: what they deliver, failures that keep their place, memory, stopping.
#include "core/data/loader.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "tests/data/text_support.h"

using namespace mmt;
using namespace mmt::data;

namespace {

struct LoaderFixture {
  TempFolder folder;
  ChatTemplate chat{named_template("vicuna_v1"), usual_tokenizer()};
  Preparation preparation;
  std::atomic<int> loads = 0;
  std::vector<DatasetIndex> indexes;

  explicit LoaderFixture(int samples) {
    preparation.tokenizer = &usual_tokenizer();
    preparation.chat = &chat;
    preparation.encoders = {fake_encoder("eyes", Modality::image, 3, 0, &loads),
                            fake_encoder("ears", Modality::audio, 2, 0, &loads),
                            fake_encoder("eyes2", Modality::image, 5, 0, &loads)};
    std::string lines;
    for (int i = 0; i < samples; ++i) {
      folder.write("p" + std::to_string(i), std::to_string(4 + i % 3));
      lines +=
          R"({"id": "k)" + std::to_string(i) + R"(", "image": "p)" + std::to_string(i) +
          R"(", "audio": "two", "conversations": [{"from": "human", "value": "<image>\n<audio>what?"}, {"from": "gpt", "value": "boot )" +
          std::to_string(i) + "\"}]}\n";
    }
    folder.write("two", "5 2");
    SetSpec spec;
    spec.path = folder.write("set.jsonl", lines);
    spec.media_root = folder.path();
    indexes.push_back(DatasetIndex::build(spec, preparation, {}));
    REQUIRE(indexes[0].usable().size() == static_cast<std::size_t>(samples));
  }
  std::vector<const DatasetIndex*> sets() const { return {&indexes[0]}; }
  std::vector<Wanted> all(std::int64_t first, std::int64_t count) const {
    std::vector<Wanted> wanted;
    for (std::int64_t i = first; i < first + count; ++i) wanted.push_back({0, i, true, {0, 1, 2, 3}});
    return wanted;
  }
};

}  // namespace

TEST_CASE("the loader delivers ids labels weights and media as planned") {
  LoaderFixture f(30);
  LoaderOptions options;
  options.threads = 3;
  Loader loader(f.sets(), f.preparation, options);
  loader.request(5, f.all(0, 10));
  loader.request(6, f.all(10, 20));
  bool stopped = true;
  for (const auto& [step, first, count] : {std::tuple(5, 0, 10), std::tuple(6, 10, 20)}) {
    const auto samples = loader.take(step, nullptr, &stopped);
    CHECK_FALSE(stopped);
    REQUIRE(samples.size() == static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) {
      const LoadedSample& s = samples[static_cast<std::size_t>(i)];
      const IndexEntry e = f.indexes[0].entry(first + i);
      CHECK(s.sample == first + i);
      CHECK_FALSE(s.failed);
      REQUIRE(s.input_ids.size() == static_cast<std::size_t>(e.tokens));
      const Prepared p = prepare(f.preparation, f.indexes[0].records().read(first + i), "x");
      CHECK(s.input_ids == p.ids);
      CHECK(s.labels == p.labels);
      float weight = 0;
      for (std::size_t t = 0; t < s.weights.size(); ++t) {
        CHECK((s.weights[t] != 0) == (s.labels[t] != kIgnoreLabel));
        weight += s.weights[t];
      }
      CHECK(weight == static_cast<float>(e.supervised));
      REQUIRE(s.items.size() == 4);  // eyes, eyes2, two chunks of ears
      for (const LoadedItem& item : s.items) {
        const Item& planned = e.items[static_cast<std::size_t>(item.item)];
        REQUIRE(item.values.size() == static_cast<std::size_t>(item.shape.input_rows * item.shape.input_cols));
        for (std::size_t k = 0; k < item.values.size(); ++k) {
          REQUIRE(item.values[k] ==
                  static_cast<float>(100 * planned.part + static_cast<int>(k) / item.shape.input_cols));
        }
      }
    }
  }
  CHECK(loader.bytes_in_use() == 0);
}

TEST_CASE("only the wanted parts are read") {
  LoaderFixture f(4);
  LoaderOptions options;
  options.weights = LossWeights::sample;
  Loader loader(f.sets(), f.preparation, options);
  loader.request(1, {{0, 0, true, {}}, {0, 1, false, {2}}, {0, 2, false, {}}});
  const auto s = loader.take(1, nullptr, nullptr);
  CHECK(f.loads == 1);
  CHECK(s[0].items.empty());
  float weight = 0;
  for (const float w : s[0].weights) weight += w;
  CHECK(weight == Approx(1.0F).epsilon(1e-5));
  CHECK(s[1].input_ids.empty());
  CHECK(s[1].weights.empty());
  REQUIRE(s[1].items.size() == 1);
  CHECK(s[1].items[0].item == 2);
  loader.request(2, {});
  CHECK(loader.take(2, nullptr, nullptr).empty());
}

TEST_CASE("a sample that fails after planning keeps its place") {
  LoaderFixture f(6);
  const auto expected = prepare(f.preparation, f.indexes[0].records().read(1), "x");
  std::filesystem::remove(f.folder.path() / "p1");  // missing
  f.folder.write("p2", "bad");                      // corrupt
  f.folder.write("p3", "9");                        // another size than planned
  Loader loader(f.sets(), f.preparation, {});
  loader.request(1, f.all(0, 6));
  const auto s = loader.take(1, nullptr, nullptr);
  using enum DataFault;
  for (std::size_t i = 0; i < 6; ++i) {
    const bool bad = i >= 1 && i <= 3;
    CHECK(s[i].failed == bad);
    const IndexEntry e = f.indexes[0].entry(static_cast<std::int64_t>(i));
    REQUIRE(s[i].input_ids.size() == static_cast<std::size_t>(e.tokens));
    REQUIRE(s[i].items.size() == 4);
    if (!bad) continue;
    CHECK(std::all_of(s[i].weights.begin(), s[i].weights.end(), [](float w) { return w == 0; }));
    CHECK(s[i].weights.size() == s[i].labels.size());
    CHECK(std::count_if(s[i].labels.begin(), s[i].labels.end(), [](auto l) { return l != kIgnoreLabel; }) ==
          e.supervised);
    for (const LoadedItem& item : s[i].items) {
      CHECK(item.values.size() == static_cast<std::size_t>(item.shape.input_rows * item.shape.input_cols));
      CHECK(std::all_of(item.values.begin(), item.values.end(), [](float v) { return v == 0; }));
    }
  }
  CHECK(s[1].input_ids == expected.ids);
  CHECK(s[1].labels == expected.labels);
  CHECK(s[1].fault == missing_file);
  CHECK(s[2].fault == corrupt_image);
  CHECK(s[3].fault == corrupt_image);
  CHECK_THAT(s[1].message, Catch::Contains("set.jsonl:2: sample 1 (id k1)"));
}

TEST_CASE("a record that changed or vanished after planning keeps its place too") {
  LoaderFixture f(3);
  // The second answer grows while the file keeps its length; the third record is cut off.
  std::string text = read_whole(f.folder.path() / "set.jsonl");
  const std::size_t at = text.find("boot 1");
  text.replace(at, 6, "zzzzzz");
  std::ofstream(f.folder.path() / "set.jsonl", std::ios::binary | std::ios::in) << text;
  std::filesystem::resize_file(f.folder.path() / "set.jsonl", text.size() - 30);
  Loader loader(f.sets(), f.preparation, {});
  loader.request(1, f.all(0, 3));
  const auto s = loader.take(1, nullptr, nullptr);
  CHECK_FALSE(s[0].failed);
  for (std::size_t i = 1; i < 3; ++i) {
    CHECK(s[i].failed);
    CHECK(s[i].fault == DataFault::bad_record);
    const IndexEntry e = f.indexes[0].entry(static_cast<std::int64_t>(i));
    REQUIRE(s[i].labels.size() == static_cast<std::size_t>(e.tokens));
    // Labels stand exactly where the plan supervises.
    for (const SegmentRun& run : e.runs) {
      for (std::int32_t r = 0; r < run.length && run.first_row + r + 1 < e.tokens; ++r) {
        CHECK((s[i].labels[static_cast<std::size_t>(run.first_row + r + 1)] != kIgnoreLabel) ==
              (r >= run.length - run.supervised));
      }
      if (run.item >= 0)
        CHECK(s[i].input_ids[static_cast<std::size_t>(run.first_row)] < 0 + usual_tokenizer().vocab_size());
    }
  }
  CHECK_THAT(s[1].message, Catch::Contains("changed since it was indexed"));
}

TEST_CASE("memory ahead is bounded and a step over the bound still loads") {
  LoaderFixture f(40);
  LoaderOptions options;
  options.threads = 4;
  options.max_bytes = 1;  // nothing may be loaded ahead
  Loader loader(f.sets(), f.preparation, options);
  loader.request(1, f.all(0, 10));
  loader.request(2, f.all(10, 10));
  CHECK(loader.take(1, nullptr, nullptr).size() == 10);
  const std::int64_t one_step = loader.peak_bytes();
  CHECK(loader.take(2, nullptr, nullptr).size() == 10);
  loader.request(3, f.all(20, 10));
  loader.request(4, f.all(30, 10));
  CHECK(loader.take(4, nullptr, nullptr).size() == 10);  // out of order: what is waited for goes first
  CHECK(loader.take(3, nullptr, nullptr).size() == 10);
  CHECK(loader.peak_bytes() < 3 * one_step);
  CHECK(loader.bytes_in_use() == 0);
}

TEST_CASE("waiting ends when the stop flag is raised") {
  LoaderFixture f(4);
  std::atomic<bool> stop = false, go = false;
  const auto load = f.preparation.encoders[0].load;
  f.preparation.encoders[0].load = [&, load](const MediaSource& source, const std::string& where,
                                             const ItemShape& shape, int part, std::span<float> out) {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    load(source, where, shape, part, out);
  };
  Loader loader(f.sets(), f.preparation, {});
  loader.request(1, f.all(0, 4));
  std::jthread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    stop = true;
  });
  bool stopped = false;
  const auto start = std::chrono::steady_clock::now();
  CHECK(loader.take(1, &stop, &stopped).empty());
  CHECK(stopped);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
  go = true;
  CHECK(loader.take(1, nullptr, &stopped).size() == 4);  // it stayed requested
  CHECK_FALSE(stopped);
  CHECK(loader.waited_seconds() > 0);
}

TEST_CASE("bugs in a worker reach the caller") {
  LoaderFixture f(4);
  f.preparation.encoders[0].load = [](const MediaSource&, const std::string&, const ItemShape&, int, std::span<float>) {
    throw std::logic_error("broken codec");
  };
  LoaderOptions options;
  options.threads = 2;
  Loader loader(f.sets(), f.preparation, options);
  loader.request(1, f.all(0, 4));
  CHECK_THROWS_WITH(loader.take(1, nullptr, nullptr), "broken codec");
  CHECK_THROWS_WITH(loader.take(1, nullptr, nullptr), "broken codec");
}

TEST_CASE("misuse of the loader is a bug") {
  LoaderFixture f(4);
  Loader loader(f.sets(), f.preparation, {});
  CHECK_THROWS_AS(loader.take(3, nullptr, nullptr), std::logic_error);
  CHECK_THROWS_AS(loader.request(1, {{1, 0, true, {}}}), std::logic_error);
  CHECK_THROWS_AS(loader.request(1, {{0, 9, true, {}}}), std::logic_error);
  CHECK_THROWS_AS(loader.request(1, {{0, 0, true, {4}}}), std::logic_error);
  loader.request(1, f.all(0, 1));
  CHECK_THROWS_AS(loader.request(1, f.all(0, 1)), std::logic_error);
}

TEST_CASE("a loader is dropped or cleared in the middle of its work") {
  LoaderFixture f(60);
  LoaderOptions options;
  options.threads = 3;
  for (int round = 0; round < 10; ++round) {
    Loader loader(f.sets(), f.preparation, options);
    loader.request(1, f.all(0, 60));
    loader.request(2, f.all(0, 60));
    if (round % 2 == 0) {
      loader.clear();
      loader.request(1, f.all(5, 3));
      const auto s = loader.take(1, nullptr, nullptr);
      REQUIRE(s.size() == 3);
      CHECK(s[0].sample == 5);
    }
  }
}
