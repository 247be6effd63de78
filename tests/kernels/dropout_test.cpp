// Dropout by address: which elements, the factor, parts of columns, padding rows, what is added.
#include "kernels/dropout.h"
#include "core/philox.h"
#include "tests/kernels/support.h"

#include <catch2/catch.hpp>

#include <cmath>

using namespace mmt;
using namespace mmt::test;

namespace {

struct Address {
  std::int64_t sample, row;
};

/// i64 (rows, 2).
OwnedTensor address_of(const std::vector<Address>& rows) {
  OwnedTensor t(DType::i64, {static_cast<std::int64_t>(rows.size()), 2});
  for (std::size_t r = 0; r < rows.size(); ++r) {
    t->as<std::int64_t>()[2 * r] = rows[r].sample;
    t->as<std::int64_t>()[2 * r + 1] = rows[r].row;
  }
  return t;
}

/// Rows of samples near and far, numbers that need more than 32 bits of the block counter, padding.
const std::vector<Address> kRows = {
    {0, 0},     {0, 1},     {0, 2}, {7, 3}, {7, (std::int64_t{1} << 33) + 5}, {-1, 0}, {(std::int64_t{1} << 48) - 1, 9},
    {65536, 1}, {65535, 0}, {12, 4}};

std::vector<double> expected(const std::vector<double>& x, std::int64_t cols, const DropoutOptions& o) {
  std::vector<double> y(x.size(), 0.0);
  for (std::size_t r = 0; r < kRows.size(); ++r)
    for (std::int64_t c = 0; c < cols; ++c) {
      const auto e = static_cast<std::uint64_t>(kRows[r].row * o.features + o.first_col + c);
      const std::size_t i = r * static_cast<std::size_t>(cols) + static_cast<std::size_t>(c);
      if (kRows[r].sample < 0) continue;
      const std::uint32_t bits = random_bits(o.key, static_cast<std::uint64_t>(kRows[r].sample), o.step, e);
      if (static_cast<double>(bits) >= std::floor(o.probability * 0x1p32)) y[i] = x[i] / (1.0 - o.probability);
    }
  return y;
}

}  // namespace

TEST_CASE("dropout keeps what the address says and scales it") {
  const auto rows = static_cast<std::int64_t>(kRows.size());
  const OwnedTensor address = address_of(kRows);
  for (const Backend& backend : backends())
    for (const DType dtype : kFastDTypes)
      for (const std::int64_t cols : {1, 3, 4, 16, 37, 512, 515, 1300})
        for (const std::int64_t first : {0, 1, 6})
          for (const double p : {0.0, 0.05, 0.5, 0.9}) {
            DropoutOptions o{.key = 0x123456789abcdef0u, .step = 77, .probability = p};
            o.features = cols + 8;
            o.first_col = first;
            const Matrix x = random(dtype, {rows, cols}, 1, 1, 3), y = empty(dtype, {rows, cols}, 2);
            ops::dropout(backend.stream, y, x, address, o);
            const std::vector<double> want = expected(values(x), cols, o), got = values(y);
            // The factor is rounded to f32, which the product sees once.
            std::vector<double> bound;
            for (const double w : want) bound.push_back(std::ldexp(std::abs(w), -22));
            require_close(y, want, bound, backend.name);
            for (std::size_t i = 0; i < want.size(); ++i) REQUIRE((got[i] == 0.0) == (want[i] == 0.0));

            // Added: the sum and its rounding.
            const Matrix sum = random(dtype, {rows, cols}, 2, 1, 1);
            std::vector<double> total = values(sum);
            for (std::size_t i = 0; i < total.size(); ++i) {
              bound[i] += std::ldexp(std::abs(total[i]) + std::abs(want[i]), -23);
              total[i] += want[i];
            }
            o.accumulate = Accumulate::add;
            ops::dropout(backend.stream, sum, x, address, o);
            require_close(sum, total, bound, backend.name + " added");

            // In place.
            o.accumulate = Accumulate::overwrite;
            ops::dropout(backend.stream, x, x, address, o);
            require_bitwise(x, y, backend.name + " in place");
          }
}

