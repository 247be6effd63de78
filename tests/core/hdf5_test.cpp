#include "core/hdf5/store.h"

#include "core/arena.h"
#include "core/error.h"
#include "core/files.h"
#include "core/philox.h"
#include "tests/support/temp_folder.h"

#include <fmt/core.h>
#include <sys/resource.h>
#include <catch2/catch.hpp>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <thread>

// libhdf5 leaks what it had read of a damaged file.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5\n"; }

using namespace mmt;
using namespace mmt::h5;
namespace fs = std::filesystem;
using Catch::Contains;

namespace {

template <class T> std::vector<T> values(std::size_t n, std::uint64_t seed = 1) {
  std::vector<T> v(n);
  for (std::size_t i = 0; i < n; ++i) v[i] = static_cast<T>(static_cast<float>(random_bits(seed, 0, 0, i) % 251));
  return v;
}

template <class T> void round_trip(DType dtype) {
  const test::TempFolder folder;
  const auto data = values<T>(24);
  File file = File::create(folder / "a.h5");
  file.write("group/x", dtype, Dims{2, 3, 4}, data.data());
  file.close();
  const File back = File::open(folder / "a.h5");
  const Info info = back.info("group/x");
  REQUIRE(info.dtype == dtype);
  REQUIRE(info.shape == Dims{2, 3, 4});
  REQUIRE_FALSE(info.is_virtual);
  std::vector<T> out(24);
  back.read("group/x", dtype, Dims{2, 3, 4}, out.data());
  REQUIRE(std::memcmp(out.data(), data.data(), 24 * sizeof(T)) == 0);
  // A box, element by element.
  for (const Check check : {Check::all, Check::none}) {
    std::vector<T> part(1 * 2 * 2);
    back.read_box("group/x", {{1, 1, 2}, {1, 2, 2}}, dtype, part.data(), check);
    for (std::size_t j = 0; j < 2; ++j) {
      for (std::size_t k = 0; k < 2; ++k)
        REQUIRE(std::memcmp(&part[j * 2 + k], &data[12 + (1 + j) * 4 + 2 + k], sizeof(T)) == 0);
    }
  }
}

std::vector<char> content(const std::string& path) {
  const std::string text = files::read(path, 1 << 24);
  return {text.begin(), text.end()};
}

void put(const std::string& path, const std::vector<char>& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace

TEST_CASE("every type survives a file whole and in boxes") {
  round_trip<float>(DType::f32);
  round_trip<bf16>(DType::bf16);
  round_trip<double>(DType::f64);
  round_trip<std::int32_t>(DType::i32);
  round_trip<std::int64_t>(DType::i64);
  round_trip<std::uint64_t>(DType::u64);
  round_trip<std::uint8_t>(DType::u8);
}

TEST_CASE("every bit pattern of bf16 survives") {
  const test::TempFolder folder;
  std::vector<std::uint16_t> bits(65536);
  std::iota(bits.begin(), bits.end(), std::uint16_t{0});
  File file = File::create(folder / "a.h5");
  file.write("x", DType::bf16, Dims{256, 256}, bits.data());
  file.close();
  std::vector<std::uint16_t> out(65536);
  File::open(folder / "a.h5").read("x", DType::bf16, Dims{256, 256}, out.data());
  REQUIRE(out == bits);
}

TEST_CASE("scalars and empty tensors and tensors with apart rows") {
  const test::TempFolder folder;
  File file = File::create(folder / "a.h5");
  file.write_scalar("loss", 1.25);
  file.write("none", DType::f32, Dims{0, 5}, nullptr);
  OwnedTensor wide(DType::i32, {3, 4});
  std::iota(wide->as<std::int32_t>(), wide->as<std::int32_t>() + 12, 0);
  file.write("columns", wide->col_range(1, 2));
  file.write("whole", wide);
  file.close();
  const File back = File::open(folder / "a.h5");
  REQUIRE(back.read_scalar("loss") == 1.25);
  REQUIRE(back.info("none").shape == Dims{0, 5});
  back.read("none", DType::f32, Dims{0, 5}, nullptr);
  std::vector<std::int32_t> out(6);
  back.read("columns", DType::i32, Dims{3, 2}, out.data());
  REQUIRE(out == std::vector<std::int32_t>{1, 2, 5, 6, 9, 10});
  OwnedTensor again(DType::i32, {3, 4});
  back.read("whole", again);
  REQUIRE(std::memcmp(again->data, wide->data, 48) == 0);
}

TEST_CASE("a dataset written in boxes is complete or refused") {
  const test::TempFolder folder;
  const auto data = values<float>(35);
  for (const std::int64_t chunk : {0, 3}) {
    File file = File::create(folder / "a.h5");
    file.create_dataset("x", DType::f32, Dims{5, 7}, chunk);
    const Box whole{{0, 0}, {5, 7}};
    for (const Box& box : {Box{{0, 0}, {2, 3}}, Box{{2, 0}, {3, 3}}, Box{{0, 3}, {5, 4}}}) {
      std::vector<float> part(static_cast<std::size_t>(box.shape[0] * box.shape[1]));
      copy_overlap(data.data(), whole, part.data(), box, 4);
      file.write_box("x", box, DType::f32, part.data());
    }
    file.close();
    std::vector<float> out(35);
    File::open(folder / "a.h5").read("x", DType::f32, Dims{5, 7}, out.data());
    REQUIRE(out == data);
  }
  const auto close_after = [&](const std::vector<Box>& boxes) {
    File file = File::create(folder / "b.h5");
    file.create_dataset("x", DType::f32, Dims{4, 4});
    for (const Box& box : boxes) file.write_box("x", box, DType::f32, data.data());
    file.close();
  };
  REQUIRE_NOTHROW(close_after({{{0, 0}, {4, 2}}, {{0, 2}, {4, 2}}}));
  REQUIRE_THROWS_WITH(close_after({{{0, 0}, {4, 2}}}), Contains("cover 8 of 16 elements"));
  REQUIRE_THROWS_WITH(close_after({{{0, 0}, {4, 2}}, {{0, 1}, {4, 2}}}), Contains("overlap"));
  REQUIRE_THROWS_WITH(close_after({{{0, 0}, {4, 5}}}), Contains("does not lie in [4,4]"));
  REQUIRE_THROWS_WITH(close_after({}), Contains("cover 0 of 16"));
}

TEST_CASE("attributes of all kinds keep their values") {
  const test::TempFolder folder;
  const std::string long_text(200000, 'y');
  File file = File::create(folder / "a.h5");
  file.make_group("state/inner");
  file.write_scalar("state/x", 0);
  file.set_attribute("/", "step", 1234567890123);
  file.set_attribute("/", "step", -5);  // replaced
  file.set_attribute("state", "seed", std::uint64_t{0xfedcba9876543210ull});
  file.set_attribute("state/x", "lr", 2e-5);
  file.set_attribute("state", "config", long_text);
  file.set_attribute("state", "empty", "");
  file.close();
  const File back = File::open(folder / "a.h5");
  REQUIRE(back.int_attribute("/", "step") == -5);
  REQUIRE(back.uint_attribute("state", "seed") == 0xfedcba9876543210ull);
  REQUIRE(back.double_attribute("state/x", "lr") == 2e-5);
  REQUIRE(back.string_attribute("state", "config") == long_text);
  REQUIRE(back.string_attribute("state", "empty").empty());
  REQUIRE_FALSE(back.attribute("state", "none").has_value());
  REQUIRE(back.attributes("state").size() == 3);
  REQUIRE_THROWS_WITH(back.int_attribute("state", "none"), Contains("a.h5: state: the attribute none is missing"));
  REQUIRE_THROWS_WITH(back.int_attribute("state", "config"), Contains("another kind"));
  const auto entries = back.list("state");
  REQUIRE(entries.size() == 2);
  REQUIRE(entries[0].name == "inner");
  REQUIRE(entries[0].is_group);
  REQUIRE_FALSE(entries[1].is_group);
  REQUIRE(back.datasets() == std::vector<std::string>{"state/x"});
  REQUIRE(back.contains("state/inner"));
  REQUIRE_FALSE(back.contains("state/inner/none"));
}

TEST_CASE("mistakes in reading name the file and the object") {
  const test::TempFolder folder;
  File file = File::create(folder / "a.h5");
  const auto data = values<float>(6);
  file.write("x", DType::f32, Dims{2, 3}, data.data());
  REQUIRE_THROWS_WITH(file.write("x", DType::f32, Dims{2, 3}, data.data()), Contains("such an object already"));
  REQUIRE_THROWS_AS(file.write("../x", DType::f32, Dims{2, 3}, data.data()), std::logic_error);
  REQUIRE_THROWS_AS(file.write_box("x", {{0, 0}, {1, 1}}, DType::f32, data.data()), std::logic_error);
  file.close();
  REQUIRE_THROWS_AS(file.write_scalar("late", 1), std::logic_error);
  File back = File::open(folder / "a.h5");
  std::vector<float> out(6);
  REQUIRE_THROWS_WITH(back.read("x", DType::f64, Dims{2, 3}, out.data()),
                      Contains("a.h5: x: is f32[2,3], f64[2,3] was expected"));
  REQUIRE_THROWS_WITH(back.read("x", DType::f32, Dims{3, 2}, out.data()), Contains("f32[3,2] was expected"));
  REQUIRE_THROWS_WITH(back.read("y", DType::f32, Dims{3, 2}, out.data()),
                      Contains("a.h5: y: there is no such dataset"));
  REQUIRE_THROWS_AS(back.read_box("x", {{1, 0}, {2, 3}}, DType::f32, out.data()), std::logic_error);
  REQUIRE_THROWS_AS(back.read_box("x", {{0}, {2}}, DType::f32, out.data()), std::logic_error);
  REQUIRE_THROWS_AS(back.write_scalar("z", 1), std::logic_error);
  REQUIRE_THROWS_AS(back.list("x"), Error);
  REQUIRE_THROWS_WITH(File::open(folder / "none.h5"), Contains("none.h5: there is no such file"));
  REQUIRE_THROWS_WITH(File::open(folder / ""), Contains("not a regular file"));
  put(folder / "text.h5", std::vector<char>(100, 'x'));
  REQUIRE_THROWS_WITH(File::open(folder / "text.h5"), Contains("cannot open the file as HDF5"));
  REQUIRE_THROWS_WITH(File::create(folder / "no/folder/a.h5"),
                      Contains("cannot create the file") && Contains("No such file or directory"));
}

TEST_CASE("a virtual dataset is put together from boxes in other files") {
  const test::TempFolder folder;
  const auto whole = values<bf16>(8 * 6);
  const Box all{{0, 0}, {8, 6}};
  // As a (2 x 2) grid of writers leaves it, one of them keeping its piece inside a larger dataset.
  std::vector<Piece> pieces;
  for (int r = 0; r < 2; ++r) {
    for (int c = 0; c < 2; ++c) {
      const Box box{{r * 3, c * 2}, {r == 0 ? 3 : 5, c == 0 ? 2 : 4}};
      std::vector<bf16> part(static_cast<std::size_t>(box.shape[0] * box.shape[1]));
      copy_overlap(whole.data(), all, part.data(), box, 2);
      const std::string name = fmt::format("rank{}.h5", r * 2 + c);
      File file = File::create(folder / name);
      Piece piece{name, "llm/w/0_0", box, {}, {}};
      if (r == 1 && c == 1) {
        piece.source_offset = {2, 1};
        piece.source_shape = {8, 6};
        file.create_dataset(piece.dataset, DType::bf16, piece.source_shape);
        file.write_box(piece.dataset, {{2, 1}, box.shape}, DType::bf16, part.data());
        const auto zeros = std::vector<bf16>(48);
        for (const Box& rest : {Box{{0, 0}, {2, 6}}, Box{{7, 0}, {1, 6}}, Box{{2, 0}, {5, 1}}, Box{{2, 5}, {5, 1}}}) {
          file.write_box(piece.dataset, rest, DType::bf16, zeros.data());
        }
      } else {
        file.write(piece.dataset, DType::bf16, box.shape, part.data());
      }
      file.close();
      pieces.push_back(piece);
    }
  }
  File index = File::create(folder / "index.h5");
  index.write_virtual("llm/w", DType::bf16, Dims{8, 6}, pieces);
  index.write_virtual("llm/none", DType::bf16, Dims{0, 6}, {});
  index.set_attribute("llm/w", "note", "whole");
  index.close();
  // The folder may move: names are relative.
  const std::string moved = std::string(folder / "").substr(0, (folder / "").size() - 1) + "_moved";
  fs::rename(folder / "", moved);
  {
    const File back = File::open(moved + "/index.h5");
    REQUIRE(back.info("llm/w").is_virtual);
    REQUIRE(back.info("llm/none").shape == Dims{0, 6});
    std::vector<bf16> out(48);
    back.read("llm/w", DType::bf16, Dims{8, 6}, out.data());
    REQUIRE(std::memcmp(out.data(), whole.data(), 96) == 0);
    for (const Check check : {Check::all, Check::none}) {
      for (std::int64_t r = 0; r < 8; ++r) {
        for (std::int64_t c = 0; c < 6; ++c) {
          const Box box{{r, c}, {std::min<std::int64_t>(3, 8 - r), std::min<std::int64_t>(4, 6 - c)}};
          std::vector<bf16> expected(static_cast<std::size_t>(box.shape[0] * box.shape[1]));
          std::vector<bf16> got(expected.size());
          copy_overlap(whole.data(), all, expected.data(), box, 2);
          back.read_box("llm/w", box, DType::bf16, got.data(), check);
          REQUIRE(std::memcmp(got.data(), expected.data(), got.size() * 2) == 0);
        }
      }
    }
    const auto read_pieces = back.pieces("llm/w");
    REQUIRE(read_pieces.size() == 4);
    REQUIRE(read_pieces[3].source_offset == Dims{2, 1});
    REQUIRE_NOTHROW(back.verify("llm/w"));
  }
  // A piece with a flipped bit, with another type, and one that is gone.
  auto bytes = content(moved + "/rank1.h5");
  std::vector<bf16> part(12);
  copy_overlap(whole.data(), all, part.data(), {{0, 2}, {3, 4}}, 2);
  const auto at = std::search(bytes.begin(), bytes.end(), reinterpret_cast<const char*>(part.data()),
                              reinterpret_cast<const char*>(part.data()) + 24);
  REQUIRE(at != bytes.end());
  at[5] = static_cast<char>(at[5] ^ 0x10);
  put(moved + "/rank1.h5", bytes);
  std::vector<bf16> out(48);
  const auto read_all = [&] { File::open(moved + "/index.h5").read("llm/w", DType::bf16, Dims{8, 6}, out.data()); };
  REQUIRE_THROWS_WITH(read_all(), Contains("index.h5: llm/w: ") &&
                                      Contains("rank1.h5: llm/w/0_0: its data is damaged: the checksum is"));
  REQUIRE_THROWS_WITH(File::open(moved + "/index.h5").verify("llm/w"), Contains("is damaged"));
  // A box of other pieces still reads; the damaged one does not, even where the flipped bit is not in the box.
  REQUIRE_NOTHROW(File::open(moved + "/index.h5").read_box("llm/w", {{0, 0}, {8, 2}}, DType::bf16, out.data()));
  REQUIRE_THROWS_AS(File::open(moved + "/index.h5").read_box("llm/w", {{0, 5}, {1, 1}}, DType::bf16, out.data()),
                    Error);
  fs::remove(moved + "/rank1.h5");
  REQUIRE_THROWS_WITH(read_all(), Contains("rank1.h5: there is no such file"));
  File other = File::create(moved + "/rank1.h5");
  other.write("llm/w/0_0", DType::f32, Dims{3, 4}, values<float>(12).data());
  other.close();
  REQUIRE_THROWS_WITH(
      read_all(), Contains("llm/w: the piece llm/w/0_0 of rank1.h5 is f32[3,4] and does not hold bf16[3,4] at [0,0]"));
  fs::remove_all(moved);
}

TEST_CASE("virtual datasets with holes or names that lead out are refused") {
  const test::TempFolder folder;
  fs::create_directories(folder / "in");
  File index = File::create(folder / "in/index.h5");
  const auto write = [&](const std::string& file, const Box& box) {
    const Piece piece{file, "x", box, {}, {}};
    index.write_virtual("w", DType::f32, Dims{2, 3}, std::vector<Piece>{piece});
  };
  REQUIRE_THROWS_WITH(write("a.h5", {{0, 0}, {1, 3}}), Contains("cover 3 of 6"));
  REQUIRE_THROWS_WITH(write("../a.h5", {{0, 0}, {2, 3}}), Contains("leads upwards"));
  REQUIRE_THROWS_WITH(write("/etc/a.h5", {{0, 0}, {2, 3}}), Contains("is absolute"));
  // A good index whose names are changed behind our back: same length, so that the file stays well formed but for
  // the checksum of the heap, which only guards the newer structures.
  write("abcdefgh.h5", {{0, 0}, {2, 3}});
  index.close();
  auto bytes = content(folder / "in/index.h5");
  const std::string name = "abcdefgh.h5";
  for (const std::string& evil : {std::string("../defgh.h5"), std::string("/bcdefgh.h5")}) {
    auto copy = bytes;
    const auto at = std::search(copy.begin(), copy.end(), name.begin(), name.end());
    REQUIRE(at != copy.end());
    std::copy(evil.begin(), evil.end(), at);
    put(folder / "in/evil.h5", copy);
    REQUIRE_THROWS_AS(File::open(folder / "in/evil.h5").info("w"), Error);
  }
  REQUIRE_THROWS_WITH(File::open(folder / "in/index.h5").info("w"), Contains("abcdefgh.h5: there is no such file"));
}

TEST_CASE("any flipped bit gives an error or the data that was written") {
  const test::TempFolder folder;
  const auto data = values<float>(64);
  File file = File::create(folder / "a.h5");
  file.write("llm/x", DType::f32, Dims{8, 8}, data.data());
  file.set_attribute("llm", "step", 7);
  file.close();
  const auto good = content(folder / "a.h5");
  std::size_t errors = 0;
  std::size_t stride = std::getenv("MMTRAIN_FUZZ_ROUNDS") != nullptr ? 1 : 3;
  for (std::size_t i = 0; i < good.size(); i += stride) {
    auto bytes = good;
    bytes[i] = static_cast<char>(bytes[i] ^ (1 << (i % 8)));
    put(folder / "b.h5", bytes);
    std::vector<float> out(64);
    try {
      const File back = File::open(folder / "b.h5");
      back.read("llm/x", DType::f32, Dims{8, 8}, out.data());
      REQUIRE(out == data);
    } catch (const Error& e) {
      ++errors;
      REQUIRE_THAT(e.what(), Contains("b.h5"));
    }
  }
  // At least all bits of the data itself are found.
  REQUIRE(errors * stride >= 256);
}

TEST_CASE("truncated files give errors") {
  const test::TempFolder folder;
  const auto data = values<float>(64);
  File file = File::create(folder / "a.h5");
  file.write("x", DType::f32, Dims{8, 8}, data.data());
  file.close();
  const auto good = content(folder / "a.h5");
  for (std::size_t size = 0; size < good.size(); size += 7) {
    put(folder / "b.h5", {good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)});
    std::vector<float> out(64);
    REQUIRE_THROWS_AS(File::open(folder / "b.h5").read("x", DType::f32, Dims{8, 8}, out.data()), Error);
  }
}

TEST_CASE("a full disk is reported and the process goes on") {
  const test::TempFolder folder;
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const std::vector<float> data(10000, 1.0f);
  // What fails first depends on the limit: the data, the headers, the flush at the end.
  for (std::size_t limit = 0; limit <= 82000; limit += limit < 3000 ? 150 : 7900) {
    const rlimit small{limit, before.rlim_max};
    std::string message;
    ::setrlimit(RLIMIT_FSIZE, &small);
    try {
      File file = File::create(folder / "a.h5");
      file.write("x", DType::f32, Dims{10000}, data.data());
      file.create_dataset("y", DType::f32, Dims{10000});
      file.write_box("y", {{0}, {10000}}, DType::f32, data.data());
      file.set_attribute("/", "config", std::string(5000, 'c'));
      file.close();
    } catch (const Error& e) {
      message = e.what();
    }
    ::setrlimit(RLIMIT_FSIZE, &before);
    INFO(limit);
    REQUIRE_THAT(message, Contains("a.h5") && Contains("File too large"));
    File next = File::create(folder / "b.h5");
    next.write_scalar("x", 3);
    next.close();
    REQUIRE(File::open(folder / "b.h5").read_scalar("x") == 3);
  }
  std::signal(SIGXFSZ, handler);
}

TEST_CASE("many threads use files at once") {
  const test::TempFolder folder;
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 10; ++i) {
        const std::string path = folder / fmt::format("{}_{}.h5", t, i);
        const auto data = values<float>(100, static_cast<std::uint64_t>(t * 100 + i));
        File file = File::create(path);
        file.write("a/b", DType::f32, Dims{100}, data.data());
        file.close();
        std::vector<float> out(100);
        File::open(path).read("a/b", DType::f32, Dims{100}, out.data());
        if (out == data) ++good;
        try {
          File::open(path).read("none", DType::f32, Dims{100}, out.data());
        } catch (const Error&) {
          ++good;
        }
      }
    });
  }
  for (auto& t : threads) t.join();
  REQUIRE(good == 80);
}

