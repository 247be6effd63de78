// Graphs of pipelines for tests of schedules, passes and verifier.
#pragma once

#include "parallel/plan/passes.h"
#include "parallel/plan/schedule.h"
#include "parallel/plan/timing.h"
#include "parallel/plan/verify.h"

#include <string>
#include <vector>

namespace mmt::testing {

inline constexpr plan::Ns kMs = 1'000'000;
inline constexpr std::int64_t kMiB = 1 << 20;

/// A shape with the graph that belongs to it: place p is rank p (with tp ranks a place: p * tp ...), one row a block.
struct Pipeline {
  plan::PipelineShape shape;
  plan::StageGraph graph;
};

/// As many stages, of which all train.
std::vector<bool> all_train(int stages);
/// Which stages train; frozen stages behind a training one still return gradients.
Pipeline make_pipeline(const std::vector<int>& places, const std::vector<std::pair<int, int>>& links,
                       const std::vector<bool>& trains, int num_blocks, int tp = 1);
/// Stage s of num_places * num_chunks at place s % num_places.
Pipeline make_chain(int num_places, int num_chunks, int num_blocks, const std::vector<bool>& trains, int tp = 1);
/// Chains of `depths` stages that all feed the first stage of a chain of `trunk` stages, which feeds all chains of
/// `forks`.
Pipeline make_join(const std::vector<int>& depths, int trunk, const std::vector<int>& forks, int num_blocks);

/// One bucket a training stage, one update; tied: the first and the last stage share a parameter.
plan::StepEnd end_of(const Pipeline& p, bool tied = false);

std::vector<plan::Program> programs_of(const Pipeline& p, plan::ScheduleOptions options, bool tied = false);

}  // namespace mmt::testing
