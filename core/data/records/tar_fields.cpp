#include "core/data/records/tar_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/data/json_guard.h"
#include "core/data/media/media_kind.h"
#include "core/data/natural_order.h"
#include "core/data/records/record_file.h"
#include "core/data/records/tar_shard.h"
#include "core/data/text/utf8.h"
#include "core/error.h"

namespace mmt::data {
namespace {

constexpr std::size_t kMaxSampleFields = 4096;

std::string_view ending(std::string_view field) { return field.substr(field.rfind('.') + 1); }

std::optional<Modality> modality_of(std::string_view field) {
  const std::string_view end = ending(field);
  if (end == "gif" || (end == "webp" && field.starts_with("video"))) return Modality::video;
  if (is_picture_ending(end)) return Modality::image;
  if (is_sound_ending(end)) return Modality::audio;
  return std::nullopt;
}

std::string_view without_white_space(std::string_view text) {
  constexpr const char* kSpace = " \t\r\n\v\f";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

}  // namespace

void TarFields::add(const std::string& name, MediaSource content) {
  if (find(name) != nullptr) {
    throw DataError(DataFault::bad_record, where_,
                    fmt::format("the field {:?} is there twice: members {}.{} (a key ends at the first dot of the file "
                                "name)",
                                name, key_, name));
  }
  if (fields_.size() == kMaxSampleFields) {
    throw DataError(DataFault::bad_record, where_, fmt::format("more than {} fields", kMaxSampleFields));
  }
  fields_.emplace_back(name, std::move(content));
}

const MediaSource* TarFields::find(std::string_view name) const {
  const auto at = std::find_if(fields_.begin(), fields_.end(), [&](const auto& f) { return f.first == name; });
  return at == fields_.end() ? nullptr : &at->second;
}

std::vector<std::string> TarFields::names_of(Modality modality) const {
  std::vector<std::string> names;
  for (const auto& [name, content] : fields_) {
    if (modality_of(name) == modality) names.push_back(name);
  }
  // "jpg" stands before "img1.jpg".
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    const bool bare_a = a.find('.') == std::string::npos, bare_b = b.find('.') == std::string::npos;
    return bare_a != bare_b ? bare_a : natural_less(a, b);
  });
  return names;
}

std::string TarFields::text_of(const MediaSource& content) const {
  std::string text;
  for (const std::byte b : content.read(where_, kMaxRecordBytes, DataFault::bad_record)) {
    text.push_back(static_cast<char>(b));
  }
  if (!valid_utf8(text)) throw DataError(DataFault::bad_record, where_, content.name() + " is not UTF-8 text");
  return text;
}

void TarFields::find_sources(Record& record) const {
  const auto source_of = [this](const std::string& path) {
    const MediaSource* source = find(field_of(path));
    if (source != nullptr) return *source;
    std::string names;
    for (const auto& [name, content] : fields_) names += (names.empty() ? "" : ", ") + name;
    throw DataError(DataFault::missing_file, where_,
                    fmt::format("the record names {:?}, but the sample's fields are {}", path.substr(0, 120), names));
  };
  find_media(record, source_of, where_);
}

std::string TarFields::field_of(const std::string& path) const {
  std::string field = path;
  if (const auto split = split_member(path)) {
    const std::string_view own = std::string_view(key_).substr(key_.rfind('/') + 1);
    if (split->first == key_ || split->first == own) field = split->second;
  }
  for (char& c : field) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return field;
}

Record TarFields::captioned(std::string_view caption) const {
  Record record;
  record.id = key_;
  Turn user, assistant;
  assistant.role = Role::assistant;
  for (const Modality modality : {Modality::image, Modality::audio, Modality::video}) {
    for (const std::string& name : names_of(modality)) {
      user.parts.push_back({"", static_cast<std::int32_t>(record.media.size())});
      record.media.push_back({modality, name, *find(name)});
    }
  }
  const std::string_view text = without_white_space(caption);
  if (!text.empty()) assistant.parts.push_back({std::string(text), -1});
  record.turns = {std::move(user), std::move(assistant)};
  return record;
}

Record TarFields::record() const {
  for (const auto& [name, content] : fields_) {
    if (is_unread_ending(ending(name))) {
      throw DataError(
          DataFault::unsupported_media, where_,
          fmt::format("{}: pictures are jpg, png, webp, sounds wav, flac, mp3, ogg, videos gif or video.webp",
                      content.name()));
    }
  }
  std::optional<std::string> caption;
  if (const MediaSource* content = find("json")) {
    const std::string text = text_of(*content);
    std::string error;
    const nlohmann::json source = parse_json(text, kMaxJsonDepth, error);
    if (!error.empty()) throw DataError(DataFault::bad_record, where_, content->name() + ": not JSON: at " + error);
    if (source.is_object() && (source.contains("messages") || source.contains("conversations"))) {
      Record record = parse_record(
          text, where_,
          {names_of(Modality::image), names_of(Modality::audio), names_of(Modality::video),
           [this](const std::string& path) { return is_data_uri(path) ? std::string() : field_of(path); }});
      if (record.id.empty()) record.id = key_;
      find_sources(record);
      return record;
    }
    for (const char* name : {"caption", "text"}) {
      if (!caption && source.is_object() && source.contains(name) && source[name].is_string()) {
        caption = source[name].get<std::string>();
      }
    }
  }
  if (const MediaSource* content = find("txt")) caption = text_of(*content);
  if (!caption) {
    throw DataError(
        DataFault::bad_record, where_,
        "no text: a sample has a txt field or a json field with a dialogue or a caption. Members of a sample "
        "lie side by side in the tar (tar --sort=name)");
  }
  return captioned(*caption);
}

}  // namespace mmt::data