TEST_CASE("boxes are copied and checked like the elements one by one") {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const std::size_t rank = 1 + random() % 4;
    Dims shape(rank);
    for (auto& d : shape) d = 1 + random() % 5;
    const auto draw = [&] {
      Box box;
      for (std::size_t i = 0; i < rank; ++i) {
        box.offset.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(shape[i])));
        box.shape.push_back(1 +
                            static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(shape[i] - box.offset[i])));
      }
      return box;
    };
    const Box a = draw();
    const Box b = draw();
    const auto size = [](const Box& box) {
      std::int64_t n = 1;
      for (const auto d : box.shape) n *= d;
      return static_cast<std::size_t>(n);
    };
    // Elements of `a` carry their global place; those of `b` start as -1.
    const auto each = [&](const Box& box, auto f) {
      for (std::size_t i = 0; i < size(box); ++i) {
        std::int64_t rest = static_cast<std::int64_t>(i);
        Dims at(rank);
        for (std::size_t d = rank; d-- > 0;) {
          at[d] = box.offset[d] + rest % box.shape[d];
          rest /= box.shape[d];
        }
        std::int32_t place = 0;
        for (std::size_t d = 0; d < rank; ++d)
          place = place * static_cast<std::int32_t>(shape[d]) + static_cast<std::int32_t>(at[d]);
        bool in_a = true;
        for (std::size_t d = 0; d < rank; ++d) in_a = in_a && at[d] >= a.offset[d] && at[d] < a.offset[d] + a.shape[d];
        f(i, place, in_a);
      }
    };
    std::vector<std::int32_t> from(size(a));
    std::vector<std::int32_t> to(size(b), -1);
    each(a, [&](std::size_t i, std::int32_t place, bool) { from[i] = place; });
    copy_overlap(from.data(), a, to.data(), b, 4);
    each(b, [&](std::size_t i, std::int32_t place, bool in_a) { REQUIRE(to[i] == (in_a ? place : -1)); });
  }
}

