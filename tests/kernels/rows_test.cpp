// Embedding, gather and scatter, elementwise.
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/gather.h"
#include "tests/kernels/support.h"

#include <catch2/catch.hpp>

#include <cmath>

using namespace mmt;
using namespace mmt::test;

namespace {

std::vector<int> some_ids(int count, int vocabulary) {
  std::vector<int> ids;
  for (int i = 0; i < count; ++i) ids.push_back((i * i * 7 + 3 * i) % vocabulary);
  return ids;
}

}  // namespace

TEST_CASE("embedding rows, their gradient with repeated ids, and the vocabulary cut in shards") {
  for (const Backend& backend : backends())
    for (const DType dtype : kFastDTypes)
      for (const std::int64_t cols : {1, 37, 64, 200}) {
        const std::vector<int> list = some_ids(90, 11);
        const Matrix table = random(dtype, {11, cols}, 1, 1, 2), ids = integers(list), y = empty(dtype, {90, cols}, 3);
        ops::embedding_forward(backend.stream, y, table, ids);
        const std::vector<double> t = values(table), v = values(y);
        for (std::size_t i = 0; i < list.size(); ++i)
          for (std::int64_t j = 0; j < cols; ++j)
            REQUIRE(v[i * static_cast<std::size_t>(cols) + static_cast<std::size_t>(j)] ==
                    t[static_cast<std::size_t>(list[i] * cols + j)]);

        // Two shards add up to the whole.
        const Matrix low = empty(dtype, {90, cols}), high = empty(dtype, {90, cols});
        ops::embedding_forward(backend.stream, low, table->row_range(0, 4), ids, {.first = 0, .total = 11});
        ops::embedding_forward(backend.stream, high, table->row_range(4, 7), ids, {.first = 4, .total = 11});
        ops::add_in_place(backend.stream, low, high);
        require_bitwise(low, y, backend.name + " shards");

        const Matrix dy = random(dtype, {90, cols}, 2, 1, 1), dtable = random(DType::f32, {12, cols}, 3, 1, 1);
        const std::vector<double> old = values(dtable), g = values(dy);
        std::vector<double> expected(old.size(), 0.0), magnitude = expected;
        for (std::size_t i = 0; i < list.size(); ++i)
          for (std::size_t j = 0; j < static_cast<std::size_t>(cols); ++j) {
            expected[static_cast<std::size_t>(list[i]) * static_cast<std::size_t>(cols) + j] +=
                g[i * static_cast<std::size_t>(cols) + j];
            magnitude[static_cast<std::size_t>(list[i]) * static_cast<std::size_t>(cols) + j] +=
                90 * std::ldexp(std::abs(g[i * static_cast<std::size_t>(cols) + j]) + 4, -24);
          }
        ops::embedding_backward(backend.stream, dtable, dy, ids);
        require_close(dtable, expected, magnitude, backend.name);
        for (std::size_t j = 0; j < static_cast<std::size_t>(cols); ++j)
          REQUIRE(values(dtable)[11 * static_cast<std::size_t>(cols) + j] == 0.0);
        require_thread_independent([&] { ops::embedding_backward(backend.stream, dtable, dy, ids); }, {dtable},
                                   backend.name);
        assign(dtable, old);
        ops::embedding_backward(backend.stream, dtable, dy, ids, Accumulate::add);
        for (std::size_t i = 0; i < old.size(); ++i) expected[i] += old[i];
        require_close(dtable, expected, magnitude, backend.name + " added");
      }
}

TEST_CASE("embedding gradients are added in row order") {
  for (const Backend& backend : backends()) {
    // (1 + 2^-24) - 1 = 0 in f32, (1 - 1) + 2^-24 is not.
    const Matrix ids = integers({0, 0, 0, 1, 1, 1}), dtable = empty(DType::f32, {2, 1});
    const double tiny = std::ldexp(1.0, -25);
    const Matrix dy = of(DType::f32, {6, 1}, {1, tiny, -1, 1, -1, tiny});
    ops::embedding_backward(backend.stream, dtable, dy, ids);
    REQUIRE(values(dtable) == std::vector<double>{0.0, tiny});
  }
}

