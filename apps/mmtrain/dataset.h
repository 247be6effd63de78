// From the configuration to indexed data: tokenizer, template, encoder inputs, indexes, data order, loader.
#pragma once

#include "apps/mmtrain/config.h"
#include "core/data/index.h"
#include "core/data/loader.h"
#include "core/data/sampler.h"
#include "parallel/comm/communicator.h"
#include "parallel/plan/step.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace mmt::app {

/// What turns records into rows, for all sets of a run. Not movable: the preparation points into it.
class Preparer {
 public:
  explicit Preparer(const Config& config);
  Preparer(const Preparer&) = delete;
  Preparer& operator=(const Preparer&) = delete;

  const data::Tokenizer& tokenizer() const { return tokenizer_; }
  const data::ChatTemplate& chat() const { return chat_; }
  const data::Preparation& preparation() const { return preparation_; }

 private:
  data::Tokenizer tokenizer_;
  data::ChatTemplate chat_;
  data::Preparation preparation_;
};

/// A vocabulary of 0 becomes the tokenizer's.
void set_vocabulary(Config& config, const data::Tokenizer& tokenizer);

/// What the data layer needs to know of a set.
data::SetSpec set_spec(const Config& config, const SetConfig& set);

/// Indexes of the sets, built by rank 0 and read by the others; all ranks agree that they see the same samples.
/// Throws Agreed: kRequeue when `stop` was set, kUsage for a set without a usable sample (with the counts of what is
/// wrong with them), and under `bad_samples: error` any bad sample (naming the first ones).
std::vector<data::DatasetIndex> open_indexes(const Config& config, const std::vector<SetConfig>& sets,
                                             const Preparer& preparer, comm::Communicator& world,
                                             const std::atomic<bool>* stop, bool training);

/// "2 missing_file, 1 no_labels", by DataFault; empty where there are none.
std::string fault_counts(const std::vector<std::int64_t>& faults);

/// What a run draws from, whatever its files are called and wherever they lie: a hash of the tokenizer's file and of
/// lengths, labels, media sizes and faults of all samples in their order.
std::string data_identity(const Config& config, const std::vector<data::DatasetIndex>& indexes);

/// A sample as the planner sees it. `id` is its place in the data order.
plan::SampleMeta sample_meta(const data::IndexEntry& entry, std::int64_t id, const data::Preparation& preparation);

/// Largest blocks that any step of these samples can make.
struct RowCaps {
  plan::BlockSize llm;
  std::vector<plan::BlockSize> encoders;
  std::vector<std::int64_t> encoder_items;
  int blocks = 1;  ///< microbatches of a step that schedules which keep all of them are sized for
};
RowCaps row_caps(const Config& config, const std::vector<const data::DatasetIndex*>& sets);

}  // namespace mmt::app
