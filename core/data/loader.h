// Prefetch threads: records are read, tokenised and their media decoded ahead of the step that needs them.
// A sample that fails here keeps its place: planned ids and rows, zeros for the media, weight 0, the failure noted.
#pragma once

#include "core/data/index.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace mmt::data {

/// Which parts of a sample a rank needs.
struct Wanted {
  std::int32_t set = 0;             ///< index in the loader's sets
  std::int64_t sample = 0;          ///< record in its file
  bool text = true;                 ///< ids, labels and weights
  std::vector<std::int32_t> items;  ///< indices in the entry's items whose media rows are needed
};

struct LoadedItem {
  std::int32_t item = 0;      ///< index in the entry's items
  ItemShape shape;            ///< as planned
  std::vector<float> values;  ///< (input_rows, input_cols) row-major; zeros where the sample failed
};

struct LoadedSample {
  std::int32_t set = 0;
  std::int64_t sample = 0;
  std::vector<std::int32_t> input_ids;  ///< one a row; media rows hold the placeholder's id
  std::vector<std::int32_t> labels;  ///< aligned with input_ids; kIgnoreLabel where not supervised (always as planned)
  std::vector<float> weights;        ///< aligned with labels: the loss weight of each label; 0 where not supervised
  std::vector<LoadedItem> items;     ///< as wanted
  bool failed = false;
  DataFault fault = DataFault::bad_record;  ///< valid when failed
  std::string message;                      ///< names data set, sample and cause
};

enum class LossWeights : std::uint8_t { token, sample };  ///< 1 a token; 1/n each for a sample's n supervised tokens

struct LoaderOptions {
  int threads = 1;
  std::int64_t max_bytes = std::int64_t{512} << 20;  ///< decoded data ahead of the step being waited for
  LossWeights weights = LossWeights::token;
};

/// One owner thread calls request and take; the workers are the loader's own.
class Loader {
 public:
  /// The sets and the preparation must outlive the loader. Starts the threads.
  Loader(std::vector<const DatasetIndex*> sets, const Preparation& preparation, const LoaderOptions& options);
  /// Drops what is not loaded yet and joins the threads.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Queues a step's samples; returns at once. Steps are loaded in the order of their requests.
  void request(std::int64_t step, std::vector<Wanted> samples);
  /// Waits for a requested step and hands over its samples in the order of the request. Sets `stopped` and returns what
  /// is empty when `stop` becomes true while waiting (the step stays requested and may be taken later). Bugs and bad
  /// allocation in a worker are thrown here; bad samples are not errors (LoadedSample::failed).
  std::vector<LoadedSample> take(std::int64_t step, const std::atomic<bool>* stop, bool* stopped);
  /// Forgets everything requested (the end of an evaluation, a rewind).
  void clear();

  double waited_seconds() const;  ///< time spent inside take so far
  struct Work {
    std::int64_t samples = 0;  ///< loaded so far
    double seconds = 0.0;      ///< processor time that the workers took for them
  };
  Work work_done() const;
  std::int64_t bytes_in_use() const;
  std::int64_t peak_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mmt::data
