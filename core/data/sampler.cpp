#include "core/data/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/philox.h"

namespace mmt::data {

std::int64_t to_ppm(double weight) {
  if (!(weight >= 0) || weight > 1e6) {
    throw ConfigError(fmt::format("weight {}: a number between 0 and 1000000 is expected", weight));
  }
  return std::llround(weight * 1e6);
}

Sampler::Sampler(std::uint64_t seed, std::vector<SampledSet> sets, bool shuffle)
    : seed_(seed), shuffle_(shuffle), sets_(std::move(sets)) {
  for (const SampledSet& s : sets_) {
    MMT_CHECK(s.size >= 0 && s.size < (std::int64_t{1} << 40) && s.weight_ppm >= 0 && s.weight_ppm <= 1'000'000'000'000,
              "set of {} samples, weight {}", s.size, s.weight_ppm);
    // In two parts, so that nothing overflows: whole passes, and the fraction's prefix.
    std::int64_t visits = s.size * (s.weight_ppm / 1'000'000) + s.size * (s.weight_ppm % 1'000'000) / 1'000'000;
    if (visits == 0 && s.size > 0 && s.weight_ppm > 0) visits = 1;
    first_.push_back(epoch_size_);
    visits_.push_back(visits);
    epoch_size_ += visits;
  }
  if (epoch_size_ == 0) {
    throw ConfigError("no data set has a sample that can be used (see `mmtrain validate` for the reasons)");
  }
}

Draw Sampler::at(std::int64_t place) const {
  MMT_CHECK(place >= 0, "place {}", place);
  const std::int64_t epoch = place / epoch_size_;
  const auto unsigned_epoch = static_cast<std::uint64_t>(epoch);
  std::int64_t within = place % epoch_size_;
  if (shuffle_) {
    const std::uint64_t key = hash64(random_key(seed_, "order", "mix"), unsigned_epoch);
    within = static_cast<std::int64_t>(
        permuted(key, static_cast<std::uint64_t>(within), static_cast<std::uint64_t>(epoch_size_)));
  }
  const auto after = std::upper_bound(first_.begin(), first_.end(), within);
  auto set = static_cast<std::size_t>(after - first_.begin()) - 1;
  const std::int64_t size = sets_[set].size;
  const std::int64_t visit = epoch * visits_[set] + (within - first_[set]);
  std::int64_t sample = visit % size;
  if (shuffle_) {
    const std::uint64_t key =
        hash64(random_key(seed_, "order", "set " + std::to_string(set)), static_cast<std::uint64_t>(visit / size));
    sample =
        static_cast<std::int64_t>(permuted(key, static_cast<std::uint64_t>(sample), static_cast<std::uint64_t>(size)));
  }
  return {place, static_cast<std::int32_t>(set), sample, visit / size};
}

std::vector<Draw> Sampler::batch(std::int64_t cursor, std::int64_t batch_size, bool end_at_epoch) const {
  MMT_CHECK(batch_size > 0, "batch of {}", batch_size);
  std::int64_t end = cursor + batch_size;
  if (end_at_epoch) end = std::min(end, (cursor / epoch_size_ + 1) * epoch_size_);
  std::vector<Draw> draws;
  draws.reserve(static_cast<std::size_t>(end - cursor));
  for (std::int64_t place = cursor; place < end; ++place) draws.push_back(at(place));
  return draws;
}

std::int64_t Sampler::steps_per_epoch(std::int64_t batch_size) const {
  return (epoch_size_ + batch_size - 1) / batch_size;
}

}  // namespace mmt::data
