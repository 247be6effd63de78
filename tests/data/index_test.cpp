// The index: what it holds, going on after a stop, damaged and hostile files, what makes it build again.
#include "core/data/index.h"

#include <fcntl.h>
#include <sys/file.h>

#include <catch2/catch.hpp>
#include <random>

#include "core/data/index_file.h"
#include "core/data/records/record_file.h"
#include "core/log.h"
#include "tests/data/text_support.h"

using namespace mmt;
using namespace mmt::data;

namespace {

struct IndexFixture {
  TempFolder folder;
  ChatTemplate chat{named_template("vicuna_v1"), usual_tokenizer()};
  Preparation preparation;
  SetSpec spec;
  IndexOptions options;

  explicit IndexFixture(int samples) {
    preparation.tokenizer = &usual_tokenizer();
    preparation.chat = &chat;
    preparation.encoders = {fake_encoder("eyes", Modality::image, 3, 60), fake_encoder("ears", Modality::audio, 2)};
    preparation.max_sequence = 200;
    std::string lines;
    for (int i = 0; i < samples; ++i) lines += line(i);
    for (int i = 0; i < 20; ++i) folder.write("media/p" + std::to_string(i), std::to_string(i + 1));
    folder.write("media/two", "5 2");
    folder.write("media/bad", "bad");
    folder.write("media/huge", "61");
    spec.name = "test";
    spec.path = folder.write("set.jsonl", lines);
    spec.media_root = folder.path() / "media";
    options.threads = 3;
  }
  /// Every tenth of these has one of the faults.
  static std::string line(int i) {
    std::string image = "\"image\": \"p" + std::to_string(i % 20) + "\", ", human = "<image>\\nwhat?",
                gpt = "boot " + std::to_string(i);
    switch (i % 70) {
      case 9: image = "\"image\": \"none\", "; break;
      case 19: image = "\"image\": \"bad\", "; break;
      case 29: image = "\"image\": \"huge\", "; break;
      case 39: human = "no slot"; break;
      case 49: image = "\"image\": \"../x\", "; break;
      case 59: gpt = std::string(900, 'z'); break;
      case 69: return "{broken\n";
      default:
        if (i % 3 == 1) image = human = "";
        if (i % 3 == 2) image = "\"audio\": \"two\", ", human = "<audio>";
    }
    return "{" + image + R"("conversations": [{"from": "human", "value": ")" + human +
           R"("}, {"from": "gpt", "value": ")" + gpt + "\"}]}\n";
  }
  DatasetIndex build() const { return DatasetIndex::build(spec, preparation, options); }
};

void check_equal(const DatasetIndex& a, const DatasetIndex& b) {
  REQUIRE(a.indexed() == b.indexed());
  CHECK(a.digest() == b.digest());
  for (std::int64_t i = 0; i < a.indexed(); ++i) {
    const IndexEntry x = a.entry(i), y = b.entry(i);
    REQUIRE(x.offset == y.offset);
    REQUIRE(x.fault == y.fault);
    REQUIRE(x.tokens == y.tokens);
    REQUIRE(x.supervised == y.supervised);
    REQUIRE(std::equal(x.items.begin(), x.items.end(), y.items.begin(), y.items.end()));
    REQUIRE(std::equal(x.runs.begin(), x.runs.end(), y.runs.begin(), y.runs.end()));
  }
}

struct Quiet {
  Quiet() {
    log::set_sink([this](log::Level, int, std::string_view text) { lines += std::string(text) + "\n"; });
  }
  ~Quiet() { log::set_sink({}); }
  std::string lines;
};

}  // namespace

TEST_CASE("index entries equal the prepared samples") {
  const IndexFixture f(700);
  const DatasetIndex index = f.build();
  REQUIRE(index.complete());
  CHECK(index.reused() == 0);
  const auto faults = index.faults();
  const auto count = [&](DataFault fault) { return faults[static_cast<std::size_t>(fault)]; };
  using enum DataFault;
  for (const DataFault fault : {missing_file, corrupt_image, placeholder_count, unsafe_path, bad_record})
    CHECK(count(fault) == 10);
  CHECK(count(too_long) == 20);
  CHECK(index.usable().size() == 630);
  for (const std::int64_t i : index.usable()) {
    const Record r = index.records().read(i);
    const Prepared p = prepare(f.preparation, r, "x");
    const IndexEntry e = index.entry(i);
    REQUIRE(e.tokens == static_cast<std::int32_t>(p.ids.size()));
    REQUIRE(e.supervised == p.supervised);
    REQUIRE(std::equal(e.items.begin(), e.items.end(), p.items.begin(), p.items.end()));
    REQUIRE(std::equal(e.runs.begin(), e.runs.end(), p.runs.begin(), p.runs.end()));
    REQUIRE(e.offset == index.records().offset(i));
  }
  CHECK_THAT(index.explain(9, f.preparation),
             Catch::Contains("set.jsonl:10: sample 9") && Catch::Contains("missing_file"));
  CHECK(index.explain(0, f.preparation).empty());
}

