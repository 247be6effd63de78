// The cost file: what is written is read, and what is no cost file is refused with its place.
#include "apps/mmtrain/cost_file.h"
#include "core/error.h"
#include "core/files.h"

#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"

#include <catch2/catch.hpp>

#include <fstream>

using namespace mmt;
using app::CostFile;

namespace {

CostFile example() {
  CostFile c;
  c.rates = {20'000'000, 21'000'000, 22'000'000};
  c.layers = {{"llama layer", {1'000'000'000, 2'000'000'000, 0}, {25'000'000, 51'000'000, 0, 24'000'000}},
              {"llama layer", {4'000'000'000, 8'000'000'000, 0}, {97'000'000, 200'000'000, 0, 96'000'000}},
              {"clip layer", {3'000'000'000, 0, 0}, {80'000'000, 0, 0, 0}}};
  c.local = {false, 300, 9'000};
  c.intra = {true, 1'500, 4'000};
  c.machine = "a \"machine\"";
  c.isa = "avx2";
  c.dtype = "f32";
  c.threads = 3;
  return c;
}

struct File {
  test::TempFolder folder;
  std::string path = folder / "costs.json";
  void write(const std::string& text) const { std::ofstream(path) << text; }
  /// What reading it says.
  std::string refusal() const {
    return test::message_of<ConfigError>([&] { app::read_cost_file(path); });
  }
};

/// The example's text with one piece replaced.
std::string changed(const File& file, const std::string& from, const std::string& to) {
  app::write_cost_file(file.path, example());
  std::string text = files::read(file.path, 1 << 20);
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  text.replace(at, from.size(), to);
  return text;
}

}  // namespace

TEST_CASE("a cost file is read as it was written", "[cost_file]") {
  const File file;
  const CostFile a = example();
  app::write_cost_file(file.path, a);
  const CostFile b = app::read_cost_file(file.path);
  CHECK(b.rates.forward == a.rates.forward);
  CHECK(b.rates.backward_input == a.rates.backward_input);
  CHECK(b.rates.backward_weight == a.rates.backward_weight);
  REQUIRE(b.layers.size() == a.layers.size());
  for (std::size_t i = 0; i < a.layers.size(); ++i) {
    CHECK(b.layers[i].kind == a.layers[i].kind);
    CHECK(b.layers[i].flops.forward == a.layers[i].flops.forward);
    CHECK(b.layers[i].flops.backward_input == a.layers[i].flops.backward_input);
    CHECK(b.layers[i].flops.backward_weight == a.layers[i].flops.backward_weight);
    CHECK(b.layers[i].time == a.layers[i].time);
  }
  CHECK(b.local == a.local);
  CHECK(b.intra == a.intra);
  CHECK(b.machine == a.machine);
  CHECK(b.isa == a.isa);
  CHECK(b.dtype == a.dtype);
  CHECK(b.threads == a.threads);
}

TEST_CASE("mistakes in a cost file are named with file and key", "[cost_file]") {
  const File file;
  struct Mistake {
    std::string from, to, says;
  };
  const std::vector<Mistake> mistakes = {
      {"\"mmtrain costs 1\"", "\"mmtrain costs 9\"", "format: this program reads \"mmtrain costs 1\""},
      {"\"threads\": 3", "\"threads\": 0", "threads: 0 is no integer from 1 to 4096"},
      {"\"threads\": 3", "\"threads\": 3.5", "threads: 3.5 is no integer"},
      {"\"threads\": 3", "\"threads\": 18446744073709551615", "threads: 18446744073709551615 is no integer"},
      {"\"threads\": 3", "\"threads\": 3, \"threads\": 4", "the key \"threads\" stands twice"},
      {"\"threads\": 3", "\"threads\": 3, \"thread\": 4", "thread: is unknown here; known: dtype, format"},
      {"\"threads\": 3,", "", "threads: is missing"},
      {"\"isa\": \"avx2\"", "\"isa\": 2", "isa: 2 is no text"},
      {"\"isa\": \"avx2\"", "\"isa\": \"" + std::string(300, 'x') + "\"", "isa: \"xxxx"},
      {"20000000", "0", "ns_per_gflop.forward: 0 is no integer from 1"},
      {"\"overlapped\": true", "\"overlapped\": 1", "links.intra.overlapped: 1 is neither true nor false"},
      {"\"bytes_per_us\": 4000", "\"bytes_per_us\": -1", "links.intra.bytes_per_us: -1 is no integer"},
      {"\"latency_ns\": 1500", "\"latency_ns\": 1e300", "links.intra.latency_ns: 1e+300 is no integer"},
      {"25000000", "-25000000", "layers[0].ns.forward: -25000000 is no integer"},
      {"1000000000,", "9000000000000000000,", "layers[0].flops.forward: 9000000000000000000 is no integer"},
      {"3000000000", "0", "layers[2].ns.forward: 80000000 ns for 0 FLOPs"},
      {"\"clip layer\"", "\"\"", "layers[2].kind: is empty"},
      {"4000000000,\n    \"backward_input\": 8000000000", "1000000000,\n    \"backward_input\": 2000000000",
       "layers[1]: measures the same as layers[0]"},
      {"\"layers\": [", "\"layers\": [[],", "layers[0]: is array, not an object"}};
  for (const Mistake& m : mistakes) {
    file.write(changed(file, m.from, m.to));
    const std::string text = file.refusal();
    INFO(m.to << " -> " << text);
    CHECK(text.starts_with(file.path + ": "));
    CHECK(text.find(m.says) != std::string::npos);
    CHECK(text.size() < 500);
  }
  app::write_cost_file(file.path, example());
  CHECK(file.refusal().empty());  // the mistakes alone are what is refused
}

TEST_CASE("a cost file that is none is refused", "[cost_file]") {
  const File file;
  CHECK(file.refusal().find(file.path) != std::string::npos);  // it is not there
  file.write("");
  CHECK(file.refusal().find(file.path + ":1:1: ") == 0);
  file.write("{\"format\": \"mmtrain costs 1\",\n \"machine\": nonsense}");
  CHECK(file.refusal().find(file.path + ":2:") == 0);
  file.write(std::string(1'000'000, '['));  // would use up the stack of a parser that recurses
  CHECK(file.refusal().find("nested deeper than 8 levels") != std::string::npos);
  file.write("[1, 2]");
  CHECK(file.refusal() == file.path + ": is array, not an object");
}
