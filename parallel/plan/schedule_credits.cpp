// How many messages a schedule has under way.
#include "core/error.h"
#include "parallel/plan/schedule.h"

#include <algorithm>
#include <utility>

namespace mmt::plan {
namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

using Time = std::int64_t;
constexpr Time kUnknown = -1;

/// Starts and ends of each stage's forwards and backwards, by block.
struct Times {
  std::vector<std::vector<Time>> forward_start, forward_end, back_start, back_end;
};

/// Every computation starts as soon as its place is free and what it reads is there; F takes 1 and B takes 2.
Times as_early_as_possible(const PipelineShape& shape, const std::vector<ComputeOrder>& orders) {
  Times t;
  const std::vector<std::vector<Time>> unknown(shape.stages.size(), std::vector<Time>(at(shape.num_blocks), kUnknown));
  t.forward_start = t.forward_end = t.back_start = t.back_end = unknown;
  std::vector<std::vector<int>> producers(shape.stages.size()), returning(shape.stages.size());
  for (const PipelineShape::Link& l : shape.links) {
    producers[at(l.consumer)].push_back(l.producer);
    if (l.needs_grad) returning[at(l.producer)].push_back(l.consumer);
  }
  std::vector<std::size_t> next(orders.size(), 0);
  std::vector<Time> free(orders.size(), 0);
  /// False when something that the action reads has not run.
  const auto run = [&](std::size_t p, const Action& a) {
    const bool forward = a.kind == Kind::forward;
    Time start = free[p];
    for (const int other : (forward ? producers : returning)[at(a.stage)]) {
      const Time ready = (forward ? t.forward_end : t.back_end)[at(other)][at(a.block)];
      if (ready == kUnknown) return false;
      start = std::max(start, ready);
    }
    if (a.kind == Kind::recompute) return true;
    free[p] = start + (forward ? 1 : 2);
    (forward ? t.forward_start : t.back_start)[at(a.stage)][at(a.block)] = start;
    (forward ? t.forward_end : t.back_end)[at(a.stage)][at(a.block)] = free[p];
    return true;
  };
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::size_t p = 0; p < orders.size(); ++p) {
      for (; next[p] < orders[p].size() && run(p, orders[p][next[p]]); ++next[p]) moved = true;
    }
  }
  for (std::size_t p = 0; p < orders.size(); ++p) {
    if (next[p] == orders[p].size()) continue;
    throw ConfigError(
        fmt::format("the schedule stops at {} of place {}: choose policy list", to_string(orders[p][next[p]]), p));
  }
  return t;
}

/// Most messages that were sent and not yet received; block m is sent at sent[m] and received at received[m]. What is
/// received in the moment of a send still counts: the receiver may itself be sending in that moment.
int most_under_way(std::span<const Time> sent, std::span<const Time> received) {
  int most = 0;
  std::size_t taken = 0;
  for (std::size_t m = 0; m < sent.size(); ++m) {
    while (taken < m && received[taken] < sent[m]) ++taken;
    most = std::max(most, static_cast<int>(m + 1 - taken));
  }
  return most;
}

}  // namespace

int credits_needed(const PipelineShape& shape, Policy policy) {
  int credits = 2;
  if (policy != Policy::interleaved && policy != Policy::gpipe) return credits;
  ScheduleOptions options;
  options.policy = policy;
  const Times t = as_early_as_possible(shape, generate(shape, options));
  for (const PipelineShape::Link& l : shape.links) {
    if (shape.stages[at(l.producer)].place == shape.stages[at(l.consumer)].place) continue;
    credits = std::max(credits, most_under_way(t.forward_end[at(l.producer)], t.forward_start[at(l.consumer)]));
    if (!l.needs_grad) continue;
    credits = std::max(credits, most_under_way(t.back_end[at(l.consumer)], t.back_start[at(l.producer)]));
  }
  return credits;
}

}  // namespace mmt::plan
