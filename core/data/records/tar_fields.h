// One sample of a tar shard as its fields: which are pictures, sounds, videos, the text, and the record that they make.
#pragma once

#include "core/data/records/record.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mmt::data {

class TarFields {
 public:
  TarFields(std::string key, std::string where) : key_(std::move(key)), where_(std::move(where)) {}
  /// Throws DataError(bad_record) for a field that is there already.
  void add(const std::string& name, MediaSource content);
  /// Throws DataError; tar_set.h says what becomes what.
  Record record() const;

 private:
  std::vector<std::string> names_of(Modality modality) const;
  const MediaSource* find(std::string_view name) const;
  std::string text_of(const MediaSource& content) const;
  void find_sources(Record& record) const;
  /// What a path in the record means: a field, or the name of its member with or without its folder.
  std::string field_of(const std::string& path) const;
  Record captioned(std::string_view caption) const;

  std::string key_, where_;
  std::vector<std::pair<std::string, MediaSource>> fields_;
};

}  // namespace mmt::data
