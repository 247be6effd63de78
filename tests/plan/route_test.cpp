#include "parallel/plan/route.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <random>

using namespace mmt::plan;

namespace {

/// A random boundary: items on producer lanes, wanted (in parts, some twice, some never) by consumer lanes.
struct RowBoundary {
  std::vector<SourceItem> items;
  std::vector<WantedItem> wanted;
};
RowBoundary random_boundary(std::mt19937& rng, int producers, int consumers) {
  const auto pick = [&](int n) { return static_cast<int>(rng() % static_cast<unsigned>(n)); };
  RowBoundary b;
  std::map<std::pair<int, int>, std::int64_t> filled;
  const int num_items = 1 + pick(8);
  for (int i = 0; i < num_items; ++i) {
    SourceItem item{pick(producers), pick(2), 0, pick(7)};
    item.row = filled[{item.rank, item.block}];
    filled[{item.rank, item.block}] += item.count;
    b.items.push_back(item);
  }
  const int num_wanted = pick(10);
  for (int w = 0; w < num_wanted; ++w) {
    const int item = pick(num_items);
    const std::int64_t count = b.items[static_cast<std::size_t>(item)].count;
    const std::int64_t first = count == 0 ? 0 : pick(static_cast<int>(count));
    b.wanted.push_back({100 + 10 * pick(consumers), item, first, count - first});
  }
  return b;
}

/// A row's identity: (producer lane, block, row).
using Row = std::tuple<int, int, std::int64_t>;

std::map<int, std::vector<Row>> wanted_rows(const RowBoundary& b) {
  std::map<int, std::vector<Row>> rows;
  for (const WantedItem& w : b.wanted) {
    const SourceItem& item = b.items[static_cast<std::size_t>(w.item)];
    for (std::int64_t r = 0; r < w.count; ++r) rows[w.rank].emplace_back(item.rank, item.block, item.row + w.first + r);
  }
  return rows;
}

}  // namespace

TEST_CASE("a route brings every wanted row to its place once") {
  std::mt19937 rng(5);
  for (int round = 0; round < 300; ++round) {
    const RowBoundary b = random_boundary(rng, 3, 3);
    const Route route = make_route(2, 1, b.items, b.wanted);
    for (const auto& [rank, rows] : wanted_rows(b)) {
      std::vector<Row> got(rows.size(), Row{-1, -1, -1});
      REQUIRE(route.rows_into(rank) == static_cast<std::int64_t>(rows.size()));
      for (const int from : sources_of(route, rank)) {
        for (const RouteSegment& s : message(route, from, rank)) {
          for (std::int64_t r = 0; r < s.count; ++r) {
            REQUIRE(got[static_cast<std::size_t>(s.dst_row + r)] == Row{-1, -1, -1});
            got[static_cast<std::size_t>(s.dst_row + r)] = Row{from, s.src_block, s.src_row + r};
          }
        }
      }
      REQUIRE(got == rows);
    }
  }
}

TEST_CASE("the return of a route is its adjoint") {
  // <R x, y> = <x, R' y> with integers, so exactly: R' adds rows that are read twice.
  std::mt19937 rng(6);
  for (int round = 0; round < 200; ++round) {
    const RowBoundary b = random_boundary(rng, 2, 2);
    const Route route = make_route(0, 0, b.items, b.wanted);
    std::map<Row, std::int64_t> x, back;
    std::int64_t forward = 0, adjoint = 0;
    for (const RouteSegment& s : route.segments) {
      for (std::int64_t r = 0; r < s.count; ++r) {
        const Row row{s.src_rank, s.src_block, s.src_row + r};
        const auto value = x.try_emplace(row, static_cast<std::int64_t>(rng() % 1000)).first->second;
        const auto y = static_cast<std::int64_t>(rng() % 1000);
        forward += value * y;
        back[row] += y;
      }
    }
    for (const auto& [row, sum] : back) adjoint += x.at(row) * sum;
    REQUIRE(forward == adjoint);
  }
}

TEST_CASE("spread over tp every rank carries an even and contiguous share on both sides") {
  std::mt19937 rng(7);
  for (int round = 0; round < 300; ++round) {
    const RowBoundary b = random_boundary(rng, 3, 3);
    const Route lanes = make_route(0, 0, b.items, b.wanted);
    const int producer_tp = 1 + static_cast<int>(rng() % 4), consumer_tp = 1 + static_cast<int>(rng() % 4);
    const auto producers = [&](int first) {
      std::vector<int> g;
      for (int i = 0; i < producer_tp; ++i) g.push_back(first * 10 + i);
      return g;
    };
    const auto consumers = [&](int first) {
      std::vector<int> g;
      for (int i = 0; i < consumer_tp; ++i) g.push_back(first * 10 + i);
      return g;
    };
    const Route spread = spread_over_tp(lanes, producers, consumers);
    std::int64_t total = 0, before = 0;
    for (const RouteSegment& s : spread.segments) {
      total += s.count;
      const int lane = s.dst_rank / 10, index = s.dst_rank % 10;
      const Share into = share_of(lanes.rows_into(lane), index, consumer_tp);
      REQUIRE(s.dst_row >= into.first);
      REQUIRE(s.dst_row + s.count <= into.first + into.count);
      const Share from = share_of(lanes.rows_out_of(s.src_rank / 10), s.src_rank % 10, producer_tp);
      REQUIRE(s.src_at >= from.first);
      REQUIRE(s.src_at + s.count <= from.first + from.count);
    }
    for (const RouteSegment& s : lanes.segments) before += s.count;
    REQUIRE(total == before);
  }
}

TEST_CASE("shares split evenly and the first ones get the rest") {
  for (std::int64_t rows = 0; rows < 20; ++rows) {
    for (int parts = 1; parts < 6; ++parts) {
      std::int64_t at = 0;
      for (int i = 0; i < parts; ++i) {
        const Share s = share_of(rows, i, parts);
        REQUIRE(s.first == at);
        REQUIRE((s.count == rows / parts || s.count == rows / parts + 1));
        at += s.count;
      }
      REQUIRE(at == rows);
    }
  }
}

TEST_CASE("rows outside an item are refused") {
  const SourceItem item{0, 0, 0, 4};
  const WantedItem wanted{1, 0, 2, 3};
  REQUIRE_THROWS_WITH(make_route(7, 0, std::span(&item, 1), std::span(&wanted, 1)),
                      Catch::Matchers::Contains("edge 7: rows [2, 5) of item 0"));
}
