// A data set of tar shards (WebDataset). Contents are read by their place in the shard, so samples come in any order.
//
// A sample with `json` that holds a dialogue (in any spelling of record_file.h) is that record; its media names are
// fields of the sample ("jpg", "img1.jpg", "0001.img1.jpg"). Where it names no pictures, those of the sample are taken
// in order; so it is with sounds and videos. Else `txt`, or "caption" or "text" of the json, is the answer to a user
// turn of the pictures, sounds and videos (gif, and webp fields that begin with "video"). Pictures are in the order of
// their fields, numbers in them by value.
#pragma once

#include "core/data/records/record_source.h"
#include "core/data/records/tar_shard.h"

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace mmt::data {

class TarSet final : public RecordSource {
 public:
  /// Reads the headers of all shards that an earlier start did not know. Throws ConfigError naming shard and member.
  static std::unique_ptr<const TarSet> open(const SetSpec& spec, const OpenOptions& options);

  std::int64_t size() const override { return first_.back(); }
  std::int64_t offset(std::int64_t i) const override;
  std::uint64_t stamp() const override;
  Record read(std::int64_t i) const override;
  std::string where(std::int64_t i) const override;
  bool whole() const override { return whole_; }
  std::int64_t scanned() const { return scanned_; }  ///< shards that were read, not known from an earlier start

 private:
  struct Place {
    std::size_t shard, sample;
  };
  TarSet() = default;
  Place place(std::int64_t i) const;
  std::shared_ptr<const OpenFile> file(std::size_t shard, const std::string& where) const;

  std::vector<std::filesystem::path> paths_;
  std::vector<TarShard> shards_;
  std::vector<std::int64_t> first_ = {0};  // samples before each shard, and all of them
  bool whole_ = true;
  std::int64_t scanned_ = 0;

  mutable std::mutex mutex_;
  mutable std::vector<std::pair<std::size_t, std::shared_ptr<const OpenFile>>> open_;  // the last used one at the end
};

}  // namespace mmt::data
