// Files by hand from the specification, and every way in which one can lie.
#include "core/data/weights/safetensors.h"
#include "core/data/weights/safetensors_writer.h"
#include "core/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

using namespace mmt;
using namespace mmt::data;
using Catch::Matchers::Contains;
using mmt::test::message_of;
using mmt::test::TempFolder;

namespace {

std::string safe_file(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  const std::uint64_t size = header.size();
  std::memcpy(bytes.data(), &size, 8);
  return bytes + header + data;
}

std::string floats(const std::vector<float>& values) {
  std::string bytes(values.size() * 4, '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape, int begin, int end) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", name, dtype, shape, begin, end);
}

std::span<const std::byte> bytes_of_text(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace

TEST_CASE("a safetensors file of the specification is read, whatever order its header has") {
  const TempFolder folder;
  const std::string header = "{" + entry("b", "F32", "[2, 3]", 8, 32) + R"(,"__metadata__":{"format":"pt"},)" +
                             entry("none", "F32", "[0, 7]", 8, 8) + "," + entry("a", "I64", "[]", 0, 8) + "}  ";
  const auto path = folder.write("model.safetensors",
                                 safe_file(header, std::string("\x07\0\0\0\0\0\0\0", 8) + floats({1, 2, 3, 4, 5, 6})));
  for (const std::string& from : {path.string(), folder.path().string()}) {
    const SafetensorsModel m = SafetensorsModel::open(from);
    CHECK(m.names() == std::vector<std::string>{"a", "b", "none"});
    CHECK(m.metadata().at("format") == "pt");
    CHECK(m.tensor("a").shape.empty());
    CHECK(m.tensor("a").numel() == 1);
    std::int64_t a = 0;
    REQUIRE(m.data("a").size() == 8);
    std::memcpy(&a, m.data("a").data(), 8);
    CHECK(a == 7);
    CHECK(m.tensor("none").numel() == 0);
    std::vector<float> box(2);
    m.read_box("b", {{0, 1}, {2, 1}}, DType::f32, box.data());
    CHECK(box == std::vector<float>{2, 5});
    CHECK_THAT(message_of([&] { m.tensor("c"); }), Contains(from) && Contains("there is no tensor c"));
    CHECK_THAT(message_of([&] { m.read_box("b", {{0, 1}, {2, 3}}, DType::f32, box.data()); }), Contains("b is [2, 3]"));
    CHECK_THAT(message_of([&] { m.read_box("a", {{}, {}}, DType::f32, box.data()); }), Contains("of dtype I64"));
  }
}

TEST_CASE("safetensors files that lie are refused with the tensor and the reason") {
  const TempFolder folder;
  const auto fault = [&](const std::string& bytes) {
    const auto path = folder.write("x.safetensors", bytes);
    const std::string message = message_of<Error>([&] { SafetensorsFile file(path.string()); });
    CHECK_THAT(message, Contains("x.safetensors: "));
    return message;
  };
  const std::string data = floats({1, 2, 3, 4});
  const auto of = [&](const std::string& body) { return fault(safe_file("{" + body + "}", data)); };
  CHECK_NOTHROW(SafetensorsFile(
      folder.write("good.safetensors", safe_file("{" + entry("a", "F32", "[4]", 0, 16) + "}", data)).string()));
  CHECK_THAT(fault(""), Contains("0 bytes"));
  CHECK_THAT(fault("1234567"), Contains("7 bytes"));
  CHECK_THAT(fault(std::string(8, '\xff') + "{}"), Contains("a header of 18446744073709551615 bytes"));
  CHECK_THAT(fault(safe_file("", "")), Contains("does not begin with {"));
  CHECK_THAT(fault(safe_file(" {}", "")), Contains("does not begin with {"));
  CHECK_THAT(fault(safe_file("{\"a\":", "")), Contains("no JSON"));
  CHECK_THAT(fault(safe_file("{\"a\": " + std::string(100'000, '['), "")), Contains("list where none belongs"));
  CHECK_THAT(fault(safe_file("{\"\xff\": 1}", "")), Contains("no JSON"));
  CHECK_THAT(of(entry("a", "F32", "[4]", 0, 16) + "," + entry("a", "F32", "[4]", 0, 16)),
             Contains("a stands there twice"));
  CHECK_THAT(of(entry("a", "F32", "[3]", 0, 16)), Contains("a has 16 bytes; F32 [3] has 12"));
  CHECK_THAT(of(entry("a", "F33", "[4]", 0, 16)), Contains("F33, which is not known"));
  CHECK_THAT(of(entry("a", "F32", "[4]", 16, 0)), Contains("ends before it begins"));
  CHECK_THAT(of(entry("a", "F32", "[2]", 8, 16)),
             Contains("a begins at byte 8 of the data, where 0 is due: there is a hole"));
  CHECK_THAT(of(entry("a", "F32", "[3]", 0, 12) + "," + entry("b", "F32", "[2]", 8, 16)),
             Contains("b begins at byte 8") && Contains("overlap"));
  CHECK_THAT(of(entry("a", "F32", "[3]", 0, 12)), Contains("end at byte 12 of the data, which has 16"));
  CHECK_THAT(of(entry("a", "F32", "[5]", 0, 20)), Contains("end at byte 20 of the data, which has 16"));
  CHECK_THAT(of(entry("a", "F32", "[-4]", 0, 16)), Contains("negative number -4"));
  CHECK_THAT(of(entry("a", "F32", "[4.5]", 0, 16)), Contains("4.5"));
  CHECK_THAT(of(entry("a", "F32", "[4611686018427387904, 4611686018427387904]", 0, 16)),
             Contains("no size of whole bytes"));
  CHECK_THAT(of(entry("a", "F32", "[18446744073709551615]", 0, 16)), Contains("dimension of 18446744073709551615"));
  CHECK_THAT(of(entry("a", "F4", "[31]", 0, 16)), Contains("no size of whole bytes"));
  CHECK_THAT(of(R"("a":{"dtype":"F32","shape":[4]})"), Contains("a has no data_offsets"));
  CHECK_THAT(of(R"("a":{"dtype":"F32","shape":[4],"data_offsets":[0,16],"more":1})"), Contains("a field more"));
  CHECK_THAT(of(R"("a":{"dtype":"F32","shape":[4],"data_offsets":[0,8,16]})"), Contains("more than 2 numbers"));
  CHECK_THAT(of(R"("a":{"dtype":"F32","dtype":"F32","shape":[4],"data_offsets":[0,16]})"), Contains("dtype twice"));
  CHECK_THAT(of(R"("a":{"dtype":4,"shape":[4],"data_offsets":[0,16]})"), Contains("a number where none belongs"));
  CHECK_THAT(of(R"("a":[1])"), Contains("a list where none belongs"));
  CHECK_THAT(of(R"("a":{"dtype":"F32","shape":{"x":1},"data_offsets":[0,16]})"), Contains("an object where none"));
  CHECK_THAT(of(R"("__metadata__":{"x":1})"), Contains("a number where none belongs"));
  CHECK_THAT(message_of([&] { SafetensorsFile(folder.path().string()); }), Contains("is not a regular file"));
  CHECK_THAT(message_of([&] { SafetensorsFile(folder / "absent"); }), Contains("cannot open"));
}

TEST_CASE("safetensors headers with any byte changed are read or refused") {
  const TempFolder folder;
  const std::string good = safe_file("{" + entry("a", "F32", "[4]", 0, 16) + R"(,"__metadata__":{"k":"v"},)" +
                                         entry("b", "BF16", "[1,2]", 16, 20) + "}",
                                     std::string(20, 'x'));
  std::mt19937 random(3);
  int read = 0, refused = 0;
  for (std::size_t at = 0; at < good.size() - 20; ++at) {
    for (int round = 0; round < 6; ++round) {
      std::string bytes = good;
      bytes[at] = static_cast<char>(round == 0 ? bytes[at] ^ 1 : random() & 0xff);
      const auto path = folder.write("m.safetensors", bytes);
      try {
        const SafetensorsFile file(path.string());
        std::uint64_t sum = 0;
        for (const SafeTensor& t : file.tensors()) sum += file.data(t).size();
        CHECK(sum == 20);
        ++read;
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  CHECK(read > 0);
  CHECK(refused > read);
}

TEST_CASE("boxes of tensors are those that indexing gives, in every pair of types") {
  const TempFolder folder;
  std::mt19937 random(5);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (int round = 0; round < 60; ++round) {
    std::vector<std::int64_t> shape(static_cast<std::size_t>(pick(0, 4)));
    std::int64_t count = 1;
    for (std::int64_t& d : shape) count *= d = pick(1, 5);
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& v : values) v = static_cast<float>(pick(-256, 256)) / 16;  // exact in bf16, too
    SafetensorsWriter writer(folder / "t.safetensors", {{"pad", "U8", {3}, 0, 0}, {"t", "F32", shape, 0, 0}}, {});
    writer.write("t", std::as_bytes(std::span(values)));
    writer.write("pad", bytes_of_text("abc"));
    writer.commit();
    const SafetensorsModel m = SafetensorsModel::open(folder / "t.safetensors");
    h5::Box box;
    for (const std::int64_t d : shape) {
      box.shape.push_back(pick(0, d));
      box.offset.push_back(pick(0, d - box.shape.back()));
    }
    std::vector<float> expected;
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t rest = i;
      bool inside = true;
      for (std::size_t d = shape.size(); d-- > 0; rest /= shape[d])
        inside = inside && rest % shape[d] >= box.offset[d] && rest % shape[d] < box.offset[d] + box.shape[d];
      if (inside) expected.push_back(values[static_cast<std::size_t>(i)]);
    }
    std::vector<float> f32(expected.size());
    std::vector<double> f64(expected.size());
    std::vector<bf16> bf(expected.size());
    m.read_box("t", box, DType::f32, f32.data());
    m.read_box("t", box, DType::f64, f64.data());
    m.read_box("t", box, DType::bf16, bf.data());
    CHECK(f32 == expected);
    for (std::size_t i = 0; i < expected.size(); ++i) CHECK((f64[i] == expected[i] && float(bf[i]) == expected[i]));
  }
}

TEST_CASE("half precision of files is exact in f32") {
  const TempFolder folder;
  std::string all(2 * 65536, '\0');
  for (std::uint32_t h = 0; h < 65536; ++h) {
    const auto half = static_cast<std::uint16_t>(h);
    std::memcpy(all.data() + 2 * h, &half, 2);
  }
  const auto path = folder.write("h.safetensors", safe_file("{" + entry("h", "F16", "[65536]", 0, 131072) + "}", all));
  std::vector<float> values(65536);
  SafetensorsModel::open(path.string()).read_box("h", {{0}, {65536}}, DType::f32, values.data());
  for (std::uint32_t h = 0; h < 65536; ++h) {
    const int exponent = static_cast<int>(h >> 10 & 31), mantissa = static_cast<int>(h & 1023);
    const float sign = (h >> 15) != 0 ? -1.0F : 1.0F;  // by the definition of binary16
    if (exponent == 31) {
      CHECK((mantissa != 0 ? std::isnan(values[h]) : values[h] == sign * std::numeric_limits<float>::infinity()));
    } else {
      const double wanted = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
      CHECK(values[h] == static_cast<float>(sign * wanted));
      CHECK(std::signbit(values[h]) == (sign < 0));
    }
  }
}

TEST_CASE("sharded models are read through their index, whose lies are refused") {
  const TempFolder folder;
  const std::vector<float> a{1, 2}, b{3, 4, 5};
  const std::vector<SafetensorsShard> shards = shards_of({{"a", "F32", {2}, 0, 0}, {"b", "F32", {3}, 0, 0}}, 12);
  REQUIRE(shards.size() == 2);
  CHECK(shards[0].file == "model-00001-of-00002.safetensors");
  for (const SafetensorsShard& shard : shards) {
    SafetensorsWriter writer(folder / shard.file, shard.tensors, {{"format", "pt"}});
    const auto& values = shard.tensors[0].name == "a" ? a : b;
    writer.write(shard.tensors[0].name, std::as_bytes(std::span(values)).subspan(4), 4);
    CHECK_THROWS_AS(writer.commit(), std::logic_error);  // not all of it
    writer.write(shard.tensors[0].name, std::as_bytes(std::span(values)).first(4));
    writer.commit();
  }
  const std::string index = index_of(shards);
  folder.write("model.safetensors.index.json", index);
  const SafetensorsModel m = SafetensorsModel::open(folder.path().string());
  std::vector<float> read(3);
  m.read_box("b", {{0}, {3}}, DType::f32, read.data());
  CHECK(read == b);
  const auto fault = [&](const std::string& text) {
    folder.write("model.safetensors.index.json", text);
    return message_of<Error>([&] { SafetensorsModel::open(folder.path().string()); });
  };
  const auto map = [](const std::string& text) { return R"({"metadata": {}, "weight_map": )" + text + "}"; };
  CHECK(fault(map(R"({"a": "model-00001-of-00002.safetensors"})")).empty());
  CHECK_THAT(fault("{}"), Contains("has no weight_map"));
  CHECK_THAT(fault("[]"), Contains("has no weight_map"));
  CHECK_THAT(fault("{"), Contains("index.json: 1:2"));
  CHECK_THAT(fault(map(R"({"a": 1})")), Contains("a has no file name"));
  CHECK_THAT(fault(map(R"({"b": "model-00001-of-00002.safetensors"})")), Contains("b is said to be in"));
  CHECK_THAT(fault(map(R"({"a": "../model-00001-of-00002.safetensors"})")), Contains(".."));
  CHECK_THAT(fault(map(R"({"a": "/etc/passwd"})")), Contains("/etc/passwd"));
  CHECK_THAT(fault(map(R"({"a": "none.safetensors"})")), Contains("none.safetensors"));
  std::filesystem::remove(folder / "model.safetensors.index.json");
  CHECK_THAT(message_of([&] { SafetensorsModel::open(folder.path().string()); }),
             Contains("holds 2 .safetensors files"));
}

TEST_CASE("a safetensors file is laid out as the reference writer does and appears only when it is whole") {
  const TempFolder folder;
  {
    SafetensorsWriter writer(folder / "w.safetensors",
                             {{"z", "F32", {1}, 0, 0}, {"b", "BF16", {3}, 0, 0}, {"a", "F32", {1}, 0, 0}},
                             {{"format", "pt"}});
    writer.write("b", bytes_of_text("bbbbbb"));
    writer.write("a", bytes_of_text("aaaa"));
    CHECK_FALSE(std::filesystem::exists(folder / "w.safetensors"));
    writer.write("z", bytes_of_text("zzzz"));
    writer.commit();
  }
  std::ifstream in(folder / "w.safetensors", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  const std::string header = R"({"__metadata__":{"format":"pt"},)" + entry("a", "F32", "[1]", 0, 4) + "," +
                             entry("z", "F32", "[1]", 4, 8) + "," + entry("b", "BF16", "[3]", 8, 14) + "}";
  CHECK(bytes == safe_file(header + std::string((8 - header.size() % 8) % 8, ' '), "aaaazzzzbbbbbb"));
  { SafetensorsWriter left(folder / "left.safetensors", {{"a", "F32", {1}, 0, 0}}, {}); }
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), std::filesystem::directory_iterator()) == 1);
  CHECK_THROWS_WITH(SafetensorsWriter(folder / "no/w.safetensors", {}, {}),
                    Contains("no/w.safetensors: cannot create"));
}
