// Fields that the JSON files of tokenizers share, checked. For the tokenizer's own sources.
#pragma once

#include "core/data/text/added_tokens.h"

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace mmt::data {

/// An id in [0, limit). All of these throw ConfigError (`where`: file and place).
std::int32_t json_id(const nlohmann::json& value, std::int64_t limit, const std::string& where);
/// false where the key is missing or null.
bool json_flag(const nlohmann::json& object, const char* key, const std::string& where);
/// {content, single_word, lstrip, rstrip, normalized, special}; the id is not read.
AddedToken json_added_token(const nlohmann::json& object, const std::string& where);
/// A text, or the `content` of an object; empty for anything else.
std::string json_token_name(const nlohmann::json& object, const char* key);

}  // namespace mmt::data