TEST_CASE("files that h5py wrote are read") {
  // tests/data/core/hdf5/make.py
  const File file = File::open(MMT_TEST_DATA "/core/hdf5/good.h5");
  std::vector<float> plain(6);
  // They have no checksums: to be read they must be trusted.
  REQUIRE_THROWS_WITH(file.read("plain", DType::f32, Dims{2, 3}, plain.data()), Contains("plain: has no checksum"));
  file.read("plain", DType::f32, Dims{2, 3}, plain.data(), Check::none);
  REQUIRE(plain == std::vector<float>{0, 1, 2, 3, 4, 5});
  std::vector<std::int64_t> packed(4);
  file.read_box("packed", {{7, 28}, {2, 2}}, DType::i64, packed.data(), Check::none);
  REQUIRE(packed == std::vector<std::int64_t>{238, 239, 268, 269});
  REQUIRE(file.string_attribute("/", "fixed") == "abc");
  REQUIRE(file.string_attribute("/", "text") == "\u00e4\u00f6\u00fc");
  REQUIRE(file.int_attribute("/", "i") == -3);
  REQUIRE(file.uint_attribute("/", "u") == 200);
  REQUIRE(file.double_attribute("/", "f") == 0.5);
  REQUIRE_FALSE(file.attribute("/", "list").has_value());
  REQUIRE(file.attributes("/").size() == 5);
}

