#include "pipelines.h"

#include <algorithm>
#include <numeric>

namespace mmt::testing {

using namespace plan;

std::vector<bool> all_train(int stages) { return std::vector<bool>(static_cast<std::size_t>(stages), true); }

Pipeline make_pipeline(const std::vector<int>& places, const std::vector<std::pair<int, int>>& links,
                       const std::vector<bool>& trains, int num_blocks, int tp) {
  Pipeline p;
  StageGraph& g = p.graph;
  for (std::size_t s = 0; s < places.size(); ++s) {
    StageInfo info;
    info.id = static_cast<int>(s);
    info.module = "module";
    info.ranks.resize(static_cast<std::size_t>(tp));
    std::iota(info.ranks.begin(), info.ranks.end(), places[s] * tp);
    info.num_blocks = num_blocks;
    info.has_weight_grads = trains[s];
    info.needs_backward =
        trains[s] || std::ranges::any_of(links, [&](const auto& link) {
          return link.second == info.id && g.stages[static_cast<std::size_t>(link.first)].needs_backward;
        });
    g.stages.push_back(info);
  }
  for (const auto& [from, to] : links) {
    const auto id = static_cast<int>(g.edges.size());
    g.edges.push_back({id, from, to, "x", g.stages[static_cast<std::size_t>(from)].needs_backward});
    g.producers_of.emplace_back();
    g.routes.emplace_back();
    for (int m = 0; m < num_blocks; ++m) {
      g.producers_of.back().push_back({m});
      Route route{id, m, {}};
      for (int t = 0; t < tp; ++t) {
        route.segments.push_back({places[static_cast<std::size_t>(from)] * tp + t, m, t,
                                  places[static_cast<std::size_t>(to)] * tp + t, t, 1, t});
      }
      g.routes.back().push_back(std::move(route));
    }
  }
  p.shape = shape_of(g, places);
  p.shape.num_blocks = num_blocks;
  return p;
}

Pipeline make_chain(int num_places, int num_chunks, int num_blocks, const std::vector<bool>& trains, int tp) {
  std::vector<int> places;
  std::vector<std::pair<int, int>> links;
  for (int s = 0; s < num_places * num_chunks; ++s) {
    places.push_back(s % num_places);
    if (s > 0) links.emplace_back(s - 1, s);
  }
  return make_pipeline(places, links, trains, num_blocks, tp);
}

Pipeline make_join(const std::vector<int>& depths, int trunk, const std::vector<int>& forks, int num_blocks) {
  std::vector<int> places;
  std::vector<std::pair<int, int>> links;
  std::vector<int> ends;
  const auto add = [&] {
    places.push_back(static_cast<int>(places.size()));
    return places.back();
  };
  const auto chain = [&](int depth, int from) {
    for (int i = 0; i < depth; ++i) {
      const int stage = add();
      if (from >= 0) links.emplace_back(from, stage);
      from = stage;
    }
    return from;
  };
  for (const int depth : depths) ends.push_back(chain(depth, -1));
  const int first = add();
  for (const int end : ends) {
    if (end >= 0) links.emplace_back(end, first);
  }
  const int last = chain(trunk - 1, first);
  for (const int depth : forks) chain(depth, last);
  return make_pipeline(places, links, std::vector<bool>(places.size(), true), num_blocks);
}

StepEnd end_of(const Pipeline& p, bool tied) {
  StepEnd end;
  for (const StageInfo& s : p.graph.stages) {
    end.buckets.push_back(s.has_weight_grads ? 1 : 0);
    end.update |= s.has_weight_grads;
  }
  if (tied) end.ties = {{0, static_cast<int>(p.graph.stages.size()) - 1}};
  return end;
}

std::vector<Program> programs_of(const Pipeline& p, ScheduleOptions options, bool tied) {
  options.credits = p.graph.credits;
  PassOptions pass;
  pass.boundary = boundary_of(options.policy);
  pass.end = end_of(p, tied);
  return make_programs(p.graph, generate(p.shape, options), pass);
}

}  // namespace mmt::testing
