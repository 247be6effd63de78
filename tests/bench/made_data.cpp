#include "bench/made_data.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>

#include <jpeglib.h>

namespace mmt::bench {
namespace {

constexpr int kQuality = 90;
constexpr std::size_t kWords = 6000;

std::uint8_t clipped(double value) { return static_cast<std::uint8_t>(std::clamp(value, 0.0, 255.0)); }

/// Distinct words of one to four syllables, frequent (and short) ones first.
const std::vector<std::string>& lexicon() {
  static const std::vector<std::string> list = [] {
    constexpr const char* kStarts[] = {"b", "c", "d", "f", "g", "h", "l",  "m",  "n",
                                       "p", "r", "s", "t", "v", "w", "st", "tr", "ch"};
    constexpr const char* kMiddles[] = {"a", "e", "i", "o", "u", "ea", "ou", "ai"};
    constexpr const char* kEnds[] = {"", "", "n", "r", "s", "t", "l", "nd", "ck", "ng"};
    std::mt19937 random(7);
    const auto pick = [&](const auto& options) { return options[random() % std::size(options)]; };
    std::set<std::string> seen;
    std::vector<std::string> words;
    while (words.size() < kWords) {
      const std::size_t syllables = 1 + words.size() * 3 / kWords + random() % 2;
      std::string word;
      for (std::size_t i = 0; i < syllables; ++i) {
        word += pick(kStarts);
        word += pick(kMiddles);
        word += pick(kEnds);
      }
      if (seen.insert(word).second) words.push_back(word);
    }
    return words;
  }();
  return list;
}

std::string utf8(unsigned code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

void put(std::vector<std::byte>& out, std::uint32_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<std::byte>(value >> 8 * i & 0xff));
}
void put(std::vector<std::byte>& out, const char* text) {
  for (; *text != '\0'; ++text) out.push_back(static_cast<std::byte>(*text));
}

}  // namespace

std::vector<std::byte> make_jpeg(int width, int height, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> noise(0.0, 6.0);
  const double turn = 0.3 + 0.1 * static_cast<double>(random() % 10);
  std::vector<std::uint8_t> rgb;
  rgb.reserve(static_cast<std::size_t>(3 * width * height));
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      const double u = static_cast<double>(x) / width, v = static_cast<double>(y) / height;
      const bool disc = std::hypot(u - 0.5, v - 0.4) < 0.25, stripe = std::fmod(u * 9 + v * turn * 7, 1.0) < 0.4;
      const double light = 90 + 80 * u - 40 * v + (disc ? 50 : 0) + (stripe ? 18 : 0) + noise(random);
      rgb.push_back(clipped(light + 30 * v));
      rgb.push_back(clipped(light - 20 * u));
      rgb.push_back(clipped(light * 0.7 + (disc ? 0 : 40)));
    }
  }
  jpeg_compress_struct c{};
  jpeg_error_mgr errors{};
  c.err = jpeg_std_error(&errors);
  jpeg_create_compress(&c);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&c, &memory, &size);
  c.image_width = static_cast<JDIMENSION>(width);
  c.image_height = static_cast<JDIMENSION>(height);
  c.input_components = 3;
  c.in_color_space = JCS_RGB;
  jpeg_set_defaults(&c);
  jpeg_set_quality(&c, kQuality, TRUE);
  jpeg_start_compress(&c, TRUE);
  while (c.next_scanline < c.image_height) {
    JSAMPROW row = rgb.data() + static_cast<std::size_t>(c.next_scanline) * 3 * static_cast<std::size_t>(width);
    jpeg_write_scanlines(&c, &row, 1);
  }
  jpeg_finish_compress(&c);
  jpeg_destroy_compress(&c);
  std::vector<std::byte> out(size);
  std::memcpy(out.data(), memory, size);
  std::free(memory);
  return out;
}

