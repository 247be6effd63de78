// The data order: permutations, mixtures, cursors.
#include "core/data/sampler.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "core/data/report.h"
#include "core/error.h"

using namespace mmt;
using namespace mmt::data;

namespace {

std::map<std::pair<int, std::int64_t>, int> counts(const Sampler& s, std::int64_t first, std::int64_t last) {
  std::map<std::pair<int, std::int64_t>, int> n;
  for (std::int64_t p = first; p < last; ++p) {
    const Draw d = s.at(p);
    CHECK(d.place == p);
    ++n[{d.set, d.sample}];
  }
  return n;
}

}  // namespace

TEST_CASE("every epoch is a permutation and no two are alike") {
  for (const std::int64_t n : {1, 2, 3, 5, 16, 17, 100, 257}) {
    const Sampler s(1, {{n}}, true);
    REQUIRE(s.epoch_size() == n);
    std::vector<std::vector<std::int64_t>> orders;
    for (std::int64_t e = 0; e < 3; ++e) {
      std::vector<std::int64_t> order;
      for (std::int64_t p = e * n; p < (e + 1) * n; ++p) {
        order.push_back(s.at(p).sample);
        CHECK(s.at(p).pass == e);
      }
      std::vector<std::int64_t> sorted = order;
      std::sort(sorted.begin(), sorted.end());
      for (std::int64_t i = 0; i < n; ++i) CHECK(sorted[static_cast<std::size_t>(i)] == i);
      orders.push_back(order);
    }
    if (n >= 16) {
      CHECK(orders[0] != orders[1]);
      CHECK(orders[1] != orders[2]);
      const Sampler other(2, {{n}}, true);
      std::vector<std::int64_t> order;
      for (std::int64_t p = 0; p < n; ++p) order.push_back(other.at(p).sample);
      CHECK(order != orders[0]);
    }
  }
}

TEST_CASE("shuffled orders have no visible bias") {
  // Mean place of each of 8 samples over 4000 epochs: 3.5 with a standard error of 2.29 / sqrt(4000) = 0.036.
  const std::int64_t n = 8, epochs = 4000;
  const Sampler s(9, {{n}}, true);
  std::vector<double> mean(static_cast<std::size_t>(n), 0);
  for (std::int64_t p = 0; p < n * epochs; ++p) {
    mean[static_cast<std::size_t>(s.at(p).sample)] += static_cast<double>(p % n) / static_cast<double>(epochs);
  }
  for (const double m : mean) CHECK(m == Approx(3.5).margin(5 * 0.036));
}

TEST_CASE("without shuffling the sets come in file order") {
  const Sampler s(1, {{3}, {2}}, false);
  std::vector<std::pair<int, std::int64_t>> order;
  for (std::int64_t p = 0; p < 6; ++p) order.emplace_back(s.at(p).set, s.at(p).sample);
  CHECK(order == std::vector<std::pair<int, std::int64_t>>{{0, 0}, {0, 1}, {0, 2}, {1, 0}, {1, 1}, {0, 0}});
}

TEST_CASE("mixtures visit each set by its weight") {
  const Sampler s(4, {{100, to_ppm(1)}, {40, to_ppm(2.5)}, {1000, to_ppm(0.25)}, {7, to_ppm(0)}}, true);
  CHECK(s.epoch_size() == 100 + 100 + 250);
  for (std::int64_t e = 0; e < 2; ++e) {
    const auto n = counts(s, e * 450, (e + 1) * 450);
    std::map<int, int> visits;
    for (const auto& [key, count] : n) {
      visits[key.first] += count;
      if (key.first == 0) CHECK(count == 1);
      if (key.first == 1) CHECK((count == 2 || count == 3));
      if (key.first == 2) CHECK(count == 1);
    }
    CHECK(visits[0] == 100);
    CHECK(visits[1] == 100);
    CHECK(visits[2] == 250);
    CHECK(visits.count(3) == 0);
  }
  // A set of weight 1/4 is seen whole in four epochs, one of 2.5 five times in two.
  const auto four = counts(s, 0, 4 * 450);
  for (std::int64_t i = 0; i < 1000; ++i) CHECK(four.at({2, i}) == 1);
  const auto two = counts(s, 0, 2 * 450);
  for (std::int64_t i = 0; i < 40; ++i) CHECK(two.at({1, i}) == 5);
  // The sets are mixed: the first tenth of an epoch holds all three.
  std::set<int> seen;
  for (std::int64_t p = 0; p < 45; ++p) seen.insert(s.at(p).set);
  CHECK(seen.size() == 3);
}

