#include "core/data/text/tokenizer_fields.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace mmt::data {

using nlohmann::json;

std::int32_t json_id(const json& value, std::int64_t limit, const std::string& where) {
  if (!value.is_number_integer()) throw ConfigError(fmt::format("{}: an integer id is expected", where));
  const bool fits = value.is_number_unsigned() && value.get<std::uint64_t>() < static_cast<std::uint64_t>(limit);
  if (!fits) throw ConfigError(fmt::format("{}: id {} is not in [0, {})", where, value.dump(), limit));
  return static_cast<std::int32_t>(value.get<std::uint64_t>());
}

bool json_flag(const json& object, const char* key, const std::string& where) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return false;
  if (!it->is_boolean()) throw ConfigError(fmt::format("{}.{}: true or false is expected", where, key));
  return it->get<bool>();
}

AddedToken json_added_token(const json& object, const std::string& where) {
  if (!object.is_object() || !object.contains("content") || !object["content"].is_string()) {
    throw ConfigError(where + ": {content, ...} is expected");
  }
  AddedToken token;
  token.content = object["content"].get<std::string>();
  token.single_word = json_flag(object, "single_word", where);
  token.lstrip = json_flag(object, "lstrip", where);
  token.rstrip = json_flag(object, "rstrip", where);
  token.normalized = json_flag(object, "normalized", where);
  token.special = json_flag(object, "special", where);
  return token;
}

std::string json_token_name(const json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end()) return {};
  if (it->is_string()) return it->get<std::string>();
  if (it->is_object() && it->contains("content") && (*it)["content"].is_string()) {
    return (*it)["content"].get<std::string>();
  }
  return {};
}

}  // namespace mmt::data
