#include "core/arena.h"

#include "core/log.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <cstring>
#include <vector>

using namespace mmt;

TEST_CASE("an arena hands out aligned tensors and takes them back in order") {
  Arena arena("test", 4 * Arena::footprint(100 * sizeof(float)));
  const Tensor a = arena.take(DType::f32, {10, 10});
  const std::size_t mark = arena.mark();
  const Tensor b = arena.take(DType::f32, {100});
  REQUIRE(reinterpret_cast<std::uintptr_t>(a.data) % 64 == 0);
  REQUIRE(reinterpret_cast<std::uintptr_t>(b.data) % 64 == 0);
  REQUIRE(static_cast<char*>(b.data) >= static_cast<char*>(a.data) + a.bytes());
  arena.release_to(mark);
  REQUIRE(arena.take(DType::f32, {100}).data == b.data);
  REQUIRE(arena.peak() == 2 * Arena::footprint(400));
}

TEST_CASE("an arena that is too small says so with the numbers") {
  Arena arena("activations", 256);
  REQUIRE_THROWS_WITH(arena.take(DType::f32, {100}),
                      Catch::Matchers::Contains("arena activations") && Catch::Matchers::Contains("of 256 used"));
}

TEST_CASE("fresh and released memory is poisoned") {
  Arena arena("test", Arena::footprint(64));
  const Tensor t = arena.take(DType::f32, {4});
  for (const float v : t.span<float>()) REQUIRE(std::isnan(v));
  for (float& v : t.span<float>()) v = 1.0f;
  arena.release_to(0);
  for (const float v : t.span<float>()) REQUIRE(std::isnan(v));
}

TEST_CASE("shapes whose size overflows are refused") {
  Arena arena("test", 1024);
  const std::int64_t big = std::int64_t{1} << 31;
  REQUIRE_THROWS_AS(arena.take(DType::f32, {big, big}), std::logic_error);
  REQUIRE_THROWS_AS(arena.take(DType::f32, {big, big, 0}), std::logic_error);
  REQUIRE_THROWS_AS(arena.take(DType::u8, {-1}), std::logic_error);
  // Fits 63 bits, but not the arena: the sum with what is used must not wrap either.
  REQUIRE_THROWS_WITH(arena.take(DType::u8, {(std::int64_t{1} << 62)}), Catch::Contains("arena test"));
  REQUIRE_THROWS_AS(OwnedTensor(DType::f64, {big, big, big}), std::logic_error);
  REQUIRE_THROWS_WITH(OwnedTensor(DType::u8, {(std::int64_t{1} << 62)}), Catch::Contains("out of host memory"));
  REQUIRE_THROWS_AS(arena.release_to(64), std::logic_error);
  REQUIRE(arena.take(DType::f32, {0, 5}).numel() == 0);
}

#ifndef NDEBUG
namespace {

std::string message_of_release(Arena& arena) {
  try {
    arena.release_to(0);
  } catch (const std::logic_error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("guard zones find writes outside a tensor and name it") {
  Arena arena("block 3", 4096);
  const Tensor a = arena.take(DType::f32, {3, 5});
  const Tensor b = arena.take(DType::bf16, {7});
  for (const Tensor& t : {a, b}) std::memset(t.data, 1, static_cast<std::size_t>(t.bytes()));
  auto* bytes = static_cast<unsigned char*>(a.data);
  const auto damage = [&](std::ptrdiff_t at, std::size_t count) {
    const std::vector<unsigned char> kept(bytes + at, bytes + at + count);
    std::memset(bytes + at, 0x11, count);
    std::string message = message_of_release(arena);
    std::copy(kept.begin(), kept.end(), bytes + at);
    return message;
  };
  const std::ptrdiff_t end = a.bytes();
  const std::ptrdiff_t second = static_cast<unsigned char*>(b.data) - bytes;
  // The first byte behind the tensor lies in the rounding of its size.
  REQUIRE_THAT(damage(end, 1), Catch::Contains("arena block 3: a write beyond f32[3,5] at offset 0: 0 bytes behind"));
  REQUIRE_THAT(damage(end + 20, 1), Catch::Contains("20 bytes behind"));
  REQUIRE_THAT(damage(second - 2, 2), Catch::Contains("1 bytes before the tensor at offset"));
  REQUIRE_THAT(damage(second + b.bytes(), 4), Catch::Contains("a write beyond bf16[7]"));
  REQUIRE_THAT(damage(end, static_cast<std::size_t>(second - end)), Catch::Contains("overwritten as a whole"));
  REQUIRE(message_of_release(arena).empty());
  REQUIRE(arena.mark() == 0);
}

TEST_CASE("an arena scope reports damage by exception or while one passes by a log line") {
  Arena arena("scoped", 4096);
  const auto overrun = [&] {
    const Tensor t = arena.take(DType::u8, {10});
    static_cast<unsigned char*>(t.data)[10] = 1;
  };
  REQUIRE_THROWS_AS(
      [&] {
        ArenaScope scope(arena);
        overrun();
      }(),
      std::logic_error);
  arena = Arena("scoped", 4096);
  std::string logged;
  log::set_sink([&](log::Level, int, std::string_view text) { logged = text; });
  REQUIRE_THROWS_WITH(
      [&] {
        ArenaScope scope(arena);
        overrun();
        throw Error("first");
      }(),
      "first");
  log::set_sink({});
  REQUIRE_THAT(logged, Catch::Contains("arena scoped: a write beyond u8[10]"));
  REQUIRE(arena.mark() == 0);
}
#endif
