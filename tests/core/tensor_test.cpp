#include "core/tensor.h"

#include "core/arena.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <limits>
#include <numeric>

using namespace mmt;

TEST_CASE("rows and column ranges address the elements of the whole") {
  OwnedTensor owner(DType::i32, {4, 6});
  const Tensor t = owner;
  std::iota(t.as<std::int32_t>(), t.as<std::int32_t>() + 24, 0);
  const Tensor part = t.row_range(1, 3).col_range(2, 2);
  REQUIRE(part.describe() == "i32[3,2]");
  REQUIRE_FALSE(part.contiguous());
  for (std::int64_t r = 0; r < 3; ++r) {
    for (std::int64_t c = 0; c < 2; ++c) REQUIRE(part.row<std::int32_t>(r)[c] == (r + 1) * 6 + c + 2);
  }
  REQUIRE(part.row_range(1, 1).contiguous());
  REQUIRE_THROWS_AS(part.span<std::int32_t>(), std::logic_error);
  REQUIRE_THROWS_AS(part.reshape({6}), std::logic_error);
  const Tensor flat = t.reshape({2, 3, 4});
  REQUIRE(flat.as<std::int32_t>()[23] == 23);
  REQUIRE(flat.cols() == 12);
  REQUIRE_THROWS_AS(t.reshape({5, 5}), std::logic_error);
}

TEST_CASE("ranges outside a tensor are refused even where sums overflow") {
  OwnedTensor owner(DType::u8, {4, 6});
  const Tensor t = owner;
  const std::int64_t max = std::numeric_limits<std::int64_t>::max();
  REQUIRE_NOTHROW(t.row_range(4, 0));
  REQUIRE_THROWS_AS(t.row_range(4, 1), std::logic_error);
  REQUIRE_THROWS_AS(t.row_range(2, max), std::logic_error);
  REQUIRE_THROWS_AS(t.row_range(max, 2), std::logic_error);
  REQUIRE_THROWS_AS(t.row_range(-1, 2), std::logic_error);
  REQUIRE_THROWS_AS(t.col_range(2, max), std::logic_error);
  REQUIRE_THROWS_AS(t.reshape({24}).col_range(0, 1), std::logic_error);
  REQUIRE_THROWS_AS(Tensor().row_range(0, 0), std::logic_error);
}

TEST_CASE("impossible shapes and wrong types are refused") {
  REQUIRE_THROWS_AS(Tensor(nullptr, DType::f32, {}), std::logic_error);
  REQUIRE_THROWS_AS(Tensor(nullptr, DType::f32, {1, 1, 1, 1, 1, 1}), std::logic_error);
  REQUIRE_THROWS_AS(Tensor(nullptr, DType::f32, {2, -3}), std::logic_error);
  REQUIRE_THROWS_AS(Tensor(nullptr, DType::f32, {std::int64_t{1} << 61}), std::logic_error);
  REQUIRE_NOTHROW(Tensor(nullptr, DType::f32, {(std::int64_t{1} << 61) - 1}));
  const Tensor t(nullptr, DType::bf16, {2, 3});
  REQUIRE_THROWS_WITH(t.as<float>(), Catch::Contains("bf16[2,3] read as f32"));
  REQUIRE_THROWS_WITH(check_shape(t, {3, 2}, "weight"), Catch::Contains("weight is bf16[2,3], expected [3,2]"));
  REQUIRE_THROWS_WITH(check_same_shape(t, Tensor(nullptr, DType::f32, {2, 3}), "add"),
                      Catch::Contains("add: bf16[2,3] and f32[2,3]"));
  REQUIRE_NOTHROW(check_shape(t, {2, 3}, "weight"));
}

TEST_CASE("bf16 rounds to nearest even and keeps NaN and infinity") {
  REQUIRE(bf16(1.0f).bits == 0x3f80);
  // 1 + 2^-8 lies half-way between 1 and 1 + 2^-7: to the even one; 1 + 3 * 2^-8 half-way too: up.
  REQUIRE(bf16(1.00390625f).bits == 0x3f80);
  REQUIRE(bf16(1.01171875f).bits == 0x3f82);
  REQUIRE(bf16(std::nextafter(1.00390625f, 2.0f)).bits == 0x3f81);
  REQUIRE(bf16(std::numeric_limits<float>::max()).bits == 0x7f80);
  REQUIRE(std::isnan(static_cast<float>(bf16(std::numeric_limits<float>::quiet_NaN()))));
  // A NaN whose payload lies in the lower half only must not become infinity.
  REQUIRE(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(0x7f800001u)))));
  REQUIRE(static_cast<float>(bf16(-0.0f)) == 0.0f);
  REQUIRE(std::signbit(static_cast<float>(bf16(-0.0f))));
  // Every bf16 value survives the way to f32 and back.
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    bf16 v;
    v.bits = static_cast<std::uint16_t>(bits);
    const float f = v;
    if (!std::isnan(f)) REQUIRE(bf16(f).bits == bits);
  }
}

TEST_CASE("type names and sizes agree") {
  for (const DType d : {DType::f32, DType::bf16, DType::f64, DType::i32, DType::i64, DType::u64, DType::u8}) {
    REQUIRE(parse_dtype(name_of(d)) == d);
    REQUIRE(size_of(d) > 0);
  }
  REQUIRE_FALSE(parse_dtype("fp16").has_value());
  REQUIRE_THROWS_AS(visit_float(DType::i32, []<class T>() {}), std::logic_error);
  REQUIRE(visit_float(DType::bf16, []<class T>() { return sizeof(T); }) == 2);
}
