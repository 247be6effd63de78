// An object of a config.json: typed values, defaults noted, every mistake a ConfigError that names file and key.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mmt::models {

class HfJson {
 public:
  /// `keys` stands before the object's keys in messages: "text_config.". Refers to `object` and `defaults`.
  HfJson(const nlohmann::json& object, std::string path, std::string keys, std::vector<std::string>& defaults);

  /// A key that is absent or null.
  bool has(const char* key) const;
  bool is_null(const char* key) const;  ///< there, as null
  bool is_list(const char* key) const;
  bool is_object(const char* key) const;

  // The value, or (absent, null) the default, which is noted. Whole numbers may be written as 1000000.0.
  std::int64_t count(const char* key, std::int64_t fallback) const;  ///< 1 to 2^31
  int number(const char* key, int fallback) const;                   ///< 1 to 2^31 - 1
  std::int64_t whole(const char* key, std::int64_t fallback) const;  ///< any sign, below 2^31
  double real(const char* key, double fallback) const;               ///< finite
  bool flag(const char* key, bool fallback) const;
  std::string text(const char* key, const std::string& fallback) const;
  std::vector<std::string> texts(const char* key) const;
  std::vector<int> counts(const char* key) const;
  /// A list of pairs; absent: the default, which is noted.
  std::vector<std::array<int, 2>> pairs(const char* key, std::vector<std::array<int, 2>> fallback) const;

  /// The object under the key; an empty one where it is absent.
  HfJson object(const char* key) const;
  [[noreturn]] void refuse(const char* key, const std::string& what) const;

 private:
  const nlohmann::json* find(const char* key) const;
  template <class T> T fall_back(const char* key, T value) const;

  const nlohmann::json* object_;
  std::string path_, keys_;
  std::vector<std::string>* defaults_;
};

}  // namespace mmt::models
