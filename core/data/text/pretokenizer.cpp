#include "core/data/text/pretokenizer.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/data/text/utf8.h"
#include "core/error.h"

namespace mmt::data {
namespace {

using nlohmann::json;

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr std::size_t kMaxSteps = 64;  // of a Sequence

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw ConfigError(fmt::format(
      "{}: {} is not supported (NFC and its kin, Prepend, Replace; Split, Digits, Metaspace, ByteLevel are)", where,
      what));
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

std::string text_of(const json& spec, const char* key, const std::string& where) {
  if (!spec.is_object() || !spec.contains(key) || !spec[key].is_string()) {
    throw ConfigError(fmt::format("{}: \"{}\": a text is expected", where, key));
  }
  return spec[key].get<std::string>();
}

std::string lowered(std::string_view text) {
  std::string out;
  std::uint32_t code = 0;
  for (std::size_t i = 0; i < text.size();) {
    const int n = decode_utf8(text, i, code);
    append_utf8(out, static_cast<std::uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
    i += static_cast<std::size_t>(std::max(n, 1));
  }
  return out;
}

std::string replaced_text(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  std::size_t done = 0;
  for (std::size_t at = 0; (at = text.find(from, done)) != std::string_view::npos; done = at + from.size()) {
    out.append(text, done, at - done).append(to);
  }
  return out.append(text.substr(done));
}

std::string replaced_matches(std::string_view text, const Regex& pattern, std::string_view to) {
  std::string out;
  std::size_t done = 0, from = 0;
  while (from < text.size()) {
    const Regex::Match m = pattern.next(text, from);
    if (!m.found) break;
    if (m.end == m.begin) {  // an empty match replaces nothing
      std::uint32_t code = 0;
      from = m.begin >= text.size() ? text.size()
                                    : m.begin + static_cast<std::size_t>(std::max(decode_utf8(text, m.begin, code), 1));
      continue;
    }
    out.append(text, done, m.begin - done).append(to);
    done = from = m.end;
  }
  return out.append(text.substr(done));
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
  constexpr std::pair<std::string_view, Form> forms[] = {
      {"NFC", Form::nfc}, {"NFD", Form::nfd}, {"NFKC", Form::nfkc}, {"NFKD", Form::nfkd}, {"Lowercase", Form::lower}};
  const auto* form = std::ranges::find(forms, type, [](const auto& f) { return f.first; });
  if (form != std::end(forms)) {
    steps_.push_back({form->second, {}, {}, std::nullopt});
  } else if (type == "Sequence") {
    if (!spec.contains("normalizers") || !spec["normalizers"].is_array()) refuse(where, "a Sequence without a list");
    if (spec["normalizers"].size() > kMaxSteps) refuse(where, "a Sequence of so many steps");
    for (const json& part : spec["normalizers"]) {
      if (part.is_object() && part.value("type", json()) == "Sequence") refuse(where, "a Sequence in a Sequence");
      Normalizer inner(part, where);
      std::ranges::move(inner.steps_, std::back_inserter(steps_));
    }
  } else if (type == "Prepend") {
    steps_.push_back({Form::prepend, {}, text_of(spec, "prepend", where), std::nullopt});
  } else if (type == "Replace") {
    Step step{Form::replace, {}, text_of(spec, "content", where), std::nullopt};
    const json pattern = spec.value("pattern", json());
    if (pattern.is_object() && pattern.contains("Regex")) {
      step.pattern.emplace(text_of(pattern, "Regex", where), where);
    } else {
      step.from = text_of(pattern, "String", where);
      if (step.from.empty()) refuse(where, "Replace of nothing");
    }
    steps_.push_back(std::move(step));
  } else {
    refuse(where, fmt::format("the normaliser {:?}", type));
  }
}

bool Normalizer::prepends() const {
  return std::ranges::any_of(steps_, [](const Step& s) { return s.form == Form::prepend && !s.to.empty(); });
}

std::string Normalizer::apply(std::string_view text, TextPlace place) const {
  std::string result(text);
  for (const Step& step : steps_) {
    const bool ascii = std::ranges::all_of(result, [](char c) { return static_cast<signed char>(c) >= 0; });
    switch (step.form) {
      case Form::prepend:
        if (place != TextPlace::inside && !result.empty()) result.insert(0, step.to);
        break;
      case Form::replace:
        result =
            step.pattern ? replaced_matches(result, *step.pattern, step.to) : replaced_text(result, step.from, step.to);
        break;
      case Form::lower: result = lowered(result); break;
      default:
        if (!ascii) {
          const bool composes = step.form == Form::nfc || step.form == Form::nfkc;
          const bool compatible = step.form == Form::nfkc || step.form == Form::nfkd;
          result = normalised(result,
                              (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) | (compatible ? UTF8PROC_COMPAT : 0),
                              "normalisation");
        }
    }
  }
  return result;
}

PreTokenizer::PreTokenizer(const json& spec, const std::string& where) {
  if (!spec.is_null()) add(spec, where, 0);
}

void PreTokenizer::add(const json& spec, const std::string& where, int depth) {
  const std::string type = type_of(spec, where);
  if (byte_level_) refuse(where, "a step behind ByteLevel");
  if (type == "Sequence") {
    if (depth > 0 || !spec.contains("pretokenizers") || !spec["pretokenizers"].is_array())
      refuse(where, "this Sequence");
    if (spec["pretokenizers"].size() > kMaxSteps) refuse(where, "a Sequence of so many steps");
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
  } else if (type == "Metaspace") {
    add_metaspace(spec, where);
  } else {
    refuse(where, fmt::format("the pre_tokenizer {:?}", type));
  }
}

void PreTokenizer::add_metaspace(const json& spec, const std::string& where) {
  if (!space_.empty()) refuse(where, "a second Metaspace");
  space_ = text_of(spec, "replacement", where);
  std::uint32_t code = 0;
  if (space_.empty() || decode_utf8(space_, 0, code) != static_cast<int>(space_.size())) {
    throw ConfigError(fmt::format("{}: Metaspace.replacement {:?}: one character is expected", where, space_));
  }
  Step step;
  step.kind = Step::Kind::metaspace;
  const json named = spec.value("prepend_scheme", json("always"));
  const std::string scheme = named.is_string() ? named.get<std::string>() : "";
  if (scheme == "first") {
    step.scheme = Scheme::first;
  } else if (scheme == "never") {
    step.scheme = Scheme::never;
  } else if (scheme != "always") {
    refuse(where, fmt::format("the prepend_scheme {}", named.dump()));
  }
  if (!flag(spec, "add_prefix_space", true, where)) step.scheme = Scheme::never;
  steps_.push_back(std::move(step));
  if (flag(spec, "split", true, where)) {
    steps_.push_back({Step::Kind::regex, Regex(escaped_for_regex(space_), where), Behavior::merged_with_next});
  }
}

bool PreTokenizer::prepends(Scheme scheme, TextPlace place) {
  return scheme == Scheme::always ? place != TextPlace::inside : scheme == Scheme::first && place == TextPlace::text;
}

bool PreTokenizer::prepends(TextPlace place) const {
  return std::ranges::any_of(steps_, [&](const Step& s) {
    return s.kind == Step::Kind::space_first ? place != TextPlace::inside
                                             : s.kind == Step::Kind::metaspace && prepends(s.scheme, place);
  });
}

void PreTokenizer::split(std::string_view text, TextPlace place,
                         const std::function<void(std::string_view)>& word) const {
  if (!text.empty()) run(0, text, place, word);
}

void PreTokenizer::run(std::size_t step, std::string_view text, TextPlace place,
                       const std::function<void(std::string_view)>& word) const {
  if (text.empty()) return;
  if (step == steps_.size()) return word(text);
  const Step& s = steps_[step];
  if (s.kind == Step::Kind::space_first) {
    if (text.front() == ' ' || place == TextPlace::inside) return run(step + 1, text, place, word);
    return run(step + 1, ' ' + std::string(text), place, word);
  }
  if (s.kind == Step::Kind::metaspace) {
    std::string marked = replaced_text(text, " ", space_);
    if (prepends(s.scheme, place) && !marked.starts_with(space_)) marked.insert(0, space_);
    return run(step + 1, marked, place, word);
  }
  // Pieces alternate between matches and what lies between them; the behaviour says how they become words.
  std::size_t held_begin = 0, held_end = 0;  // an open word, still growing
  bool held = false, held_match = false;
  const auto flush = [&] {
    const TextPlace at = held_begin == 0 ? place : TextPlace::section;
    if (held) run(step + 1, text.substr(held_begin, held_end - held_begin), at, word);
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
