#include "core/philox.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

using namespace mmt;

namespace {

using Words = std::array<std::uint32_t, 4>;

// The counter words (c0 lowest) of the published vectors as our three addresses.
Words from_counter(std::uint64_t key, const Words& c) {
  const std::uint64_t block = c[0] | static_cast<std::uint64_t>(c[1] & 0xffffu) << 32;
  const std::uint64_t sample = c[1] >> 16 | static_cast<std::uint64_t>(c[2]) << 16;
  return philox(key, sample, c[3], block);
}

}  // namespace

TEST_CASE("philox gives the published known answers") {
  // Random123, tests/kat_vectors, philox4x32 with 10 rounds; key word 0 is the low half.
  REQUIRE(from_counter(0, {0, 0, 0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  REQUIRE(from_counter(~0ull, {~0u, ~0u, ~0u, ~0u}) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  REQUIRE(from_counter(0x299f31d0a4093822ull, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}) ==
          Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("a philox address that does not fit is refused") {
  REQUIRE_THROWS_AS(philox(1, 1ull << 48, 0, 0), std::logic_error);
  REQUIRE_THROWS_AS(philox(1, 0, 0, 1ull << 48), std::logic_error);
  REQUIRE_NOTHROW(philox(1, (1ull << 48) - 1, ~0u, (1ull << 48) - 1));
}

TEST_CASE("every part of a random address matters") {
  const std::uint64_t key = random_key(1, "init", "llm/embed");
  const std::vector<std::uint64_t> keys = {key, random_key(2, "init", "llm/embed"), random_key(1, "drop", "llm/embed"),
                                           random_key(1, "init", "llm/embee"), random_key(1, "initllm/", "embed")};
  std::vector<Words> blocks;
  for (const auto k : keys) blocks.push_back(philox(k, 5, 6, 7));
  blocks.push_back(philox(key, 6, 6, 7));
  blocks.push_back(philox(key, 5, 7, 7));
  blocks.push_back(philox(key, 5, 6, 8));
  blocks.push_back(philox(key, 5ull << 16, 6, 7));
  blocks.push_back(philox(key, 5, 6, 7ull << 32));
  std::sort(blocks.begin(), blocks.end());
  REQUIRE(std::adjacent_find(blocks.begin(), blocks.end()) == blocks.end());
}

TEST_CASE("random keys and permutations keep their values") {
  // Data order and initial weights of saved runs depend on them. Computed in Python: hashes by the xxhash package, the
  // rest by a second implementation with unlimited integers.
  REQUIRE(hash64("") == 0x2d06800538d394c2ull);
  REQUIRE(hash64("init") == 0xb7d223758f434353ull);
  REQUIRE(hash64("llm/model.layers.11.self_attn.q_proj.weight") == 0xd0325c785c047617ull);
  REQUIRE(hash64(1, 2) == 0xa25c4320e6c19490ull);
  REQUIRE(random_key(42, "init", "llm/model.norm.weight") == 0x6de564aa05dd10daull);
  const std::uint64_t key = random_key(1, "order", "0");
  const std::uint64_t ten[] = {7, 2, 5, 1, 3, 0, 8, 6, 9, 4};
  for (std::uint64_t i = 0; i < 10; ++i) REQUIRE(permuted(key, i, 10) == ten[i]);
  const std::uint64_t many[] = {658353, 51842, 709945, 86064, 747181};
  for (std::uint64_t i = 0; i < 5; ++i) REQUIRE(permuted(key, i, 1000003) == many[i]);
}

TEST_CASE("filled spans hold the values of the single elements at any start") {
  const std::uint64_t key = random_key(3, "test", "fill");
  for (const std::uint64_t first : {0ull, 1ull, 6ull, 1023ull}) {
    std::vector<double> u(11);
    std::vector<double> n(11);
    random_uniforms(key, 9, 2, first, u);
    random_normals(key, 9, 2, first, n);
    for (std::size_t i = 0; i < u.size(); ++i) {
      REQUIRE(u[i] == random_uniform(key, 9, 2, first + i));
      REQUIRE(n[i] == random_normal(key, 9, 2, first + i));
      REQUIRE(random_bits(key, 9, 2, first + i) == static_cast<std::uint32_t>(std::floor(u[i] * 0x1p32)));
    }
  }
}

TEST_CASE("uniform and normal values have the moments and tails of their distributions") {
  // Fixed key, so the result is fixed. Bounds: 5 standard errors of each estimate over n independent draws
  // (a correct generator fails one such bound for one key in 1.7 million).
  const std::size_t n = 1 << 18;
  const double root = std::sqrt(static_cast<double>(n));
  std::vector<double> u(n);
  std::vector<double> z(n);
  const std::uint64_t key = random_key(1, "test", "moments");
  random_uniforms(key, 0, 0, 0, u);
  random_normals(key, 0, 0, 0, z);
  const auto mean = [n](const std::vector<double>& v, auto f) {
    double sum = 0;
    for (const double x : v) sum += f(x);
    return sum / static_cast<double>(n);
  };
  const auto one = [](double x) { return x; };
  const auto square = [](double x) { return x * x; };
  REQUIRE(*std::min_element(u.begin(), u.end()) > 0.0);
  REQUIRE(*std::max_element(u.begin(), u.end()) < 1.0);
  // Var(U) = 1/12, Var(U^2) = 1/5 - 1/9 = 4/45.
  REQUIRE(std::abs(mean(u, one) - 0.5) < 5 * std::sqrt(1.0 / 12) / root);
  REQUIRE(std::abs(mean(u, square) - 1.0 / 3) < 5 * std::sqrt(4.0 / 45) / root);
  // Var(Z) = 1, Var(Z^2) = 2, Var(Z^3) = 15, Var(Z^4) = 105 - 9 = 96.
  REQUIRE(std::abs(mean(z, one)) < 5 / root);
  REQUIRE(std::abs(mean(z, square) - 1) < 5 * std::sqrt(2.0) / root);
  REQUIRE(std::abs(mean(z, [](double x) { return x * x * x; })) < 5 * std::sqrt(15.0) / root);
  REQUIRE(std::abs(mean(z, [](double x) { return x * x * x * x; }) - 3) < 5 * std::sqrt(96.0) / root);
  // Neighbours, in and across pairs, are uncorrelated: Var of the mean product is 1/n.
  for (const std::size_t lag : {1u, 2u, 3u, 4u}) {
    double sum = 0;
    for (std::size_t i = 0; i + lag < n; ++i) sum += z[i] * z[i + lag];
    REQUIRE(std::abs(sum / static_cast<double>(n)) < 5 / root);
  }
  // Share of |Z| > 2 is 0.0455003.
  const double p = 0.0455002639;
  REQUIRE(std::abs(mean(z, [](double x) { return std::abs(x) > 2 ? 1.0 : 0.0; }) - p) <
          5 * std::sqrt(p * (1 - p)) / root);
}

TEST_CASE("permuted is a bijection for every size") {
  for (const std::uint64_t count : {1ull, 2ull, 3ull, 5ull, 7ull, 16ull, 17ull, 100ull, 1023ull, 1025ull, 4097ull}) {
    for (const std::uint64_t key : {0ull, 1ull, 0x123456789abcdefull}) {
      std::vector<bool> seen(count);
      for (std::uint64_t i = 0; i < count; ++i) {
        const std::uint64_t p = permuted(key, i, count);
        REQUIRE(p < count);
        REQUIRE_FALSE(seen[p]);
        seen[p] = true;
      }
    }
  }
  REQUIRE_THROWS_AS(permuted(1, 5, 5), std::logic_error);
  REQUIRE_THROWS_AS(permuted(1, 0, 0), std::logic_error);
}

TEST_CASE("permuted puts every item at every place equally often over the keys") {
  // Chi-square over count x count cells, whose row and column sums are fixed: (count - 1)^2 degrees of freedom, mean d,
  // variance about 2 d. Bound: mean + 6 standard deviations.
  for (const std::uint64_t count : {2ull, 3ull, 5ull, 12ull}) {
    const int keys = 20000;
    std::vector<double> hits(count * count);
    for (int k = 0; k < keys; ++k) {
      const std::uint64_t key = random_key(static_cast<std::uint64_t>(k), "order", "epoch");
      for (std::uint64_t i = 0; i < count; ++i) hits[i * count + permuted(key, i, count)] += 1;
    }
    const double expected = keys / static_cast<double>(count);
    double chi = 0;
    for (const double h : hits) chi += (h - expected) * (h - expected) / expected;
    // The cells of one permutation are dependent: chi scaled by (count - 1) / count has the stated mean.
    const double d = static_cast<double>((count - 1) * (count - 1));
    const double scaled = chi * static_cast<double>(count - 1) / static_cast<double>(count);
    INFO("count " << count << " chi " << scaled << " expected " << d);
    REQUIRE(scaled < d + 6 * std::sqrt(2 * d));
  }
}

TEST_CASE("permuted leaves no runs of neighbours") {
  const std::uint64_t count = 10007;
  const std::uint64_t key = random_key(7, "order", "0");
  double neighbours = 0;
  double fixed = 0;
  for (std::uint64_t i = 0; i + 1 < count; ++i) {
    const std::uint64_t a = permuted(key, i, count);
    neighbours += permuted(key, i + 1, count) == a + 1 ? 1 : 0;
    fixed += a == i ? 1 : 0;
  }
  // Both are Poisson with mean 1 for a random permutation: P(X > 10) < 1e-7.
  REQUIRE(neighbours <= 10);
  REQUIRE(fixed <= 10);
}
