#include "models/hf_json.h"

#include "core/error.h"

#include <fmt/format.h>

#include <cmath>
#include <type_traits>

namespace mmt::models {
namespace {

constexpr std::int64_t kMaxCount = std::int64_t{1} << 31;
constexpr std::size_t kMaxList = 4096;
const nlohmann::json kEmptyObject = nlohmann::json::object();

std::optional<std::int64_t> whole_number(const nlohmann::json& v) {
  if (v.is_number_unsigned()) {
    const auto n = v.get<std::uint64_t>();
    if (n <= static_cast<std::uint64_t>(kMaxCount)) return static_cast<std::int64_t>(n);
    return std::nullopt;
  }
  if (v.is_number_integer()) {
    const auto n = v.get<std::int64_t>();
    if (n >= -kMaxCount && n <= kMaxCount) return n;
    return std::nullopt;
  }
  if (v.is_number_float()) {
    const auto x = v.get<double>();
    if (std::isfinite(x) && std::abs(x) <= static_cast<double>(kMaxCount) && x == std::floor(x))
      return static_cast<std::int64_t>(x);
  }
  return std::nullopt;
}

}  // namespace

HfJson::HfJson(const nlohmann::json& object, std::string path, std::string keys, std::vector<std::string>& defaults)
    : object_(&object), path_(std::move(path)), keys_(std::move(keys)), defaults_(&defaults) {}

const nlohmann::json* HfJson::find(const char* key) const {
  const auto at = object_->find(key);
  return at == object_->end() || at->is_null() ? nullptr : &*at;
}

bool HfJson::has(const char* key) const { return find(key) != nullptr; }
bool HfJson::is_null(const char* key) const { return object_->contains(key) && !has(key); }
bool HfJson::is_list(const char* key) const { return has(key) && find(key)->is_array(); }
bool HfJson::is_object(const char* key) const { return has(key) && find(key)->is_object(); }

void HfJson::refuse(const char* key, const std::string& what) const {
  std::string text = what;  // it may hold text of the file
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  throw ConfigError(fmt::format("{}: {}{}: {}", path_, keys_, key, text));
}

template <class T> T HfJson::fall_back(const char* key, T value) const {
  if constexpr (std::is_same_v<T, bool>)
    defaults_->push_back(fmt::format("{}{} {}", keys_, key, value ? "true" : "false"));
  else
    defaults_->push_back(fmt::format("{}{} {}", keys_, key, value));
  return value;
}

std::int64_t HfJson::count(const char* key, std::int64_t fallback) const {
  const nlohmann::json* v = find(key);
  if (v == nullptr) return fall_back(key, fallback);
  const auto n = whole_number(*v);
  if (!n || *n < 1) refuse(key, "expected a whole number from 1 to 2^31");
  return *n;
}

int HfJson::number(const char* key, int fallback) const {
  const std::int64_t n = count(key, fallback);
  if (n >= kMaxCount) refuse(key, "expected a whole number below 2^31");
  return static_cast<int>(n);
}

std::int64_t HfJson::whole(const char* key, std::int64_t fallback) const {
  const nlohmann::json* v = find(key);
  if (v == nullptr) return fall_back(key, fallback);
  const auto n = whole_number(*v);
  if (!n) refuse(key, "expected a whole number");
  return *n;
}

double HfJson::real(const char* key, double fallback) const {
  const nlohmann::json* v = find(key);
  if (v == nullptr) return fall_back(key, fallback);
  if (!v->is_number() || !std::isfinite(v->get<double>())) refuse(key, "expected a number");
  return v->get<double>();
}

bool HfJson::flag(const char* key, bool fallback) const {
  const nlohmann::json* v = find(key);
  if (v == nullptr) return fall_back(key, fallback);
  if (!v->is_boolean()) refuse(key, "expected true or false");
  return v->get<bool>();
}

std::string HfJson::text(const char* key, const std::string& fallback) const {
  const nlohmann::json* v = find(key);
  if (v == nullptr) return fall_back(key, fallback);
  if (!v->is_string()) refuse(key, "expected a string");
  return v->get<std::string>();
}

std::vector<std::string> HfJson::texts(const char* key) const {
  std::vector<std::string> list;
  const nlohmann::json* v = find(key);
  if (v == nullptr) return list;
  if (!v->is_array() || v->size() > kMaxList) refuse(key, fmt::format("expected a list of at most {}", kMaxList));
  for (const nlohmann::json& item : *v) {
    if (!item.is_string()) refuse(key, "expected a list of strings");
    list.push_back(item.get<std::string>());
  }
  return list;
}

std::vector<int> HfJson::counts(const char* key) const {
  std::vector<int> list;
  const nlohmann::json* v = find(key);
  if (v == nullptr) return list;
  if (!v->is_array() || v->size() > kMaxList) refuse(key, fmt::format("expected a list of at most {}", kMaxList));
  for (const nlohmann::json& item : *v) {
    const auto n = whole_number(item);
    if (!n || *n < 1 || *n >= kMaxCount) refuse(key, "expected a list of whole numbers from 1");
    list.push_back(static_cast<int>(*n));
  }
  return list;
}

std::vector<std::array<int, 2>> HfJson::pairs(const char* key, std::vector<std::array<int, 2>> fallback) const {
  const nlohmann::json* v = find(key);
  if (v == nullptr) {
    std::string text;
    for (const auto& [a, b] : fallback) text += fmt::format("{}[{}, {}]", text.empty() ? "" : ", ", a, b);
    defaults_->push_back(fmt::format("{}{} [{}]", keys_, key, text));
    return fallback;
  }
  if (!v->is_array() || v->size() > kMaxList) refuse(key, fmt::format("expected a list of at most {} pairs", kMaxList));
  std::vector<std::array<int, 2>> list;
  for (const nlohmann::json& item : *v) {
    if (!item.is_array() || item.size() != 2) refuse(key, "expected a list of pairs");
    std::array<int, 2> pair{};
    for (std::size_t i = 0; i < 2; ++i) {
      const auto n = whole_number(item[i]);
      if (!n || *n < 1 || *n >= kMaxCount) refuse(key, "expected pairs of whole numbers from 1");
      pair[i] = static_cast<int>(*n);
    }
    list.push_back(pair);
  }
  return list;
}

HfJson HfJson::object(const char* key) const {
  const nlohmann::json* v = find(key);
  if (v == nullptr) return {kEmptyObject, path_, fmt::format("{}{}.", keys_, key), *defaults_};
  if (!v->is_object()) refuse(key, "expected an object");
  return {*v, path_, fmt::format("{}{}.", keys_, key), *defaults_};
}

}  // namespace mmt::models