TEST_CASE("random mixtures give every epoch its exact share of each set, and every sample its turn") {
  std::mt19937 rng(11);
  for (int round = 0; round < 40; ++round) {
    std::vector<SampledSet> sets;
    std::vector<std::int64_t> share;  // by whole numbers: size x weight, cut
    for (std::size_t n = 1 + rng() % 4; n > 0; --n) {
      const std::int64_t size = 1 + rng() % 40, ppm = rng() % 3'000'000;
      sets.push_back({size, ppm});
      share.push_back(ppm == 0 ? 0 : std::max<std::int64_t>(1, size * ppm / 1'000'000));
    }
    sets.push_back({25, 1'000'000});
    share.push_back(25);
    const Sampler s(rng(), sets, rng() % 4 != 0);
    const std::int64_t epoch = std::accumulate(share.begin(), share.end(), std::int64_t{0});
    REQUIRE(s.epoch_size() == epoch);
    std::map<std::pair<int, std::int64_t>, int> all;
    for (std::int64_t e = 0; e < 5; ++e) {
      std::vector<std::int64_t> drawn(sets.size(), 0);
      for (const auto& [draw, count] : counts(s, e * epoch, (e + 1) * epoch)) {
        drawn[static_cast<std::size_t>(draw.first)] += count;
        all[draw] += count;
      }
      CHECK(drawn == share);
    }
    // Over all epochs no sample is drawn more than once more often than another of its set.
    for (std::size_t set = 0; set < sets.size(); ++set) {
      int least = 1000, most = 0;
      for (std::int64_t i = 0; i < sets[set].size; ++i) {
        const auto found = all.find({static_cast<int>(set), i});
        least = std::min(least, found == all.end() ? 0 : found->second);
        most = std::max(most, found == all.end() ? 0 : found->second);
      }
      CHECK(most - least <= 1);
    }
  }
}

TEST_CASE("batches continue into the next epoch or end with it") {
  const Sampler s(4, {{10}}, true);
  CHECK(s.steps_per_epoch(4) == 3);
  std::int64_t cursor = 0;
  std::vector<std::size_t> sizes;
  for (int i = 0; i < 4; ++i) {
    const auto b = s.batch(cursor, 4, true);
    sizes.push_back(b.size());
    cursor += static_cast<std::int64_t>(b.size());
  }
  CHECK(sizes == std::vector<std::size_t>{4, 4, 2, 4});
  CHECK(s.batch(8, 4, false).size() == 4);
  CHECK(s.batch(8, 4, false).back() == s.at(11));
  CHECK(s.batch(0, 25, false).size() == 25);  // fewer samples than a batch simply repeat
}

TEST_CASE("a cursor alone resumes the order at any batch size") {
  const Sampler s(4, {{50}, {30, to_ppm(0.5)}}, true), again(4, {{50}, {30, to_ppm(0.5)}}, true);
  std::vector<Draw> whole, pieces;
  for (int i = 0; i < 10; ++i) {
    for (const Draw& d : s.batch(i * 16, 16, false)) whole.push_back(d);
  }
  for (std::int64_t cursor = 0; cursor < 160;) {
    const std::int64_t n = cursor < 80 ? 16 : 5;
    for (const Draw& d : again.batch(cursor, n, false)) pieces.push_back(d);
    cursor += n;
  }
  CHECK(whole == pieces);
}

TEST_CASE("sampler mistakes") {
  CHECK_THROWS_AS(Sampler(1, {}, true), ConfigError);
  CHECK_THROWS_AS(Sampler(1, {{0}, {5, 0}}, true), ConfigError);
  CHECK_THROWS_AS(to_ppm(-1), ConfigError);
  CHECK_THROWS_AS(to_ppm(std::nan("")), ConfigError);
  CHECK(Sampler(1, {{5, to_ppm(0.01)}}, true).epoch_size() == 1);
  const std::int64_t huge = std::int64_t{1} << 35;
  const Sampler big(1, {{huge, to_ppm(1.5)}}, true);
  CHECK(big.epoch_size() == huge + huge / 2);
  CHECK(big.at(huge + 12345).sample < huge);
}

TEST_CASE("data reports add up over ranks") {
  DataReport a, b;
  a.samples = 10;
  a.repeated = 2;
  a.skipped[static_cast<std::size_t>(DataFault::no_labels)] = 3;
  b.samples = 5;
  b.text_rows = 77;
  b.skipped[static_cast<std::size_t>(DataFault::unsupported_media)] = 1;
  DataReport sum = a;
  sum += b;
  auto values = a.values();
  const auto more = b.values();
  for (std::size_t i = 0; i < values.size(); ++i) values[i] += more[i];
  CHECK(DataReport::from_values(values).values() == sum.values());
  CHECK_THAT(sum.text(),
             Catch::Contains("15 samples") && Catch::Contains("3 no_labels") && Catch::Contains("1 unsupported_media"));
  CHECK_THAT(DataReport().text(), Catch::Contains("skipped: none"));
}
