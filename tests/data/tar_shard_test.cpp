// Tar shards: where members lie, how they make samples, what is refused, what is kept for the next start.
#include "core/data/records/tar_shard.h"

#include <catch2/catch.hpp>
#include <clocale>
#include <random>
#include <sstream>

#include "core/data/records/shard_paths.h"
#include "tests/data/tar_support.h"
#include "tests/data/text_support.h"
#include "tests/support/message_of.h"

using namespace mmt;
using namespace mmt::data;
using mmt::test::message_of;

namespace {

/// "key TAB field TAB offset TAB bytes" for every field, as make_shards.py writes it.
std::string listing(const TarShard& shard) {
  std::string text;
  for (std::size_t s = 0; s < shard.samples.size(); ++s) {
    for (std::size_t f = shard.samples[s].first_field; f < shard.fields_end(s); ++f) {
      const TarShard::Field& field = shard.fields[f];
      text += std::string(shard.key(s)) + "\t" + shard.field_names[field.name] + "\t" + std::to_string(field.offset) +
              "\t" + std::to_string(field.bytes) + "\n";
    }
  }
  return text;
}

std::string scan_message(const TempFolder& folder, const std::string& tar) {
  return message_of<ConfigError>([&] { scan_shard(folder.write("s.tar", tar)); });
}

}  // namespace

TEST_CASE("members lie where Python's tarfile finds them, whatever the locale") {
  const std::string locale = std::setlocale(LC_ALL, nullptr);
  for (const char* name : {"C", "C.UTF-8"}) {
    std::setlocale(LC_ALL, name);
    for (const std::string stem : {"gnu", "pax"}) {
      const std::string path = std::string(MMT_TEST_DATA) + "/webdataset/" + stem;
      INFO(path << " in locale " << name);
      CHECK(listing(scan_shard(path + ".tar")) == read_whole(path + ".txt"));
    }
  }
  std::setlocale(LC_ALL, locale.c_str());
}

TEST_CASE("keys end at the first dot of the file name") {
  using Split = std::pair<std::string, std::string>;
  CHECK(split_member("0001.jpg") == Split("0001", "jpg"));
  CHECK(split_member("a/b.c/0001.Seg.PNG") == Split("a/b.c/0001", "seg.png"));
  CHECK(split_member("Track 2.0.mp3") == Split("Track 2", "0.mp3"));
  CHECK(split_member("./x.txt") == Split("./x", "txt"));
  CHECK(split_member("x.") == Split("x", ""));
  CHECK(split_member("__init__.txt") == Split("__init__", "txt"));
  for (const char* none : {"", "0001", "a.b/0001", ".hidden", "a/._0001.jpg", "__meta__", "__meta__/x.jpg", "____"}) {
    INFO(none);
    CHECK_FALSE(split_member(none).has_value());
  }
}

TEST_CASE("what is no member of a sample is passed over") {
  const TempFolder folder;
  const std::string tar = tar_member("folder/", "", '5') + tar_member("a.jpg", "xy") + tar_member("a.png", "", '2') +
                          tar_member("__i__/a.txt", "no") + tar_member("a.txt", "yes") + tar_member("b.txt", "b") +
                          tar_member("a.txt", "again") + std::string(512, '\0');
  const TarShard shard = scan_shard(folder.write("s.tar", tar));
  CHECK(listing(shard) == "a\tjpg\t1024\t2\na\ttxt\t3584\t3\nb\ttxt\t4608\t1\na\ttxt\t5632\t5\n");
  CHECK(shard.samples.size() == 3);
  CHECK(shard.field_names.size() == 2);
}

