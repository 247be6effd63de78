#include "core/data/json_guard.h"

#include "core/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace mmt::data {

int json_depth(std::string_view text) {
  int depth = 0, deepest = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

std::string json_place(std::string_view text, std::size_t offset) {
  offset = std::min(offset, text.size());
  const std::string_view before = text.substr(0, offset);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const std::size_t start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  return fmt::format("{}:{}", line, offset - start + 1);
}

nlohmann::json parse_json(std::string_view text, int max_depth, std::string& error) {
  error.clear();
  if (json_depth(text) > max_depth) {
    error = fmt::format("1:1: nested deeper than {} levels", max_depth);
    return nlohmann::json(nlohmann::json::value_t::discarded);
  }
  try {
    return nlohmann::json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::parse_error& e) {
    // The library's text repeats its own name and the place; what follows the last "; " says what it met.
    const std::string_view what = e.what();
    const std::size_t cut = what.find(": ", what.find("parse error"));
    error = fmt::format("{}: {}", json_place(text, e.byte > 0 ? e.byte - 1 : 0),
                        cut == std::string_view::npos ? what : what.substr(cut + 2));
  } catch (const nlohmann::json::exception& e) {
    error = fmt::format("1:1: {}", e.what());
  }
  return nlohmann::json(nlohmann::json::value_t::discarded);
}

nlohmann::json parse_json_object(std::string_view text, int max_depth, const std::string& path, std::string_view kind) {
  std::string error;
  nlohmann::json root = parse_json(text, max_depth, error);
  if (root.is_discarded()) throw ConfigError(fmt::format("{}:{}", path, error));
  if (!root.is_object()) throw ConfigError(fmt::format("{}: is no {}: not an object", path, kind));
  return root;
}

}  // namespace mmt::data
