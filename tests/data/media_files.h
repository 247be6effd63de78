// Shared by the tests of pictures and sound: fixtures, goldens and expected errors.
#pragma once

#include "core/data/media/image.h"
#include "core/error.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <numbers>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mmt::data::test {

using Bytes = std::vector<std::byte>;

inline Bytes as_bytes(std::string_view text) {
  Bytes bytes;
  for (const char c : text) bytes.push_back(static_cast<std::byte>(c));
  return bytes;
}

inline Bytes media(const std::string& name) {
  std::ifstream in(std::string(MMT_TEST_DATA) + "/media/" + name, std::ios::binary);
  INFO("fixture " << name);
  REQUIRE(in.good());
  return as_bytes(std::string(std::istreambuf_iterator<char>(in), {}));
}

template <class T> std::vector<T> golden(const std::string& name) {
  const Bytes bytes = media(name);
  REQUIRE(bytes.size() % sizeof(T) == 0);
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// The fault of the DataError that `body` throws, or nothing when it throws none. Checks that the place is named and
/// that the message contains `part`.
template <class Body> std::optional<DataFault> fault_of(const Body& body, std::string_view part = "") {
  try {
    body();
  } catch (const DataError& e) {
    const std::string message = e.what();
    INFO("message: " << message);
    CHECK(message.starts_with("set.json: sample 7"));
    CHECK(message.find(part) != std::string::npos);
    return e.fault();
  }
  return std::nullopt;
}
inline constexpr std::string_view kWhere = "set.json: sample 7";

/// Bytes without any structure; make_media.py has the same.
inline Image noise_image(int width, int height) {
  Image image{width, height, {}};
  image.rgb.resize(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 3);
  for (std::size_t i = 0; i < image.rgb.size(); ++i) {
    auto v = static_cast<std::uint32_t>(i * 2654435761U);
    v ^= v >> 15;
    v *= 2246822519U;
    image.rgb[i] = static_cast<std::uint8_t>(v >> 24);
  }
  return image;
}

inline int max_difference(const std::vector<std::uint8_t>& a, const std::vector<std::uint8_t>& b) {
  REQUIRE(a.size() == b.size());
  int worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(int{a[i]} - int{b[i]}));
  return worst;
}

inline double max_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    worst = d <= worst ? worst : d;  // NaN counts as a difference
  }
  return worst;
}

/// A sweep over all frequencies with a little noise; make_media.py has the same.
inline std::vector<float> mel_clip(int num) {
  std::vector<float> clip;
  for (int i = 0; i < num; ++i) {
    const double noise = ((i * 7919LL) % 1009) / 1009.0 - 0.5;
    const double t = i / 16000.0;
    clip.push_back(static_cast<float>(0.4 * std::sin(2 * std::numbers::pi * (200 * t + 1500 * t * t)) + 0.02 * noise));
  }
  return clip;
}

/// A WAV file with any samples: format 1 (integers) or 3 (float).
inline Bytes wav(int format, int channels, std::uint32_t rate, int bits, const std::string& samples,
                 std::optional<std::uint32_t> claimed_bytes = std::nullopt) {
  std::string out;
  const auto put = [&](std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
  };
  const auto block = static_cast<std::uint32_t>(channels * bits / 8);
  out += "RIFF";
  put(36 + samples.size(), 4);
  out += "WAVEfmt ";
  put(16, 4);
  put(static_cast<std::uint64_t>(format), 2);
  put(static_cast<std::uint64_t>(channels), 2);
  put(rate, 4);
  put(rate * std::uint64_t{block}, 4);
  put(block, 2);
  put(static_cast<std::uint64_t>(bits), 2);
  out += "data";
  put(claimed_bytes.value_or(static_cast<std::uint32_t>(samples.size())), 4);
  out += samples;
  return as_bytes(out);
}

inline Bytes float_wav(const std::vector<float>& samples, std::uint32_t rate, int channels = 1) {
  std::string raw(samples.size() * sizeof(float), '\0');
  if (!samples.empty()) std::memcpy(raw.data(), samples.data(), raw.size());
  return wav(3, channels, rate, 32, raw);
}

}  // namespace mmt::data::test
