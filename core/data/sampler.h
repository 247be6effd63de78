// The data order: a pure function of (seed, epoch, place in the epoch), so that resuming at any world size goes on
// exactly. One integer, the cursor (samples drawn since the start of training), is the whole state.
//
// An epoch visits set s floor(weight_s * size_s) times (at least once when the weight is positive). Visits go through
// keyed permutations of the set, one after another: visit v of epoch e is number n = e * visits + v, which is place
// n mod size of permutation n / size; so a set of weight 1/2 is seen whole every two epochs. All visits of an epoch are
// then mixed by one more permutation. `shuffle: false`: the sets in order, each in file order. Integers only.
#pragma once

#include <cstdint>
#include <vector>

namespace mmt::data {

struct SampledSet {
  std::int64_t size = 0;              ///< usable samples
  std::int64_t weight_ppm = 1000000;  ///< weight in millionths
};
std::int64_t to_ppm(double weight);  ///< nearest; throws ConfigError for negative, non-finite or above 1e6

struct Draw {
  std::int64_t place = 0;  ///< cursor position: unique over the whole training
  std::int32_t set = 0;
  std::int64_t sample = 0;  ///< ordinal among the set's usable samples
  std::int64_t pass = 0;    ///< how often the set was gone through before: above 0 the sample is repeated
  bool operator==(const Draw&) const = default;
};

class Sampler {
 public:
  /// Throws ConfigError when no set has a sample to draw.
  Sampler(std::uint64_t seed, std::vector<SampledSet> sets, bool shuffle);

  std::int64_t epoch_size() const { return epoch_size_; }
  Draw at(std::int64_t place) const;
  /// Places [cursor, next). `end_at_epoch`: a batch does not cross the end of an epoch (training by epochs: its last
  /// batch is short); otherwise it continues into the next epoch (training by steps).
  std::vector<Draw> batch(std::int64_t cursor, std::int64_t batch_size, bool end_at_epoch) const;
  std::int64_t steps_per_epoch(std::int64_t batch_size) const;  ///< with end_at_epoch

 private:
  std::uint64_t seed_;
  bool shuffle_;
  std::vector<SampledSet> sets_;
  std::vector<std::int64_t> visits_, first_;  // per set: visits an epoch, sum of those before it
  std::int64_t epoch_size_ = 0;
};

}  // namespace mmt::data