TEST_CASE("columns of a tensor are dropped as in the whole tensor and threads change nothing") {
  std::vector<Address> many;
  for (std::int64_t r = 0; r < 200; ++r) many.push_back({r / 30, r % 30});
  const OwnedTensor address = address_of(many);
  for (const Backend& backend : backends())
    for (const DType dtype : kFastDTypes) {
      DropoutOptions o{.key = 5, .step = 3, .probability = 0.3, .features = 150};
      const Matrix x = random(dtype, {200, 150}, 1), y = empty(dtype, {200, 150}), parts = empty(dtype, {200, 150});
      ops::dropout(backend.stream, y, x, address, o);
      for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>{0, 50}, {50, 1}, {51, 99}}) {
        o.first_col = first;
        ops::dropout(backend.stream, parts->col_range(first, count), x->col_range(first, count), address, o);
      }
      require_bitwise(parts, y, backend.name);
      o.first_col = 0;
      require_thread_independent([&] { ops::dropout(backend.stream, y, x, address, o); }, {y}, backend.name);
      // What depends on the address: another key, step, first column.
      const auto kept = [&](const DropoutOptions& options) {
        ops::dropout(backend.stream, y, x, address, options);
        std::vector<bool> list;
        for (const double v : values(y)) list.push_back(v != 0.0);
        return list;
      };
      const std::vector<bool> base = kept(o);
      const auto dropped = static_cast<double>(std::count(base.begin(), base.end(), false));
      // 30,000 draws with p = 0.3: a standard deviation of 79.
      REQUIRE(std::abs(dropped - 9000.0) < 400.0);
      for (DropoutOptions other : {DropoutOptions{.key = 6, .step = 3, .probability = 0.3, .features = 150},
                                   DropoutOptions{.key = 5, .step = 4, .probability = 0.3, .features = 150},
                                   DropoutOptions{.key = 5, .step = 3, .probability = 0.3, .features = 151}})
        REQUIRE(kept(other) != base);
    }
}

TEST_CASE("dropout passes no NaN of a dropped element on and refuses what has no address") {
  const OwnedTensor address = address_of({{0, 0}});
  for (const Backend& backend : backends()) {
    DropoutOptions o{.key = 1, .step = 0, .probability = 0.5, .features = 64};
    const Matrix x = of(DType::f32, {1, 64}, std::vector<double>(64, NAN)), y = empty(DType::f32, {1, 64});
    ops::dropout(backend.stream, y, x, address, o);
    std::size_t nans = 0;
    for (const double v : values(y)) {
      REQUIRE((std::isnan(v) || v == 0.0));
      nans += std::isnan(v) ? 1 : 0;
    }
    REQUIRE((nans > 10 && nans < 54));
    o.probability = 1.0;
    REQUIRE_THROWS_AS(ops::dropout(backend.stream, y, x, address, o), std::logic_error);
    o = {.key = 1, .step = 0, .probability = 0.5, .features = 63};
    REQUIRE_THROWS_AS(ops::dropout(backend.stream, y, x, address, o), std::logic_error);
    const OwnedTensor far = address_of({{std::int64_t{1} << 48, 0}});
    o.features = 64;
    REQUIRE_THROWS_AS(ops::dropout(backend.stream, y, x, far, o), std::logic_error);
  }
}

TEST_CASE("the gradient of dropout in f64") {
  const OwnedTensor address = address_of({{3, 0}, {3, 1}, {4, 0}, {-1, 0}});
  const DropoutOptions o{.key = 9, .step = 1, .probability = 0.4, .features = 7};
  const Matrix x = random(DType::f64, {4, 7}, 1), y = empty(DType::f64, {4, 7}), r = random(DType::f64, {4, 7}, 2),
               dx = empty(DType::f64, {4, 7});
  const auto loss = [&] {
    ops::dropout(reference_stream(), y, x, address, o);
    return dot(r, y);
  };
  ops::dropout(reference_stream(), dx, r, address, o);
  require_gradient(loss, x, dx, "dropout");
}
