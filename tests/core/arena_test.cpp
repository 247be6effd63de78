#include "core/arena.h"

#include <catch2/catch.hpp>

#include <cmath>

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
