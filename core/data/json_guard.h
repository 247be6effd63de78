// JSON from files that are not trusted: nesting and size are checked before the parser runs, and errors name the place.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace mmt::data {

/// Deepest nesting of arrays and objects in `text`, counted without parsing (strings and escapes are respected).
int json_depth(std::string_view text);

/// 1-based line and column of byte `offset`.
std::string json_place(std::string_view text, std::size_t offset);

/// Parses strict UTF-8 JSON. On any error returns a discarded value and sets `error` to "line:col: what".
nlohmann::json parse_json(std::string_view text, int max_depth, std::string& error);

/// The object that a file of a published model holds. ConfigError names the file, the place or what it is instead;
/// `kind` ("config.json") what was expected.
nlohmann::json parse_json_object(std::string_view text, int max_depth, const std::string& path, std::string_view kind);

}  // namespace mmt::data