TEST_CASE("many rows found by index move and add as one by one, whatever the number of threads") {
  constexpr int kTable = 300, kRows = 500;
  for (const Backend& backend : fast_backends())
    for (const DType dtype : kFastDTypes)
      for (const std::int64_t cols : {1, 33, 257}) {
        std::vector<int> list;
        for (int i = 0; i < kRows; ++i) list.push_back(i % 11 == 4 ? -1 : i % 3 == 0 ? 7 : i * i % kTable);
        const Matrix src = random(dtype, {kRows, cols}, 1, 1, 3), ids = integers(list),
                     table = random(DType::f32, {kTable, cols}, 2, 1, 2), same = random(dtype, {kTable, cols}, 3, 1, 1);
        // Exactly what adding row after row gives.
        std::vector<double> sums(static_cast<std::size_t>(kTable * cols), 0.0), in_dtype = values(same);
        const std::vector<double> v = values(src);
        for (std::size_t i = 0; i < kRows; ++i)
          for (std::size_t j = 0; list[i] >= 0 && j < static_cast<std::size_t>(cols); ++j) {
            const std::size_t at = static_cast<std::size_t>(list[i] * cols) + j;
            sums[at] = static_cast<float>(sums[at]) + static_cast<float>(v[i * static_cast<std::size_t>(cols) + j]);
            const float sum =
                static_cast<float>(in_dtype[at]) + static_cast<float>(v[i * static_cast<std::size_t>(cols) + j]);
            in_dtype[at] =
                dtype == DType::bf16 ? static_cast<double>(static_cast<float>(bf16(sum))) : static_cast<double>(sum);
          }
        require_thread_independent([&] { ops::embedding_backward(backend.stream, table, src, ids); }, {table.view},
                                   backend.name);
        REQUIRE(values(table) == sums);
        ops::scatter_add_rows(backend.stream, same, src, ids);
        REQUIRE(values(same) == in_dtype);
        const Matrix gathered = empty(dtype, {kRows, cols}, 1);
        ops::gather_rows(backend.stream, gathered, same, ids);
        const std::vector<double> g = values(gathered);
        for (std::size_t i = 0; i < g.size(); ++i) {
          const int row = list[i / static_cast<std::size_t>(cols)];
          REQUIRE(
              g[i] ==
              (row < 0 ? 0.0 : in_dtype[static_cast<std::size_t>(row * cols) + i % static_cast<std::size_t>(cols)]));
        }
      }
}

TEST_CASE("rows beyond the caches move whole, at any alignment, and leave the rest alone") {
  constexpr std::int64_t kRows = 33'000, kCols = 513, kPad = 3;  // rows of 1,026 bytes, 33.9 MB in all
  const Stream stream = cpu_stream();
  const Matrix src = empty(DType::bf16, {kRows, kCols}, kPad), gathered = empty(DType::bf16, {kRows, kCols}, kPad),
               back = empty(DType::bf16, {kRows, kCols}, kPad), index = empty(DType::i32, {kRows});
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t c = 0; c < kCols + kPad; ++c) {
      src->row<bf16>(r)[c].bits = static_cast<std::uint16_t>(r * 31 + c * 7);
      gathered->row<bf16>(r)[c].bits = back->row<bf16>(r)[c].bits = 12345;
    }
    index->as<std::int32_t>()[r] = r % 1000 == 5 ? -1 : static_cast<std::int32_t>(r * 37 % kRows);  // no row twice
  }
  ops::gather_rows(stream, gathered, src, index);
  ops::scatter_rows(stream, back, gathered, index);
  std::int64_t wrong = 0;
  std::vector<bool> written(kRows, false);
  for (std::int64_t r = 0; r < kRows; ++r) {
    const std::int64_t from = index->as<std::int32_t>()[r];
    if (from >= 0) written[static_cast<std::size_t>(from)] = true;
    for (std::int64_t c = 0; c < kCols; ++c)
      wrong += gathered->row<bf16>(r)[c].bits != (from < 0 ? 0 : src->row<bf16>(from)[c].bits);
  }
  for (std::int64_t r = 0; r < kRows; ++r)
    for (std::int64_t c = 0; c < kCols + kPad; ++c) {
      const bool copied = c < kCols && written[static_cast<std::size_t>(r)];
      wrong += back->row<bf16>(r)[c].bits != (copied ? src->row<bf16>(r)[c].bits : 12345);
      wrong += c >= kCols && gathered->row<bf16>(r)[c].bits != 12345;
    }
  REQUIRE(wrong == 0);
}