std::vector<float> make_sound(double seconds, int rate, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> noise(0.0f, 0.02f);
  std::vector<float> samples(static_cast<std::size_t>(seconds * rate));
  double phase = 0.0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const double t = static_cast<double>(i) / rate;
    phase += 6.283185307 * (200 + 1500 * std::abs(std::sin(0.7 * t))) / rate;
    samples[i] = static_cast<float>(0.4 * std::sin(phase) * (0.6 + 0.4 * std::sin(5 * t))) + noise(random);
  }
  return samples;
}

std::vector<std::byte> make_wav(double seconds, int rate, unsigned seed) {
  const std::vector<float> samples = make_sound(seconds, rate, seed);
  constexpr std::uint32_t kChannels = 2, kBytes = 2;
  const auto size = static_cast<std::uint32_t>(samples.size()) * kChannels * kBytes;
  std::vector<std::byte> out;
  out.reserve(size + 44);
  put(out, "RIFF");
  put(out, size + 36, 4);
  put(out, "WAVEfmt ");
  put(out, 16, 4);
  put(out, 1, 2);  // integers
  put(out, kChannels, 2);
  put(out, static_cast<std::uint32_t>(rate), 4);
  put(out, static_cast<std::uint32_t>(rate) * kChannels * kBytes, 4);
  put(out, kChannels * kBytes, 2);
  put(out, 8 * kBytes, 2);
  put(out, "data");
  put(out, size, 4);
  for (const float s : samples) {
    const auto value = static_cast<std::uint32_t>(static_cast<std::int32_t>(std::lround(s * 20000.0f)));
    put(out, value, 2);
    put(out, value, 2);
  }
  return out;
}

std::string make_tokenizer() {
  nlohmann::ordered_json vocabulary, merges = nlohmann::ordered_json::array();
  // GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for the code points from 256 on.
  int shifted = 0;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable = (byte > 32 && byte < 127) || (byte > 160 && byte < 173) || byte > 173;
    const std::string symbol = utf8(printable ? byte : static_cast<unsigned>(256 + shifted++));
    vocabulary[symbol] = byte;
  }
  std::size_t next = 256;
  std::set<std::string> known;
  const std::string space = utf8(256 + 32);  // how the alphabet writes a blank
  for (const std::string& word : lexicon()) {
    std::string built = space;
    for (const char letter : word) {
      const std::string longer = built + letter;
      if (known.insert(longer).second) {
        vocabulary[longer] = next++;
        merges.push_back(built + " " + letter);
      }
      built = longer;
    }
  }
  const nlohmann::ordered_json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  const nlohmann::ordered_json split = {
      {"type", "Split"},
      {"pattern",
       {{"Regex",
         R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}}},
      {"behavior", "Isolated"},
      {"invert", false}};
  nlohmann::ordered_json j;
  j["version"] = "1.0";
  j["added_tokens"] = nlohmann::ordered_json::array({{{"id", next},
                                                      {"content", "<|endoftext|>"},
                                                      {"special", true},
                                                      {"normalized", false},
                                                      {"single_word", false},
                                                      {"lstrip", false},
                                                      {"rstrip", false}}});
  j["normalizer"] = {{"type", "NFC"}};
  j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", nlohmann::ordered_json::array({split, byte_level})}};
  j["decoder"] = byte_level;
  j["model"] = {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}};
  return j.dump();
}

std::string make_text(std::size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  const std::vector<std::string>& words = lexicon();
  std::string text;
  while (text.size() < bytes) {
    const std::size_t length = 4 + random() % 16;
    for (std::size_t i = 0; i < length; ++i) {
      // Frequency about 1 / rank.
      const double u = static_cast<double>(random() % 1'000'000) / 1e6;
      const auto rank = static_cast<std::size_t>(std::pow(static_cast<double>(words.size()), u)) - 1;
      std::string word = words[std::min(rank, words.size() - 1)];
      if (random() % 40 == 0) word += words[random() % words.size()];  // a word of its own
      if (random() % 30 == 0) word = std::to_string(random() % 2000);
      if (i > 0) text += ' ';
      text += word;
      if (i + 1 < length && random() % 9 == 0) text += ',';
    }
    text += random() % 12 == 0 ? ".\n" : ". ";
  }
  return text;
}

}  // namespace mmt::bench