TEST_CASE("files made by an attacker are refused without harm") {
  const auto message = [](const std::string& file, const std::string& name) -> std::string {
    try {
      const File f = File::open(MMT_TEST_DATA "/core/hdf5/" + file);
      const Info info = f.info(name);
      std::vector<char> out(64);
      f.read_box(name, {Dims(info.shape.size(), 0), Dims(info.shape.size(), 1)}, info.dtype, out.data(), Check::none);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  for (const char* name : {"half", "big_endian", "compound", "text", "vlen", "bool"}) {
    REQUIRE_THAT(message("kinds.h5", name), Contains("is of a type that is not supported"));
  }
  REQUIRE_THAT(message("kinds.h5", "null"), Contains("holds no data"));
  for (const char* name : {"soft", "outside", "dangling"}) {
    REQUIRE_THAT(message("links.h5", name), Contains("is a soft or external link, which is refused"));
  }
  REQUIRE_THAT(message("links.h5", "real/x"), Contains("real/x"));
  REQUIRE_THAT(message("links.h5", "cycle"), Contains("cycle"));
  REQUIRE_THAT(message("links.h5", "a/../real"), Contains("is not the name of an object"));
  const File links = File::open(MMT_TEST_DATA "/core/hdf5/links.h5");
  REQUIRE_THROWS_WITH(links.datasets(), Contains("nested more than 16 deep"));
  REQUIRE(links.list().size() == 5);
  // Shapes of terabytes with nothing behind them.
  for (const char* name : {"late", "gzip", "contiguous"}) {
    const std::string text = message("bombs.h5", name);
    INFO(name << ": " << text);
    REQUIRE((text.find("bytes, but") != std::string::npos || text.find("in a file of") != std::string::npos));
  }
  REQUIRE_THAT(message("outside.h5", "raw"), Contains("keeps its data outside the file"));
  REQUIRE_THAT(message("outside.h5", "absolute"), Contains("/etc/passwd") && Contains("is absolute"));
  REQUIRE_THAT(message("outside.h5", "up"), Contains("leads upwards"));
  REQUIRE_THAT(message("outside.h5", "itself"), Contains("outside.h5: itself: "));
  REQUIRE_THAT(message("outside.h5", "missing"), Contains("nothing.h5: there is no such file"));
  REQUIRE_THAT(message("outside.h5", "wrong_type"),
               Contains("packed of good.h5 is i64[20,30] and does not hold f32[4]"));
  REQUIRE_THAT(message("outside.h5", "wrong_shape"), Contains("plain of good.h5 is f32[2,3] and does not hold f32[4]"));
  REQUIRE_THAT(message("outside.h5", "strided"), Contains("is not a box"));
  REQUIRE_THAT(message("outside.h5", "hole"), Contains("do not cover it exactly once"));
  REQUIRE_THAT(message("outside.h5", "twice"), Contains("do not cover it exactly once"));
  REQUIRE_THAT(message("outside.h5", "soft"), Contains("soft or external link"));
  REQUIRE_THAT(message("outside.h5", "dots"), Contains("is not the name of an object"));
  REQUIRE(message("outside.h5", "fine").empty());
}

TEST_CASE("a checksum is proven once for each open file") {
  const test::TempFolder folder;
  const auto data = values<float>(64);
  File file = File::create(folder / "a.h5");
  file.write("x", DType::f32, Dims{8, 8}, data.data());
  file.close();
  std::vector<float> out(64);
  const File first = File::open(folder / "a.h5");
  first.read_box("x", {{0, 0}, {1, 1}}, DType::f32, out.data());
  // Damage after the proof is seen by the next one who opens the file.
  auto bytes = content(folder / "a.h5");
  const auto at = std::search(bytes.begin(), bytes.end(), reinterpret_cast<const char*>(data.data()),
                              reinterpret_cast<const char*>(data.data()) + 256);
  REQUIRE(at != bytes.end());
  at[200] = static_cast<char>(at[200] ^ 1);
  put(folder / "b.h5", bytes);
  REQUIRE_NOTHROW(first.read_box("x", {{0, 0}, {2, 2}}, DType::f32, out.data()));
  REQUIRE_THROWS_WITH(File::open(folder / "b.h5").read_box("x", {{0, 0}, {1, 1}}, DType::f32, out.data()),
                      Contains("is damaged"));
}