TEST_CASE("a row without a token is zero and its gradient goes nowhere") {
  for (const Backend& backend : backends()) {
    const Matrix table = random(DType::f32, {5, 4}, 1), y = empty(DType::f32, {3, 4}), ids = integers({2, -1, 0}),
                 dtable = empty(DType::f32, {5, 4}),
                 dy = of(DType::f32, {3, 4}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
    for (const VocabularyShard shard : {VocabularyShard{}, VocabularyShard{0, 20}}) {
      ops::embedding_forward(backend.stream, y, table, ids, shard);
      for (std::size_t j = 0; j < 4; ++j) REQUIRE(values(y)[4 + j] == 0.0);
      ops::embedding_backward(backend.stream, dtable, dy, ids, Accumulate::overwrite, shard);
      REQUIRE(values(dtable) == std::vector<double>{9, 10, 11, 12, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0});
    }
  }
}

TEST_CASE("an id outside the vocabulary is named") {
  for (const Backend& backend : backends()) {
    const Matrix table = random(DType::f32, {5, 4}, 1), y = empty(DType::f32, {2, 4});
    REQUIRE_THROWS_WITH(ops::embedding_forward(backend.stream, y, table, integers({1, 5})),
                        Catch::Matchers::Contains("element 1 is 5, outside [-1, 5)"));
    REQUIRE_THROWS_AS(ops::embedding_forward(backend.stream, y, table, integers({-2, 0})), std::logic_error);
    REQUIRE_THROWS_AS(ops::embedding_backward(backend.stream, table, y, integers({1, 5})), std::logic_error);
  }
}

TEST_CASE("learned positions are added by index") {
  for (const Backend& backend : backends())
    for (const DType dtype : kFastDTypes) {
      const Matrix x = random(dtype, {6, 19}, 1, 1, 2), table = random(dtype, {4, 19}, 2),
                   index = integers({3, 0, 1, 1, 2, 3}), y = empty(dtype, {6, 19});
      ops::add_table_rows(backend.stream, y, x, table, index);
      std::vector<double> expected = values(x);
      const int list[] = {3, 0, 1, 1, 2, 3};
      for (std::size_t i = 0; i < expected.size(); ++i)
        expected[i] += values(table)[static_cast<std::size_t>(list[i / 19]) * 19 + i % 19];
      require_close(y, expected, {1e-30}, backend.name);
      ops::add_table_rows(backend.stream, x, x, table, index);
      require_bitwise(x, y, backend.name);
    }
}

TEST_CASE("gathered and scattered rows") {
  for (const Backend& backend : backends())
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64, DType::i32}) {
      const Matrix src = empty(dtype, {5, 3}, 2);
      assign(src, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
      const Matrix dst = empty(dtype, {4, 3}, 1);
      ops::gather_rows(backend.stream, dst, src, integers({2, -1, 0, 2}));
      REQUIRE(values(dst) == std::vector<double>{7, 8, 9, 0, 0, 0, 1, 2, 3, 7, 8, 9});
      ops::scatter_rows(backend.stream, dst, src->row_range(0, 3), integers({3, -1, 0}));
      REQUIRE(values(dst) == std::vector<double>{7, 8, 9, 0, 0, 0, 1, 2, 3, 1, 2, 3});
      REQUIRE_THROWS_WITH(ops::gather_rows(backend.stream, dst, src, integers({2, 5, 0, 2})),
                          Catch::Matchers::Contains("element 1 is 5, outside [-1, 5)"));
      REQUIRE_THROWS_AS(ops::scatter_rows(backend.stream, dst, src->row_range(0, 1), integers({4})), std::logic_error);
      if (dtype == DType::i32) continue;
      ops::scatter_add_rows(backend.stream, dst, src, integers({0, 0, -1, 3, 0}));
      REQUIRE(values(dst) == std::vector<double>{25, 29, 33, 0, 0, 0, 1, 2, 3, 11, 13, 15});
    }
}

TEST_CASE("scatter_add is the transpose of gather and does not depend on threads") {
  for (const Backend& backend : backends()) {
    const Matrix src = random(DType::bf16, {200, 90}, 1), dst = random(DType::f32, {17, 90}, 2, 1, 3),
                 index = integers(some_ids(200, 17));
    const std::vector<double> old = values(dst);
    std::vector<double> expected = old, bound(old.size(), 1e-30);
    for (std::size_t i = 0; i < 200 * 90; ++i) {
      const std::size_t at = static_cast<std::size_t>(some_ids(200, 17)[i / 90]) * 90 + i % 90;
      expected[at] += values(src->row_range(static_cast<std::int64_t>(i / 90), 1))[i % 90];
      bound[at] += std::ldexp(20.0, -24);  // one addition; partial sums stay below 20
    }
    require_thread_independent(
        [&] {
          assign(dst, old);
          ops::scatter_add_rows(backend.stream, dst, src, index);
        },
        {dst}, backend.name);
    require_close(dst, expected, bound, backend.name);
  }
}