TEST_CASE("an index is read back and is the same for any number of threads") {
  IndexFixture f(700);
  const DatasetIndex first = f.build();
  const DatasetIndex second = f.build();
  CHECK(second.reused() == 700);
  check_equal(first, second);
  f.options.threads = 1;
  f.options.write = false;
  std::filesystem::remove(first.index_path());
  const DatasetIndex third = f.build();
  CHECK(third.reused() == 0);
  check_equal(first, third);
  CHECK_FALSE(std::filesystem::exists(first.index_path()));
}

TEST_CASE("a stopped build goes on where it ended") {
  IndexFixture f(3000);
  f.options.threads = 2;
  std::atomic<bool> stop = false;
  std::atomic<int> measured = 0;
  const auto measure = f.preparation.encoders[0].measure;
  f.preparation.encoders[0].measure = [&, measure](const MediaSource& source, const std::string& where) {
    if (++measured == 400) stop = true;
    return measure(source, where);
  };
  f.options.stop = &stop;
  std::int64_t indexed = 0;
  {
    const DatasetIndex part = f.build();
    CHECK_FALSE(part.complete());
    indexed = part.indexed();
    CHECK(indexed > 0);
    CHECK(part.usable().back() < indexed);
  }
  stop = false;
  std::int64_t last = 0;
  f.options.progress = [&](const IndexProgress& p) {
    CHECK(p.done >= last);
    CHECK(p.total == 3000);
    last = p.done;
  };
  const DatasetIndex whole = f.build();
  CHECK(whole.complete());
  CHECK(whole.reused() == indexed);
  CHECK(last == 3000);
  f.options.progress = nullptr;
  f.options.write = false;
  std::filesystem::remove(whole.index_path());
  check_equal(whole, f.build());
}

TEST_CASE("what changes rows or the data makes another index") {
  IndexFixture f(300);
  const auto first = f.build();
  f.preparation.max_sequence = 60;
  const auto shorter = f.build();
  CHECK(shorter.reused() == 0);
  CHECK(shorter.index_path() != first.index_path());
  CHECK(shorter.digest() != first.digest());
  f.preparation.max_sequence = 200;
  CHECK(f.build().reused() == 300);
  std::ofstream(f.spec.path, std::ios::app) << IndexFixture::line(300);
  const auto longer = f.build();
  CHECK(longer.size() == 301);
  CHECK(longer.reused() == 0);
  CHECK(longer.index_path() == first.index_path());  // takes the old one's place
  CHECK(f.build().reused() == 301);
  f.spec.media_root /= ".";
  CHECK(f.build().reused() == 301);
}

TEST_CASE("media that were missing are found when they are there") {
  IndexFixture f(700);
  CHECK(f.build().entry(9).fault == DataFault::missing_file);
  f.folder.write("media/none", "3");
  f.options.recheck = false;
  CHECK(f.build().reused() == 700);
  f.options.recheck = true;
  const auto now = f.build();
  CHECK(now.reused() == 0);  // the chunk of sample 9 is the first
  CHECK_FALSE(now.entry(9).fault);
  CHECK(f.build().reused() == 700);
}

TEST_CASE("a damaged index file is rebuilt from its last sound chunk") {
  IndexFixture f(1000);
  const auto good = f.build();
  const std::string bytes = read_whole(good.index_path());
  const auto rebuilt = [&](const std::string& text) {
    std::ofstream(good.index_path(), std::ios::binary | std::ios::trunc) << text;
    auto index = f.build();
    check_equal(index, good);
    CHECK(read_whole(good.index_path()) == bytes);
    return index.reused();
  };
  CHECK(rebuilt(bytes) == 1000);
  CHECK(rebuilt("") == 0);
  CHECK(rebuilt(bytes.substr(0, 20)) == 0);
  CHECK(rebuilt(bytes.substr(0, bytes.size() - 1)) == 768);
  CHECK(rebuilt(bytes + "trailing") == 1000);
  std::string flipped = bytes;
  flipped[bytes.size() / 2] = static_cast<char>(flipped[bytes.size() / 2] ^ 4);
  const std::int64_t kept = rebuilt(flipped);
  CHECK(kept % 256 == 0);
  CHECK(kept < 768);
  flipped = bytes;
  flipped[10] ^= 1;  // the version
  CHECK(rebuilt(flipped) == 0);
}

