// The index of a data set: for every sample what planning needs, without reading the sample again. One binary file per
// (data file, preparation), beside the data or in a given folder; built by several threads, in pieces, so that a
// stopped build goes on where it ended.
#pragma once

#include "core/data/records/record_source.h"
#include "core/data/sample.h"
#include "core/error.h"

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace mmt::data {

/// What is known about one sample. Views stay valid as long as the index.
struct IndexEntry {
  std::int64_t offset = 0;         ///< of the record in its file, bytes
  std::optional<DataFault> fault;  ///< why it cannot be used; then the rest is empty
  std::int32_t tokens = 0;         ///< LLM rows, after template, expansion and truncation
  std::int32_t supervised = 0;     ///< supervised labels: the sample's weight under `loss: token`
  bool truncated = false;
  std::span<const Item> items;
  std::span<const SegmentRun> runs;
};

struct IndexProgress {
  std::int64_t done = 0, total = 0, faults = 0;
};

struct IndexOptions {
  int threads = 1;
  const std::atomic<bool>* stop = nullptr;             ///< polled; a stopped build keeps what it has written
  std::function<void(const IndexProgress&)> progress;  ///< called from the calling thread, about five times a second
  bool write = true;  ///< false: what is there is read, nothing is written (all ranks but the first; `validate`)
  /// Samples that an earlier build could not use are tried again (their files may be there now); false: taken as they
  /// are.
  bool recheck = true;
};

class DatasetIndex {
 public:
  /// Reads what an earlier build left, if its key fits, and builds the rest. A file that is damaged, cut or of another
  /// key is rebuilt from its last sound piece; it never makes the run fail. Throws ConfigError for the data itself
  /// (or an index folder that cannot be written) and std::logic_error for bugs; bad samples become faults.
  static DatasetIndex build(const SetSpec& spec, const Preparation& preparation, const IndexOptions& options);
  ~DatasetIndex();
  DatasetIndex(DatasetIndex&&) noexcept;
  DatasetIndex& operator=(DatasetIndex&&) noexcept;

  const SetSpec& spec() const;
  const RecordSource& records() const;
  std::int64_t size() const;     ///< samples in the set
  std::int64_t indexed() const;  ///< the first `indexed()` are known; less than size() only after a stop
  bool complete() const { return records().whole() && indexed() == size(); }
  std::int64_t reused() const;  ///< how many came from the file of an earlier build
  IndexEntry entry(std::int64_t sample) const;
  /// The message behind an entry's fault, made again from the file (for reports; empty when it is usable now).
  std::string explain(std::int64_t sample, const Preparation& preparation) const;
  /// Samples without a fault, ascending: what the sampler draws from.
  const std::vector<std::int64_t>& usable() const;
  /// Number of samples per fault, indexed by DataFault.
  std::vector<std::int64_t> faults() const;
  const std::filesystem::path& index_path() const;
  std::uint64_t key() const;
  /// Hash of all entries: equal on all ranks, or they plan different steps.
  std::uint64_t digest() const;

 private:
  struct Impl;
  explicit DatasetIndex(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace mmt::data
