// Changes of bytes: flips, lengths, numbers, splices, words of the format. The same seed gives the same changes.
#pragma once

#include "tests/fuzz/target.h"

#include <random>

namespace mmt::fuzz {

class Mutator {
 public:
  Mutator(const std::vector<std::string>& dictionary, std::size_t max_bytes)
      : dictionary_(dictionary), max_bytes_(max_bytes) {}
  /// One to eight changes to `input`; `other` is what is spliced in.
  void change(Bytes& input, const Bytes& other, std::mt19937_64& random) const;

 private:
  void change_once(Bytes& input, const Bytes& other, std::mt19937_64& random) const;
  const std::vector<std::string>& dictionary_;
  std::size_t max_bytes_;
};

}  // namespace mmt::fuzz
