#include "core/philox.h"

#include "core/error.h"

#include <xxhash.h>

#include <bit>
#include <cmath>
#include <numbers>

namespace mmt {
namespace {

constexpr std::uint64_t kLimit48 = std::uint64_t{1} << 48;

// Finaliser of MurmurHash3: every input bit reaches every output bit.
constexpr std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  x ^= x >> 33;
  return x;
}

// The middle of one of 2^32 equal cells: never 0 and never 1.
constexpr double to_uniform(std::uint32_t bits) { return (bits + 0.5) * 0x1p-32; }

// Elements 2i and 2i+1 of a block are the cosine and the sine of one Box-Muller pair.
double to_normal(const std::array<std::uint32_t, 4>& words, unsigned lane) {
  const unsigned pair = lane & ~1u;
  const double radius = std::sqrt(-2.0 * std::log(to_uniform(words[pair])));
  const double angle = 2.0 * std::numbers::pi * to_uniform(words[pair + 1]);
  return radius * ((lane & 1u) == 0 ? std::cos(angle) : std::sin(angle));
}

template <class F> void fill(std::uint64_t key, std::uint64_t sample, std::uint32_t step, std::uint64_t first,
                             std::span<double> out, F value) {
  std::array<std::uint32_t, 4> words{};
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint64_t element = first + i;
    const auto lane = static_cast<unsigned>(element & 3u);
    if (lane == 0 || i == 0) words = philox(key, sample, step, element >> 2);
    out[i] = value(words, lane);
  }
}

}  // namespace

std::uint64_t hash64(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

std::uint64_t hash64(std::uint64_t a, std::uint64_t b) {
  return mix(mix(a ^ 0x9e3779b97f4a7c15ull) + std::rotl(b, 32) * 0xd6e8feb86659fd93ull);
}

std::uint64_t random_key(std::uint64_t seed, std::string_view purpose, std::string_view id) {
  return hash64(hash64(seed, hash64(purpose)), hash64(id));
}

std::array<std::uint32_t, 4> philox(std::uint64_t key, std::uint64_t sample, std::uint32_t step, std::uint64_t block) {
  MMT_CHECK(sample < kLimit48 && block < kLimit48, "sample {} or block {} needs more than 48 bits", sample, block);
  constexpr std::uint64_t kMul0 = 0xD2511F53u;
  constexpr std::uint64_t kMul1 = 0xCD9E8D57u;
  auto c0 = static_cast<std::uint32_t>(block);
  auto c1 = static_cast<std::uint32_t>(block >> 32 | sample << 16);
  auto c2 = static_cast<std::uint32_t>(sample >> 16);
  auto c3 = step;
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = kMul0 * c0;
    const std::uint64_t p1 = kMul1 * c2;
    c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(p1);
    c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

std::uint32_t random_bits(std::uint64_t key, std::uint64_t sample, std::uint32_t step, std::uint64_t element) {
  return philox(key, sample, step, element >> 2)[element & 3u];
}

double random_uniform(std::uint64_t key, std::uint64_t sample, std::uint32_t step, std::uint64_t element) {
  return to_uniform(random_bits(key, sample, step, element));
}

double random_normal(std::uint64_t key, std::uint64_t sample, std::uint32_t step, std::uint64_t element) {
  return to_normal(philox(key, sample, step, element >> 2), static_cast<unsigned>(element & 3u));
}

void random_uniforms(std::uint64_t key, std::uint64_t sample, std::uint32_t step, std::uint64_t first,
                     std::span<double> out) {
  fill(key, sample, step, first, out, [](const auto& words, unsigned lane) { return to_uniform(words[lane]); });
}

void random_normals(std::uint64_t key, std::uint64_t sample, std::uint32_t step, std::uint64_t first,
                    std::span<double> out) {
  fill(key, sample, step, first, out, to_normal);
}

std::uint64_t permuted(std::uint64_t key, std::uint64_t index, std::uint64_t count) {
  MMT_CHECK(index < count && count <= std::uint64_t{1} << 62, "item {} of {}", index, count);
  // Twelve rounds: on the smallest domains (2 or 4 bits) fewer leave a visible bias between places.
  constexpr int kRounds = 12;
  const int half = (std::bit_width(count - 1) + 1) / 2;
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  std::uint64_t value = index;
  // The Feistel domain is at most four times `count`, so that the walk takes four steps or fewer on average.
  do {
    std::uint64_t left = value >> half;
    std::uint64_t right = value & mask;
    for (int round = 0; round < kRounds; ++round) {
      const std::uint64_t next =
          left ^ (mix(mix(key + 0x9e3779b97f4a7c15ull * static_cast<std::uint64_t>(round + 1)) + right) & mask);
      left = right;
      right = next;
    }
    value = left << half | right;
  } while (value >= count);
  return value;
}

}  // namespace mmt
