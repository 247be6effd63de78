// Evaluation: every sample of a set once, forward only, in the layout of the run.
#pragma once

#include "apps/mmtrain/engine.h"
#include "apps/mmtrain/job.h"

#include <atomic>
#include <string>
#include <vector>

namespace mmt::app {

/// Sums over a set, over all ranks.
struct EvalResult {
  std::string set;
  std::int64_t samples = 0;
  std::int64_t failed = 0;
  double loss = 0.0;  ///< sum of weight x loss / sum of weights
  double weight = 0.0;
  std::int64_t tokens = 0;   ///< supervised
  std::int64_t correct = 0;  ///< of these, the arg max is the label
  std::int64_t answers = 0;
  std::int64_t exact = 0;  ///< answers whose every token is the arg max: what greedy decoding would write
  double token_accuracy() const {
    return tokens > 0 ? static_cast<double>(correct) / static_cast<double>(tokens) : 0.0;
  }
  double answer_accuracy() const {
    return answers > 0 ? static_cast<double>(exact) / static_cast<double>(answers) : 0.0;
  }
};

/// Runs set after set. Ends early with fewer results when `stop` was agreed on by all ranks.
std::vector<EvalResult> evaluate(const Config& config, Job& job, Model& model, Engine& engine, const Preparer& preparer,
                                 const std::vector<data::DatasetIndex>& indexes, const std::atomic<bool>& stop);

/// All sets as one: loss by weight, accuracies by count.
EvalResult combined(const std::vector<EvalResult>& results);

}  // namespace mmt::app
