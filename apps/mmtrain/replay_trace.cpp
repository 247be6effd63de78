#include "apps/mmtrain/replay_trace.h"

#include "apps/mmtrain/step.h"
#include "core/error.h"
#include "core/files.h"
#include "kernels/backend.h"
#include "parallel/plan/timeline_files.h"

#include <algorithm>
#include <set>

namespace mmt::app {
namespace {

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 30;

int num_blocks(const plan::RecordedTrace& trace, const std::string& path) {
  int blocks = 0;
  for (const plan::Program& p : trace.programs) {
    for (const plan::Action& a : p.actions) {
      if (a.kind == plan::Kind::forward) blocks = std::max(blocks, a.block + 1);
    }
  }
  if (blocks < 1 || blocks > 1'000'000) throw ConfigError(fmt::format("{}: {} blocks run forward in it", path, blocks));
  return blocks;
}

/// Whether all actions are of stages, edges and blocks that the layout has; what the file says is not to be believed.
bool known(const plan::StageGraph& graph, const std::vector<plan::Program>& programs) {
  const auto below = [](int value, std::size_t end) { return value >= 0 && static_cast<std::size_t>(value) < end; };
  for (const plan::Program& p : programs) {
    for (const plan::Action& a : p.actions) {
      if (!below(a.stage, graph.stages.size())) return false;
      const plan::StageInfo& stage = graph.stages[static_cast<std::size_t>(a.stage)];
      if (a.kind == plan::Kind::optimize || a.kind == plan::Kind::reduce || a.kind == plan::Kind::tie) continue;
      if (!below(a.block, static_cast<std::size_t>(stage.num_blocks))) return false;
      if (std::ranges::find(stage.ranks, p.rank) == stage.ranks.end()) return false;
      const bool moves = a.kind == plan::Kind::send || a.kind == plan::Kind::recv;
      if (moves && !below(a.edge, graph.edges.size())) return false;
    }
  }
  return true;
}

/// A block without rows for an edge has no SEND: its route is empty.
void drop_unsent(plan::StageGraph& graph, const std::vector<plan::Program>& programs) {
  std::set<std::pair<int, int>> sent;
  for (const plan::Program& p : programs) {
    for (const plan::Action& a : p.actions) {
      if (a.kind == plan::Kind::send && !a.transposed) sent.insert({a.edge, a.block});
    }
  }
  for (std::size_t e = 0; e < graph.routes.size(); ++e) {
    for (std::size_t m = 0; m < graph.routes[e].size(); ++m) {
      if (sent.contains({static_cast<int>(e), static_cast<int>(m)})) continue;
      std::erase_if(graph.routes[e][m].segments, [](const plan::RouteSegment& s) { return s.src_rank != s.dst_rank; });
    }
  }
}

}  // namespace

plan::Timeline replay_trace(const PlanInput& in, const std::string& path) {
  std::string text;
  try {
    text = files::read(path, kMaxFileBytes);
  } catch (const Error& e) {
    throw ConfigError(e.what());
  }
  const plan::RecordedTrace trace = plan::read_chrome_trace(text, "measured", path);
  const PlannedRun run = plan_run(in.config, in.workload, in.machine);
  const Model& model = *run.model;
  const Predictor predictor(in.config, model, in.workload.caps, in.machine, cpu_stream());
  const BlockSizes sizes = [&] {
    BlockSizes all;
    for (const plan::BlockSize& block : in.workload.block)
      all.emplace_back(static_cast<std::size_t>(num_blocks(trace, path)), block);
    return all;
  }();
  const auto other_layout = [&](const std::string& why) {
    throw ConfigError(fmt::format("{}: recorded in another layout than the configuration's: {}", path, why));
  };
  if (static_cast<int>(trace.programs.size()) != model.layout.num_ranks())
    other_layout(fmt::format("it has {} ranks, the layout {}", trace.programs.size(), model.layout.num_ranks()));
  plan::Timeline timeline;
  for (int lane = 0; lane < model.layout.lanes(); ++lane) {
    std::vector<plan::Program> programs;
    std::vector<std::vector<plan::Ns>> times;
    try {
      for (std::size_t p = 0; p < trace.programs.size(); ++p) {
        if (model.layout.lane_of(trace.programs[p].rank) != lane) continue;
        programs.push_back(trace.programs[p]);
        times.push_back(trace.times[p]);
      }
      plan::StageGraph graph = plan::lane_graph(model.layout, lane, model.traits, sizes, true);
      lane_programs(model, graph, true);  // its credits
      if (!known(graph, programs)) other_layout("it runs stages, blocks or edges that the layout does not have there");
      drop_unsent(graph, programs);
      plan::Timeline own = plan::replay(graph, programs, times, predictor.options(graph, programs));
      std::ranges::move(own.ranks, std::back_inserter(timeline.ranks));
    } catch (const std::logic_error& e) {
      other_layout(e.what());
    }
  }
  std::ranges::sort(timeline.ranks, {}, &plan::RankTimeline::rank);
  summarise(timeline);
  return timeline;
}

}  // namespace mmt::app