TEST_CASE("elementwise sums, scaling, bias, fill and conversion over strides") {
  for (const Backend& backend : backends())
    for (const std::int64_t pad : {0, 3})
      for (const std::int64_t cols : {1, 15, 64, 133}) {
        for (const DType dtype : kFastDTypes) {
          const Matrix a = random(dtype, {21, cols}, 1, 1, pad), b = random(dtype, {21, cols}, 2, 1, pad),
                       v = random(dtype, {cols}, 3), y = empty(dtype, {21, cols}, pad);
          const std::vector<double> pa = values(a), pb = values(b);
          std::vector<double> sum = pa, scaled = pa, biased = pa;
          for (std::size_t i = 0; i < pa.size(); ++i) {
            sum[i] += pb[i];
            scaled[i] *= 0.7f;
            biased[i] += values(v)[i % static_cast<std::size_t>(cols)];
          }
          ops::add(backend.stream, y, a, b);
          require_close(y, sum, {1e-30}, backend.name + " add");
          ops::scale(backend.stream, y, a, static_cast<double>(0.7f));
          require_close(y, scaled, {1e-30}, backend.name + " scale");
          ops::add_bias(backend.stream, y, a, v);
          require_close(y, biased, {1e-30}, backend.name + " bias");
          ops::fill(backend.stream, y, 0.0);
          REQUIRE(values(y) == std::vector<double>(pa.size(), 0.0));
          ops::fill(backend.stream, y, 0.5);
          REQUIRE(values(y) == std::vector<double>(pa.size(), 0.5));
          ops::add_in_place(backend.stream, a, b);
          ops::add(backend.stream, y, b, of(dtype, {21, cols}, pa));
          require_bitwise(a, y, backend.name);
        }
        const Matrix f = random(DType::f32, {21, cols}, 4, 1, pad), h = empty(DType::bf16, {21, cols}, pad),
                     g = empty(DType::f32, {21, cols});
        ops::copy(backend.stream, h, f);
        require_close(h, values(f), {1e-30}, backend.name + " to bf16");
        ops::copy(backend.stream, g, h);
        REQUIRE(values(g) == values(h));
        const std::vector<double> old = values(f);
        ops::add_in_place(backend.stream, f, h);
        std::vector<double> sum = old;
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values(h)[i];
        require_close(f, sum, {1e-30}, backend.name + " f32 + bf16");
        const Matrix d = empty(DType::f64, {21, cols});
        ops::copy(backend.stream, d, h);
        REQUIRE(values(d) == values(h));
      }
}

TEST_CASE("conversion to bf16 rounds to nearest even and keeps NaN, infinity and denormals") {
  const double tie = 1 + std::ldexp(1.0, -8), above = tie + std::ldexp(1.0, -20);
  const Matrix f =
      of(DType::f32, {1, 9},
         {tie, above, 1 + 3 * std::ldexp(1.0, -8), INFINITY, -INFINITY, NAN, 3.4e38, -0.0, std::ldexp(1.0, -130)});
  for (const Backend& backend : backends()) {
    const Matrix h = empty(DType::bf16, {1, 9});
    ops::copy(backend.stream, h, f);
    const std::vector<double> v = values(h);
    REQUIRE(v[0] == 1.0);
    REQUIRE(v[1] == 1 + std::ldexp(1.0, -7));
    REQUIRE(v[2] == 1 + std::ldexp(1.0, -6));
    REQUIRE(v[3] == INFINITY);
    REQUIRE(v[4] == -INFINITY);
    REQUIRE(std::isnan(v[5]));
    REQUIRE(v[6] == INFINITY);
    REQUIRE((v[7] == 0.0 && std::signbit(v[7])));
    REQUIRE(v[8] == std::ldexp(1.0, -130));
    Matrix n = of(DType::i32, {1, 3}, {1, 2, 3});
    ops::fill(backend.stream, n, -7);
    REQUIRE(values(n) == std::vector<double>{-7, -7, -7});
    REQUIRE_THROWS_AS(ops::fill(backend.stream, n, 0.5), std::logic_error);
    REQUIRE_THROWS_AS(ops::copy(backend.stream, n, f), std::logic_error);
  }
}
