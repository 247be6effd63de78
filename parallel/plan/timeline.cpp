#include "parallel/plan/timeline.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace mmt::plan {

double Timeline::bubble() const {
  if (makespan <= 0 || ranks.empty()) return 0.0;
  double busy = 0.0;
  for (const RankTimeline& r : ranks) busy += static_cast<double>(r.busy);
  return 1.0 - busy / (static_cast<double>(makespan) * static_cast<double>(ranks.size()));
}

void summarise(Timeline& timeline) {
  timeline.makespan = 0;
  for (RankTimeline& r : timeline.ranks) {
    r.busy = r.transfer = 0;
    for (const TimelineRow& row : r.rows) {
      const bool moves = row.action.kind == Kind::send || row.action.kind == Kind::recv;
      (moves ? r.transfer : r.busy) += row.end - row.start;
      timeline.makespan = std::max(timeline.makespan, row.end);
    }
  }
  for (RankTimeline& r : timeline.ranks) r.wait = timeline.makespan - r.busy - r.transfer;
}

std::vector<ActionError> compare(const Timeline& predicted, const Timeline& measured) {
  const auto order = [](const Action& a) {
    return std::tuple(a.kind, a.stage, a.block, a.edge, a.transposed, a.step_ahead);
  };
  std::map<std::pair<int, Kind>, ActionError> errors;
  for (const RankTimeline& m : measured.ranks) {
    const auto p = std::ranges::find(predicted.ranks, m.rank, &RankTimeline::rank);
    if (p == predicted.ranks.end()) continue;
    const auto sorted = [&](std::vector<TimelineRow> rows) {
      std::ranges::stable_sort(rows, {}, [&](const TimelineRow& row) { return order(row.action); });
      return rows;
    };
    const auto left = sorted(p->rows), right = sorted(m.rows);
    for (std::size_t i = 0, j = 0; i < left.size() && j < right.size();) {
      const auto a = order(left[i].action), b = order(right[j].action);
      if (a != b) {
        ++(a < b ? i : j);
        continue;
      }
      const Ns expected = left[i].end - left[i].start, seen = right[j].end - right[j].start;
      ActionError& e = errors[{left[i].action.stage, left[i].action.kind}];
      e.kind = left[i].action.kind;
      e.stage = left[i].action.stage;
      ++e.count;
      e.predicted += expected;
      e.measured += seen;
      e.worst = std::max(e.worst, expected < seen ? seen - expected : expected - seen);
      ++i, ++j;
    }
  }
  std::vector<ActionError> all;
  for (const auto& [key, error] : errors) all.push_back(error);
  return all;
}

}  // namespace mmt::plan
