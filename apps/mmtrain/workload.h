// What the steps of a run look like: what planning goes by. Integers only, the same on every rank.
#pragma once

#include "apps/mmtrain/dataset.h"
#include "core/data/sampler.h"
#include "parallel/plan/cost.h"

#include <vector>

namespace mmt::app {

struct Workload {
  std::vector<plan::BlockSize> block;  ///< by module: the mean of the blocks of the steps that were looked at
  int num_blocks = 1;                  ///< of a lane in a step: the median
  int least_blocks = 1, most_blocks = 1;
  int steps = 0;  ///< that were looked at
  RowCaps caps;
};

/// Of the first steps of a run: no more than eight.
Workload workload_of(const Config& config, const data::Sampler& sampler, const std::vector<data::DatasetIndex>& indexes,
                     const RowCaps& caps, const data::Preparation& preparation);
/// Of blocks of these sizes, by module, which are the largest, too.
Workload workload_of(const std::vector<plan::BlockSize>& sizes, int num_blocks);

/// How the blocks of an encoder and of the LLM look.
plan::EncoderRows encoder_rows_of(const EncoderConfig& encoder);
plan::LlmRows llm_rows_of(const Config& config);

}  // namespace mmt::app
