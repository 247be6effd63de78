#include "core/data/pretokenizer.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/data/utf8.h"
#include "core/error.h"

namespace mmt::data {
namespace {

using nlohmann::json;

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw ConfigError(fmt::format("{}: {} is not supported (byte-level BPE with NFC or no normaliser is)", where, what));
}

std::string type_of(const json& spec, const std::string& where) {
  if (!spec.is_object() || !spec.contains("type") || !spec["type"].is_string()) {
    throw ConfigError(fmt::format("{}: \"type\" is missing", where));
  }
  return spec["type"].get<std::string>();
}

bool flag(const json& spec, const char* key, bool fallback, const std::string& where) {
  const auto it = spec.find(key);
  if (it == spec.end() || it->is_null()) return fallback;
  if (!it->is_boolean()) throw ConfigError(fmt::format("{}.{}: true or false is expected", where, key));
  return it->get<bool>();
}

std::string normalised(std::string_view text, int options, const char* name) {
  utf8proc_uint8_t* out = nullptr;
  const auto* in = static_cast<const utf8proc_uint8_t*>(static_cast<const void*>(text.data()));
  const utf8proc_ssize_t size = utf8proc_map(in, static_cast<utf8proc_ssize_t>(text.size()), &out,
                                             static_cast<utf8proc_option_t>(options | UTF8PROC_STABLE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(out, &std::free);
  if (size < 0) {
    throw DataError(DataFault::bad_record, "tokenizer", fmt::format("{} failed: {}", name, utf8proc_errmsg(size)));
  }
  return {static_cast<const char*>(static_cast<const void*>(out)), static_cast<std::size_t>(size)};
}

std::string escaped_for_regex(std::string_view literal) {
  std::string out;
  for (const char c : literal) {
    if (static_cast<unsigned char>(c) < 0x80 && std::isalnum(static_cast<unsigned char>(c)) == 0) out.push_back('\\');
    out.push_back(c);
  }
  return out;
}

}  // namespace

Normalizer::Normalizer(const json& spec, const std::string& where) {
  if (spec.is_null()) return;
  const std::string type = type_of(spec, where);
  if (type == "Sequence") {
    if (!spec.contains("normalizers") || !spec["normalizers"].is_array()) refuse(where, "a Sequence without a list");
    for (const json& part : spec["normalizers"]) {
      if (part.is_object() && part.value("type", json()) == "Sequence") refuse(where, "a Sequence in a Sequence");
      const Normalizer inner(part, where);
      forms_.insert(forms_.end(), inner.forms_.begin(), inner.forms_.end());
    }
  } else if (type == "NFC") {
    forms_ = {Form::nfc};
  } else if (type == "NFD") {
    forms_ = {Form::nfd};
  } else if (type == "NFKC") {
    forms_ = {Form::nfkc};
  } else if (type == "NFKD") {
    forms_ = {Form::nfkd};
  } else if (type == "Lowercase") {
    forms_ = {Form::lower};
  } else {
    refuse(where, fmt::format("the normaliser {:?}", type));
  }
}

std::string Normalizer::apply(std::string_view text) const {
  std::string result(text);
  for (const Form form : forms_) {
    const bool ascii =
        std::all_of(result.begin(), result.end(), [](char c) { return static_cast<signed char>(c) >= 0; });
    if (form == Form::lower) {
      std::string lowered;
      std::uint32_t code = 0;
      for (std::size_t i = 0; i < result.size();) {
        const int n = decode_utf8(result, i, code);
        append_utf8(lowered, static_cast<std::uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
        i += static_cast<std::size_t>(std::max(n, 1));
      }
      result = std::move(lowered);
    } else if (!ascii) {
      const int options = (form == Form::nfc || form == Form::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                          (form == Form::nfkc || form == Form::nfkd ? UTF8PROC_COMPAT : 0);
      result = normalised(result, options, "normalisation");
    }
  }
  return result;
}

PreTokenizer::PreTokenizer(const json& spec, const std::string& where) {
  if (spec.is_null()) refuse(where, "a tokenizer without pre_tokenizer");
  add(spec, where, 0);
  if (!byte_level_) refuse(where, "a pre_tokenizer without ByteLevel");
}

void PreTokenizer::add(const json& spec, const std::string& where, int depth) {
  const std::string type = type_of(spec, where);
  if (byte_level_) refuse(where, "a step behind ByteLevel");
  if (type == "Sequence") {
    if (depth > 0 || !spec.contains("pretokenizers") || !spec["pretokenizers"].is_array())
      refuse(where, "this Sequence");
    if (spec["pretokenizers"].size() > 64) refuse(where, "a Sequence of more than 64 steps");
    for (const json& part : spec["pretokenizers"]) add(part, where, depth + 1);
  } else if (type == "ByteLevel") {
    if (flag(spec, "add_prefix_space", true, where)) steps_.push_back({Step::Kind::space_first, std::nullopt});
    if (flag(spec, "use_regex", true, where)) steps_.push_back({Step::Kind::regex, Regex(kGpt2Pattern, where)});
    byte_level_ = true;
  } else if (type == "Digits") {
    const bool each = flag(spec, "individual_digits", false, where);
    steps_.push_back({Step::Kind::regex, Regex(each ? "\\p{N}" : "\\p{N}+", where)});
  } else if (type == "Split") {
    const json pattern = spec.value("pattern", json::object());
    std::string text;
    if (pattern.is_object() && pattern.contains("Regex") && pattern["Regex"].is_string()) {
      text = pattern["Regex"].get<std::string>();
    } else if (pattern.is_object() && pattern.contains("String") && pattern["String"].is_string()) {
      text = escaped_for_regex(pattern["String"].get<std::string>());
    } else {
      throw ConfigError(fmt::format("{}: Split needs pattern.Regex or pattern.String", where));
    }
    const json named = spec.value("behavior", json("Isolated"));
    const std::string behavior = named.is_string() ? named.get<std::string>() : "";
    constexpr std::string_view names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const auto* it = std::find(std::begin(names), std::end(names), behavior);
    if (it == std::end(names)) refuse(where, fmt::format("the Split behaviour {:?}", behavior));
    steps_.push_back({Step::Kind::regex, Regex(text, where), static_cast<Behavior>(it - std::begin(names)),
                      flag(spec, "invert", false, where)});
  } else {
    refuse(where, fmt::format("the pre_tokenizer {:?}", type));
  }
}

void PreTokenizer::split(std::string_view text, const std::function<void(std::string_view)>& word) const {
  if (!text.empty()) run(0, text, word);
}

void PreTokenizer::run(std::size_t step, std::string_view text,
                       const std::function<void(std::string_view)>& word) const {
  if (text.empty()) return;
  if (step == steps_.size()) return word(text);
  const Step& s = steps_[step];
  if (s.kind == Step::Kind::space_first) {
    if (text.front() == ' ') return run(step + 1, text, word);
    return run(step + 1, ' ' + std::string(text), word);
  }
  // Pieces alternate between matches and what lies between them; the behaviour says how they become words.
  std::size_t held_begin = 0, held_end = 0;  // an open word, still growing
  bool held = false, held_match = false;
  const auto flush = [&] {
    if (held) run(step + 1, text.substr(held_begin, held_end - held_begin), word);
    held = false;
  };
  const auto piece = [&](std::size_t begin, std::size_t end, bool match) {
    if (begin == end) return;
    if (s.invert) match = !match;
    const bool grows = held && ((s.behavior == Behavior::merged_with_previous && match && !held_match) ||
                                (s.behavior == Behavior::merged_with_next && held_match && !match) ||
                                (s.behavior == Behavior::contiguous && match && held_match));
    if (!grows) {
      flush();
      held_begin = begin;
      if (s.behavior == Behavior::removed && match) return;
    }
    held = true;
    held_end = end;
    held_match = match;
  };
  std::size_t done = 0, from = 0;
  while (from < text.size()) {
    const Regex::Match m = s.regex->next(text, from);
    if (!m.found) break;
    if (m.end == m.begin) {  // an empty match splits nothing: go on behind the next code point
      std::uint32_t code = 0;
      from =
          m.begin >= text.size() ? text.size() : m.begin + static_cast<std::size_t>(decode_utf8(text, m.begin, code));
      continue;
    }
    piece(done, m.begin, false);
    piece(m.begin, m.end, true);
    done = from = m.end;
  }
  piece(done, text.size(), false);
  flush();
}

}  // namespace mmt::data
