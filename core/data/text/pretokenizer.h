// From text to words, as the `normalizer` and `pre_tokenizer` of a tokenizer.json say.
#pragma once

#include "core/data/text/regex.h"
#include "core/data/text/text_place.h"

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mmt::data {

/// null, NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace and sequences of them.
class Normalizer {
 public:
  Normalizer() = default;
  /// Throws ConfigError for anything else (`where`: the file).
  Normalizer(const nlohmann::json& spec, const std::string& where);
  bool empty() const { return steps_.empty(); }
  /// Writes something before every section.
  bool prepends() const;
  std::string apply(std::string_view text, TextPlace place = TextPlace::section) const;  ///< of valid UTF-8

 private:
  enum class Form : std::uint8_t { nfc, nfd, nfkc, nfkd, lower, prepend, replace };
  struct Step {
    Form form = Form::nfc;
    std::string from, to;          ///< of replace; prepend writes `to`
    std::optional<Regex> pattern;  ///< of replace, instead of `from`
  };
  std::vector<Step> steps_;
};

/// Any number of Split, Digits and Metaspace, then ByteLevel or nothing.
class PreTokenizer {
 public:
  PreTokenizer() = default;
  /// Throws ConfigError: the file's pre_tokenizer has parts that are not supported.
  PreTokenizer(const nlohmann::json& spec, const std::string& where);
  bool byte_level() const { return byte_level_; }
  /// Writes a space of its own before a text at this place.
  bool prepends(TextPlace place) const;
  /// What Metaspace writes for a space; empty without it.
  const std::string& space() const { return space_; }
  /// Calls `word` for each word of `text` (valid UTF-8), in order.
  void split(std::string_view text, TextPlace place, const std::function<void(std::string_view)>& word) const;

 private:
  enum class Behavior : std::uint8_t { isolated, removed, merged_with_previous, merged_with_next, contiguous };
  enum class Scheme : std::uint8_t { always, first, never };
  struct Step {
    enum class Kind : std::uint8_t { regex, space_first, metaspace } kind = Kind::regex;
    std::optional<Regex> regex;
    Behavior behavior = Behavior::isolated;
    bool invert = false;
    Scheme scheme = Scheme::always;
  };
  static bool prepends(Scheme scheme, TextPlace place);
  void add(const nlohmann::json& spec, const std::string& where, int depth);
  void add_metaspace(const nlohmann::json& spec, const std::string& where);
  void run(std::size_t step, std::string_view text, TextPlace place,
           const std::function<void(std::string_view)>& word) const;

  std::vector<Step> steps_;
  std::string space_;
  bool byte_level_ = false;
};

}  // namespace mmt::data