TEST_CASE("shards that are cut off, damaged, compressed or no tar at all say so") {
  using Catch::Contains;
  const TempFolder folder;
  const std::string tar = tar_of({{"0001.jpg", std::string(3000, 'p')}, {"0001.txt", std::string(600, 't')}});
  REQUIRE(scan_message(folder, tar).empty());
  CHECK_THAT(scan_message(folder, tar.substr(0, 2000)),
             Contains("s.tar: is cut off inside \"0001.jpg\", which has 3000 bytes from 512 on; the file has 2000"));
  const std::size_t second = 512 + 3072;
  CHECK_THAT(scan_message(folder, tar.substr(0, second + 100)), Contains("s.tar: is damaged behind \"0001.jpg\""));
  CHECK_THAT(scan_message(folder, tar.substr(0, second)),
             Contains("ends behind \"0001.jpg\" without the end mark") && Contains("append 1024 zero bytes"));
  CHECK_THAT(scan_message(folder, tar.substr(0, second + 512 + 600)), Contains("\"0001.txt\""));
  std::string flipped = tar;
  flipped[second + 3] ^= 1;  // the name: the header's checksum is wrong
  CHECK_THAT(scan_message(folder, flipped), Contains("is damaged behind \"0001.jpg\""));
  CHECK_THAT(scan_message(folder, ""), Contains("is empty"));
  CHECK_THAT(scan_message(folder, "nonsense"), Contains("is not a tar file"));
  CHECK_THAT(scan_message(folder, std::string(5000, 'x')), Contains("is not a tar file"));
  for (const auto& [magic, name] : {std::pair<std::string, const char*>("\x1f\x8b", "gzip"),
                                    {"\x28\xb5\x2f\xfd", "zstd"},
                                    {"BZh9", "bzip2"},
                                    {"\xfd"
                                     "7zXZ",
                                     "xz"}}) {
    CHECK_THAT(scan_message(folder, magic + tar), Contains(std::string("is compressed (") + name));
  }
  CHECK_THAT(message_of<ConfigError>([&] { scan_shard(folder.path() / "none.tar"); }), Contains("No such file"));
  CHECK_THAT(message_of<ConfigError>([&] { scan_shard(folder.path()); }), Contains("is a folder"));
}

TEST_CASE("shard patterns and folders") {
  using Names = std::vector<std::string>;
  using Catch::Contains;
  CHECK(expand_braces("a-{008..011}.tar") == Names{"a-008.tar", "a-009.tar", "a-010.tar", "a-011.tar"});
  CHECK(expand_braces("{2..0}") == Names{"2", "1", "0"});
  CHECK(expand_braces("{x,y}/{9..10}") == Names{"x/9", "x/10", "y/9", "y/10"});
  CHECK(expand_braces("{a,}b") == Names{"ab", "b"});
  for (const char* bad :
       {"{", "{}", "{a}", "{1..}", "{1..2x}", "{0..9999999}", "{1..999999}{1..99}", "{99999999999999999999..1}"}) {
    INFO(bad);
    CHECK_THROWS_AS(expand_braces(bad), ConfigError);
  }
  const TempFolder folder;
  for (const char* name : {"b.tar", "a.tar", ".c.tar", "d.txt", "e/f.tar"}) folder.write(std::string("s/") + name, "x");
  const auto in = [&](const std::string& name) { return std::filesystem::path(folder / "s") / name; };
  CHECK(shard_paths(folder / "s") == std::vector<std::filesystem::path>{in("a.tar"), in("b.tar")});
  CHECK(shard_paths(in("{b,a}.tar")) == std::vector<std::filesystem::path>{in("b.tar"), in("a.tar")});
  CHECK(shard_paths(in("a.tar")).size() == 1);
  CHECK_THAT(message_of([&] { shard_paths(in("{a,x,y}.tar")); }),
             Contains("2 of 3 shards are missing, the first is") && Contains("x.tar"));
  folder.write("empty/x.txt", "");
  CHECK_THAT(message_of([&] { shard_paths(folder / "empty"); }), Contains("holds no .tar file"));
  // A compressed shard is not passed over: it is refused when it is read.
  folder.write("s/c.tar.gz", "x");
  CHECK(shard_paths(folder / "s").size() == 3);
}

TEST_CASE("what is known of shards is read back, or not at all") {
  const std::string path = std::string(MMT_TEST_DATA) + "/webdataset/";
  const std::vector<KnownShard> known = {{"gnu", scan_shard(path + "gnu.tar")}, {"pax", scan_shard(path + "pax.tar")}};
  const std::string text = write_known_shards(known);
  const std::vector<KnownShard> back = read_known_shards(text);
  REQUIRE(back.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(back[i].name == known[i].name);
    CHECK(listing(back[i].shard) == listing(known[i].shard));
    CHECK(back[i].shard.bytes == known[i].shard.bytes);
    CHECK(back[i].shard.modified_ns == known[i].shard.modified_ns);
  }
  CHECK(read_known_shards("").empty());
  std::mt19937 rng(5);
  for (int round = 0; round < 300; ++round) {
    std::string bad = text;
    bad[rng() % bad.size()] ^= static_cast<char>(1 + rng() % 255);
    CHECK(read_known_shards(bad).empty());
    CHECK(read_known_shards(text.substr(0, rng() % text.size())).empty());
  }
}
