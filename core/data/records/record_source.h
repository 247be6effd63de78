// The samples of one data set, whatever holds them: a file of records (record_file.h) or tar shards (tar_set.h).
#pragma once

#include "core/data/records/record.h"

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

namespace mmt::data {

enum class SetFormat : std::uint8_t {
  records,     ///< LLaVA JSON, messages, ShareGPT: `media_root` holds the media
  webdataset,  ///< a tar, a folder of tars, or a pattern of them
};

struct SetSpec {
  std::string name;  ///< in messages and reports
  std::filesystem::path path, media_root;
  std::filesystem::path index_folder{};  ///< empty: beside the data
  SetFormat format = SetFormat::records;
};

/// All members are thread-safe.
class RecordSource {
 public:
  virtual ~RecordSource() = default;

  virtual std::int64_t size() const = 0;
  /// Where sample `i` begins in its file, in bytes: ties an index entry to its sample.
  virtual std::int64_t offset(std::int64_t i) const = 0;
  /// Hash of the sizes and modification times of the files at opening: part of the index key.
  virtual std::uint64_t stamp() const = 0;
  /// The sample with the sources of its media. Throws DataError.
  virtual Record read(std::int64_t i) const = 0;
  /// "train.json:17: sample 16", for messages.
  virtual std::string where(std::int64_t i) const = 0;
  /// False when `stop` was raised while it was opened: some samples are missing.
  virtual bool whole() const { return true; }
};

struct OpenOptions {
  int threads = 1;                             ///< that look through shards
  const std::atomic<bool>* stop = nullptr;     ///< polled
  std::function<void(std::int64_t)> progress;  ///< samples found so far; called from the calling thread now and then
  bool write = true;                           ///< whether what was learnt about shards is kept for the next start
};

/// Throws ConfigError when there is no such data, or it is not of that format.
std::unique_ptr<const RecordSource> open_records(const SetSpec& spec, const OpenOptions& options = {});

/// Folder and name of the files that are kept beside a set's data (the index).
struct BesideData {
  std::filesystem::path folder;
  std::string name;
};
BesideData beside_data(const SetSpec& spec);

}  // namespace mmt::data