TEST_CASE("a chunk with a right checksum and impossible entries is refused") {
  const IndexFixture f(300);
  const RecordFile records = RecordFile::open(f.spec.path, f.spec.media_root);
  const auto index = f.build();
  IndexTable good;
  for (std::int64_t i = 0; i < kIndexChunk; ++i) {
    if (const auto e = index.entry(i); e.fault) {
      good.add(e.offset, *e.fault);
    } else {
      good.add(e.offset, prepare(f.preparation, records.read(i), "x"));
    }
  }
  const auto reads = [&](const IndexTable& table) {
    std::uint64_t hash = 0;
    const std::string bytes = write_index_chunk(0, table, hash);
    std::size_t at = 0;
    return read_index_chunk(bytes, at, 0, records, 2, hash).has_value();
  };
  REQUIRE(reads(good));
  const auto refused = [&](auto&& change) {
    IndexTable bad = good;
    change(bad);
    CHECK_FALSE(reads(bad));
  };
  refused([](IndexTable& t) { t.rows[0].offset += 1; });
  refused([](IndexTable& t) { t.rows[0].tokens += 1; });
  refused([](IndexTable& t) { t.rows[0].tokens = -1; });
  refused([](IndexTable& t) { t.rows[0].supervised += 1; });
  refused([](IndexTable& t) { t.rows[0].fault = 99; });
  refused([](IndexTable& t) { t.items[0].encoder = 2; });
  refused([](IndexTable& t) { t.items[0].encoder = -1; });
  refused([](IndexTable& t) { t.items[0].first_row += 1; });
  refused([](IndexTable& t) { t.items[0].shape.rows += 1; });
  refused([](IndexTable& t) { t.items[0].shape.input_rows = -5; });
  refused([](IndexTable& t) { t.runs[1].item = 7; });
  refused([](IndexTable& t) { t.runs[1].item = -1; });
  refused([](IndexTable& t) { t.runs[0].first_row = 1; });
  refused([](IndexTable& t) { t.runs[0].length = 0; });
  refused([](IndexTable& t) { t.runs[0].supervised = t.runs[0].length + 1; });
  refused([](IndexTable& t) { t.rows.pop_back(); });
  refused([](IndexTable& t) {  // the last row of a sample predicts nothing, or a label behind the end would be written
    const std::size_t last = t.rows[1].first_run - 1;
    t.runs[last].supervised = 1;
    t.rows[0].supervised += 1;
  });
}

TEST_CASE("fuzz: mutated index files never harm") {
  IndexFixture f(600);
  const auto good = f.build();
  const std::string bytes = read_whole(good.index_path());
  const RecordFile records = RecordFile::open(f.spec.path, f.spec.media_root);
  std::mt19937 rng(17);
  std::size_t at = kIndexHeaderBytes;
  std::uint64_t hash = 0;
  const auto table = read_index_chunk(bytes, at, 0, records, 2, hash);
  REQUIRE(table.has_value());
  int accepted = 0;
  const int rounds = fuzz_rounds(1500);
  for (int round = 0; round < rounds; ++round) {
    // The payload is changed and the checksum made right, so that only the checks of the entries stand in the way.
    IndexTable bad = *table;
    for (std::size_t n = 1 + rng() % 3; n > 0; --n) {
      const auto value = static_cast<std::int32_t>(rng() % 5 == 0 ? rng() : rng() % 40);
      switch (rng() % 4) {
        case 0: bad.rows[rng() % bad.rows.size()].tokens = value; break;
        case 1: bad.items[rng() % bad.items.size()].first_row = value; break;
        case 2: bad.runs[rng() % bad.runs.size()].length = value; break;
        default: bad.runs[rng() % bad.runs.size()].supervised = value;
      }
    }
    std::string chunk = write_index_chunk(0, bad, hash);
    if (round % 2 == 0) chunk[24 + rng() % (chunk.size() - 24)] = static_cast<char>(rng());
    std::size_t start = 0;
    const auto read = read_index_chunk(chunk, start, 0, records, 2, hash);
    if (!read) continue;
    ++accepted;  // whatever is accepted can be walked
    for (std::int64_t i = 0; i < read->size(); ++i) {
      const IndexEntry e = read->entry(i);
      std::int64_t sum = 0;
      for (const SegmentRun& run : e.runs) sum += run.length;
      REQUIRE((e.fault || sum == e.tokens));
    }
  }
  CHECK(accepted < rounds / 2);
}

TEST_CASE("media that no encoder takes end the build with the sample") {
  IndexFixture f(700);
  f.preparation.encoders.pop_back();
  CHECK_THROWS_AS(f.build(), ConfigError);
  CHECK_THROWS_WITH(f.build(), Catch::Contains("sample 2") && Catch::Contains("no module of the config is an encoder"));
}

TEST_CASE("an index that cannot be written stays in memory or is refused where it was asked for") {
  IndexFixture f(300);
  Quiet quiet;
  // A file in the place of the folder: no user, root neither, can write there.
  f.folder.write("file", "x");
  f.spec.index_folder = f.folder.path() / "file";
  CHECK_THROWS_AS(f.build(), ConfigError);
  f.spec.index_folder = f.folder.path() / "deep" / "er";
  const auto index = f.build();
  CHECK(index.index_path().parent_path() == f.spec.index_folder);
  CHECK(f.build().reused() == 300);
  // Another process holds the file.
  f.spec.index_folder.clear();
  const std::filesystem::path beside = f.spec.path.parent_path() / index.index_path().filename();
  const int fd = ::open(beside.c_str(), O_RDWR | O_CREAT, 0644);
  REQUIRE(::flock(fd, LOCK_EX) == 0);
  const auto memory = f.build();
  CHECK(memory.complete());
  CHECK_THAT(quiet.lines, Catch::Contains("another process is writing it"));
  ::close(fd);
  CHECK(std::filesystem::file_size(beside) == 0);
  check_equal(memory, index);
}
