#include "tests/fuzz/mutator.h"

#include <algorithm>
#include <cctype>

namespace mmt::fuzz {
namespace {

using Random = std::mt19937_64;

std::size_t below(Random& random, std::size_t n) { return n == 0 ? 0 : static_cast<std::size_t>(random() % n); }

std::ptrdiff_t place(std::size_t at) { return static_cast<std::ptrdiff_t>(at); }

/// Values at which sizes, counts and offsets go wrong.
std::uint64_t odd_number(Random& random) {
  constexpr std::uint64_t kOdd[] = {0,
                                    1,
                                    2,
                                    7,
                                    8,
                                    15,
                                    16,
                                    127,
                                    128,
                                    255,
                                    256,
                                    511,
                                    512,
                                    4095,
                                    4096,
                                    32767,
                                    32768,
                                    65535,
                                    65536,
                                    0x7fffffff,
                                    0x80000000,
                                    0xffffffff,
                                    0x100000000,
                                    0x7fffffffffffffff,
                                    0x8000000000000000,
                                    0xffffffffffffffff};
  const std::uint64_t base = kOdd[below(random, std::size(kOdd))];
  return random() % 3 == 0 ? base + random() % 5 - 2 : base;
}

void insert(Bytes& input, std::size_t at, const std::uint8_t* data, std::size_t size) {
  input.insert(input.begin() + place(at), data, data + size);
}

/// Puts a number of 1, 2, 4 or 8 bytes over what is there, in either order of bytes; or adds a little to it.
void edit_number(Bytes& input, Random& random) {
  const std::size_t width = std::size_t{1} << below(random, 4);
  if (input.size() < width) return;
  const std::size_t at = below(random, input.size() - width + 1);
  const bool big = random() % 2 == 0;
  const auto byte = [&](std::size_t i) -> std::uint8_t& { return input[at + (big ? width - 1 - i : i)]; };
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < width; ++i) value |= std::uint64_t{byte(i)} << (8 * i);
  switch (random() % 3) {
    case 0: value = odd_number(random); break;
    case 1: value += random() % 33 - 16; break;
    default: value = input.size() + random() % 17 - 8; break;
  }
  for (std::size_t i = 0; i < width; ++i) byte(i) = static_cast<std::uint8_t>(value >> (8 * i));
}

/// Another value for a number written in digits.
void edit_digits(Bytes& input, Random& random) {
  const std::size_t start = below(random, input.size());
  const auto digit = [](std::uint8_t c) { return std::isdigit(c) != 0; };
  const auto first = std::find_if(input.begin() + place(start), input.end(), digit);
  if (first == input.end()) return;
  const auto last = std::find_if_not(first, input.end(), digit);
  const std::string text =
      random() % 4 == 0 ? "-" + std::to_string(random() % 100) : std::to_string(odd_number(random));
  const auto at = static_cast<std::size_t>(first - input.begin());
  input.erase(first, last);
  input.insert(input.begin() + place(at), text.begin(), text.end());
}

}  // namespace

void Mutator::change_once(Bytes& input, const Bytes& other, Random& random) const {
  if (input.empty()) {
    input = other;
    return;
  }
  const std::size_t at = below(random, input.size());
  const std::size_t length = std::min(input.size() - at, std::size_t{1} << below(random, 10));
  switch (random() % 11) {
    case 0: input[at] ^= static_cast<std::uint8_t>(1U << below(random, 8)); break;
    case 1: input[at] = static_cast<std::uint8_t>(random()); break;
    case 2: input.erase(input.begin() + place(at), input.begin() + place(at + length)); break;
    case 3: {  // a stretch comes twice
      const Bytes copy(input.begin() + place(at), input.begin() + place(at + length));
      insert(input, below(random, input.size()), copy.data(), copy.size());
      break;
    }
    case 4:
    case 5: edit_number(input, random); break;
    case 6: edit_digits(input, random); break;
    case 7:
    case 8: {
      if (dictionary_.empty()) break;
      const std::string& word = dictionary_[below(random, dictionary_.size())];
      const Bytes bytes(word.begin(), word.end());
      if (random() % 2 == 0 && at + bytes.size() <= input.size()) {
        std::copy(bytes.begin(), bytes.end(), input.begin() + place(at));
      } else {
        insert(input, at, bytes.data(), bytes.size());
      }
      break;
    }
    case 9: {  // a stretch of another input over or behind what is here
      if (other.empty()) break;
      const std::size_t from = below(random, other.size());
      const std::size_t count = std::min(other.size() - from, std::size_t{1} << below(random, 12));
      if (random() % 2 == 0) input.resize(at);
      insert(input, std::min(at, input.size()), other.data() + from, count);
      break;
    }
    default:
      if (random() % 8 == 0) {
        input.resize(at);
      } else {
        std::fill_n(input.begin() + place(at), length, std::uint8_t{input[at]});
      }
      break;
  }
}

void Mutator::change(Bytes& input, const Bytes& other, Random& random) const {
  for (std::size_t n = 1 + below(random, std::size_t{1} << below(random, 4)); n > 0; --n) {
    change_once(input, other, random);
  }
  if (input.size() > max_bytes_) input.resize(max_bytes_);
}

}  // namespace mmt::fuzz
