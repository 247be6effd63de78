// From text to words, as the `normalizer` and `pre_tokenizer` of a tokenizer.json say.
#pragma once

#include "core/data/regex.h"

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mmt::data {

/// null, NFC, NFD, NFKC, NFKD, Lowercase and sequences of them.
class Normalizer {
 public:
  Normalizer() = default;
  /// Throws ConfigError for anything else (`where`: the file).
  Normalizer(const nlohmann::json& spec, const std::string& where);
  bool empty() const { return forms_.empty(); }
  std::string apply(std::string_view text) const;  ///< of valid UTF-8

 private:
  enum class Form : std::uint8_t { nfc, nfd, nfkc, nfkd, lower };
  std::vector<Form> forms_;
};

/// ByteLevel, alone or behind any number of Split and Digits in a Sequence.
class PreTokenizer {
 public:
  PreTokenizer() = default;
  /// Throws ConfigError: the file's pre_tokenizer is not byte-level or has parts that are not supported.
  PreTokenizer(const nlohmann::json& spec, const std::string& where);
  /// Calls `word` for each word of `text` (valid UTF-8), in order.
  void split(std::string_view text, const std::function<void(std::string_view)>& word) const;

 private:
  enum class Behavior : std::uint8_t { isolated, removed, merged_with_previous, merged_with_next, contiguous };
  struct Step {
    enum class Kind : std::uint8_t { regex, space_first } kind = Kind::regex;
    std::optional<Regex> regex;
    Behavior behavior = Behavior::isolated;
    bool invert = false;
  };
  void add(const nlohmann::json& spec, const std::string& where, int depth);
  void run(std::size_t step, std::string_view text, const std::function<void(std::string_view)>& word) const;

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace mmt::data
