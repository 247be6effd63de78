// `mmtrain plan`: what a layout means for every rank, without running it.
#include "apps/mmtrain/planned_run.h"
#include "core/log.h"

#include <nlohmann/json.hpp>

#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>

namespace mmt::app {
namespace {

/// One place of the layout: what its ranks run, and the rank of the first lane that needs most.
struct PlaceRow {
  std::vector<int> ranks;  ///< over all lanes
  std::vector<std::string> stages;
  RankMemory memory;
  double busy = 0.0;  ///< share of the step that its ranks compute
};

std::vector<PlaceRow> rows_of(const Config& c, const PlannedRun& run) {
  const plan::Layout& layout = run.model->layout;
  const std::vector<std::string> names = run.stage_names(c);
  std::vector<PlaceRow> rows(layout.places().size());
  for (std::size_t s = 0; s < layout.stages().size(); ++s)
    rows[static_cast<std::size_t>(layout.stages()[s].place)].stages.push_back(names[s]);
  for (std::size_t p = 0; p < rows.size(); ++p) {
    const auto stage = std::ranges::find(layout.stages(), static_cast<int>(p), &plan::LayoutStage::place);
    if (stage == layout.stages().end()) continue;
    const auto id = static_cast<int>(stage - layout.stages().begin());
    for (int lane = 0; lane < layout.lanes(); ++lane) {
      for (const int rank : layout.ranks_of(id, lane)) rows[p].ranks.push_back(rank);
    }
    for (std::size_t r = 0; r < run.programs.size(); ++r) {
      if (!layout.runs(id, run.programs[r].rank)) continue;
      if (run.memory[r].total() > rows[p].memory.total()) rows[p].memory = run.memory[r];
      const auto& timeline = run.timeline.ranks[r];
      if (run.timeline.makespan > 0)
        rows[p].busy = static_cast<double>(timeline.busy) / static_cast<double>(run.timeline.makespan);
    }
    std::ranges::sort(rows[p].ranks);
  }
  return rows;
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t j = i;
    while (j + 1 < ranks.size() && ranks[j + 1] == ranks[j] + 1) ++j;
    text += fmt::format("{}{}", text.empty() ? "" : ",", ranks[i]);
    if (j > i) text += fmt::format("-{}", ranks[j]);
    i = j + 1;
  }
  return text;
}

std::string table(const std::vector<PlaceRow>& rows, std::int64_t limit) {
  std::vector<std::vector<std::string>> cells = {
      {"ranks", "stages", "parameters", "gradients", "optimizer", "activations", "rows", "peak", "busy", ""}};
  for (const PlaceRow& r : rows) {
    const RankMemory& m = r.memory;
    const bool fits = limit == 0 || m.total() <= limit;
    cells.push_back({ranks_text(r.ranks), fmt::format("{}", fmt::join(r.stages, "; ")), plan::bytes_text(m.parameters),
                     plan::bytes_text(m.gradients), plan::bytes_text(m.optimizer), plan::bytes_text(m.activations),
                     plan::bytes_text(m.rows), plan::bytes_text(m.total()), fmt::format("{:.0f}%", 100.0 * r.busy),
                     fits ? "" : "does not fit"});
  }
  std::vector<std::size_t> width(cells[0].size(), 0);
  for (const auto& row : cells) {
    for (std::size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::string text;
  for (const auto& row : cells) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i)
      line += i < 2 ? fmt::format("{:<{}}  ", row[i], width[i]) : fmt::format("{:>{}}  ", row[i], width[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

nlohmann::json to_json(const PlanInput& in, const PlannedRun& run, const std::vector<PlaceRow>& rows, bool fits) {
  nlohmann::json out = {{"ranks", in.ranks},
                        {"lanes", run.model->layout.lanes()},
                        {"machine", in.machine.text},
                        {"memory_limit", in.machine.memory},
                        {"fits", fits},
                        {"schedule", run.schedule()},
                        {"microbatches",
                         {{"median", in.workload.num_blocks},
                          {"least", in.workload.least_blocks},
                          {"most", in.workload.most_blocks},
                          {"steps", in.workload.steps}}},
                        {"step_seconds", 1e-9 * static_cast<double>(run.timeline.makespan)},
                        {"bubble", run.timeline.bubble()},
                        {"reason", run.choice.reason},
                        {"places", nlohmann::json::array()}};
  for (const PlaceRow& r : rows) {
    const RankMemory& m = r.memory;
    out["places"].push_back({{"ranks", r.ranks},
                             {"stages", r.stages},
                             {"parameters", m.parameters},
                             {"gradients", m.gradients},
                             {"optimizer", m.optimizer},
                             {"activations", m.activations},
                             {"rows", m.rows},
                             {"peak", m.total()},
                             {"busy", r.busy}});
  }
  return out;
}

}  // namespace

int run_plan(Job& job, const Arguments& a) {
  if (a.json) log::set_level(log::Level::warning);
  const PlanInput in = read_plan_input(job, a);
  if (job.rank() != 0) return kDone;  // one rank looks
  const PlannedRun run = plan_run(in.config, in.workload, in.machine);
  const std::vector<PlaceRow> rows = rows_of(in.config, run);
  const bool fits = in.machine.memory == 0 || most_memory(run.memory) <= in.machine.memory;
  if (a.json) {
    std::cout << to_json(in, run, rows, fits).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
    return fits ? kDone : kFailed;
  }
  const Workload& w = in.workload;
  std::cout << fmt::format("{}\n", in.machine.text);
  if (!run.choice.reason.empty()) std::cout << run.choice.reason << "\n";
  std::cout << table(rows, in.machine.memory);
  std::cout << fmt::format(
      "{} lane{}, {}, {} microbatches a step (from {} to {} in the first {} steps): {} a step predicted, bubble "
      "{:.1f}%\n",
      run.model->layout.lanes(), run.model->layout.lanes() == 1 ? "" : "s", run.schedule(), w.num_blocks,
      w.least_blocks, w.most_blocks, w.steps, plan::duration_text(run.timeline.makespan),
      100.0 * run.timeline.bubble());
  if (fits) {
    std::cout << fmt::format("fits: {} of {} on the fullest rank\n", plan::bytes_text(most_memory(run.memory)),
                             plan::bytes_text(in.machine.memory));
    return kDone;
  }
  log::error("does not fit: {} of {} on the fullest rank; {}", plan::bytes_text(most_memory(run.memory)),
             plan::bytes_text(in.machine.memory), memory_advice(in.config));
  return kFailed;
}

}  // namespace mmt::app
