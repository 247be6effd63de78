#include "parallel/plan/layout.h"

#include "core/error.h"

#include <algorithm>
#include <numeric>
#include <set>

namespace mmt::plan {
namespace {

void check_meshes(const LayoutSpec& spec) {
  std::set<int> used;
  for (const Mesh& mesh : spec.meshes) {
    if (mesh.degree(Axis::dp) != spec.meshes.front().degree(Axis::dp)) {
      throw ConfigError(fmt::format("modules with {} and {} data lanes: all modules must have the same dp",
                                    spec.meshes.front().degree(Axis::dp), mesh.degree(Axis::dp)));
    }
    for (const int rank : mesh.ranks()) {
      if (!used.insert(rank).second)
        throw ConfigError(fmt::format("rank {} belongs to two modules' own ranks: they must be disjoint", rank));
    }
  }
}

}  // namespace

Layout::Layout(LayoutSpec spec) : spec_(std::move(spec)) {
  check_meshes(spec_);
  struct Placed {
    UnitSpan units;
    std::size_t mesh = 0, run = 0;
  };
  std::vector<std::vector<Placed>> spans(spec_.modules.size());
  std::vector<int> first_place;
  for (std::size_t k = 0; k < spec_.meshes.size(); ++k) {
    const int pp = spec_.meshes[k].degree(Axis::pp);
    first_place.push_back(static_cast<int>(places_.size()));
    for (int i = 0; i < pp; ++i) places_.push_back({static_cast<int>(k), i});
    const auto& runs = spec_.runs[k];
    if (runs.size() % static_cast<std::size_t>(pp) != 0)
      throw ConfigError(fmt::format("{} stages for {} places of the pipeline", runs.size(), pp));
    for (std::size_t r = 0; r < runs.size(); ++r) {
      for (const UnitSpan& units : runs[r]) spans[static_cast<std::size_t>(units.module)].push_back({units, k, r});
    }
  }
  for (std::size_t m = 0; m < spec_.modules.size(); ++m) {
    const ModuleUnits& module = spec_.modules[m];
    std::ranges::stable_sort(spans[m], {}, [](const Placed& p) { return p.units.first; });
    const Placed* before = nullptr;
    int next = 0;
    for (const Placed& p : spans[m]) {
      if (p.units.first != next || p.units.last <= p.units.first ||
          (before && before->mesh == p.mesh && before->run >= p.run)) {
        throw ConfigError(fmt::format("{}: stage {} has units [{}, {}), expected to begin at {}", module.name, p.run,
                                      p.units.first, p.units.last, next));
      }
      next = p.units.last;
      before = &p;
      const int pp = spec_.meshes[p.mesh].degree(Axis::pp), run = static_cast<int>(p.run);
      stages_.push_back({p.units, first_place[p.mesh] + run % pp, run / pp});
    }
    if (next != module.num_units)
      throw ConfigError(fmt::format("{}: the stages hold {} of {} units", module.name, next, module.num_units));
  }
}

int Layout::num_ranks() const {
  return std::accumulate(spec_.meshes.begin(), spec_.meshes.end(), 0,
                         [](int n, const Mesh& mesh) { return n + mesh.num_ranks(); });
}

int Layout::mesh_index(int stage) const {
  const LayoutStage& s = stages_[static_cast<std::size_t>(stage)];
  return places_[static_cast<std::size_t>(s.place)].mesh;
}

std::vector<int> Layout::ranks_of(int stage, int lane) const {
  const Mesh& mesh = mesh_of(stage);
  Coord at;
  at[Axis::dp] = lane;
  at[Axis::pp] = places_[static_cast<std::size_t>(stages_[static_cast<std::size_t>(stage)].place)].pp;
  std::vector<int> ranks;
  for (int tp = 0; tp < mesh.degree(Axis::tp); ++tp) {
    at[Axis::tp] = tp;
    ranks.push_back(mesh.rank_at(at));
  }
  return ranks;
}

bool Layout::runs(int stage, int rank) const {
  const Mesh& mesh = mesh_of(stage);
  return mesh.contains(rank) &&
         mesh.coord_of(rank)[Axis::pp] ==
             places_[static_cast<std::size_t>(stages_[static_cast<std::size_t>(stage)].place)].pp;
}

std::vector<int> Layout::stages_on(int rank) const {
  std::vector<int> list;
  for (int s = 0; s < static_cast<int>(stages_.size()); ++s) {
    if (runs(s, rank)) list.push_back(s);
  }
  return list;
}

int Layout::lane_of(int rank) const {
  for (const Mesh& mesh : spec_.meshes) {
    if (mesh.contains(rank)) return mesh.coord_of(rank)[Axis::dp];
  }
  MMT_CHECK(false, "rank {} runs no module", rank);
  return -1;
}

std::vector<int> Layout::stages_of_module(int module) const {
  std::vector<int> list;
  for (int s = 0; s < static_cast<int>(stages_.size()); ++s) {
    if (stages_[static_cast<std::size_t>(s)].units.module == module) list.push_back(s);
  }
  return list;
}

std::vector<Edge> layout_edges(const Layout& layout, std::span<const StageTraits> traits) {
  std::vector<Edge> edges;
  const auto add = [&](int producer, int consumer, const std::string& port) {
    edges.push_back({static_cast<int>(edges.size()), producer, consumer, port,
                     traits[static_cast<std::size_t>(producer)].needs_backward});
  };
  const int llm = layout.num_modules() - 1;
  for (int e = 0; e < llm; ++e)
    add(layout.last_stage(e), layout.first_stage(llm), layout.modules()[static_cast<std::size_t>(e)].name);
  for (int m = 0; m <= llm; ++m) {
    const std::vector<int> stages = layout.stages_of_module(m);
    for (std::size_t i = 1; i < stages.size(); ++i) add(stages[i - 1], stages[i], "x");
  }
  return edges;
}

StageGraph lane_graph(const Layout& layout, int lane, std::span<const StageTraits> traits,
                      const std::vector<std::vector<BlockSize>>& sizes, bool train) {
  StageGraph g;
  const auto num_blocks = static_cast<int>(sizes.back().size());
  std::vector<std::vector<int>> groups;  // by stage
  for (std::size_t s = 0; s < layout.stages().size(); ++s) {
    const auto id = static_cast<int>(s);
    groups.push_back(layout.ranks_of(id, lane));
    StageInfo info;
    info.id = id;
    info.module = layout.modules()[static_cast<std::size_t>(layout.stages()[s].units.module)].name;
    info.ranks = groups.back();
    info.num_blocks = num_blocks;
    info.needs_backward = train && traits[s].needs_backward;
    info.has_weight_grads = train && traits[s].trains;
    g.stages.push_back(std::move(info));
  }
  g.edges = layout_edges(layout, traits);
  for (Edge& edge : g.edges) {
    edge.needs_grad = edge.needs_grad && train;
    const auto producer = static_cast<std::size_t>(edge.producer), consumer = static_cast<std::size_t>(edge.consumer);
    const auto module = static_cast<std::size_t>(layout.stages()[producer].units.module);
    const bool selected = edge.port != "x" || traits[producer].selects;
    g.producers_of.emplace_back();
    g.routes.emplace_back();
    for (int m = 0; m < num_blocks; ++m) {
      const BlockSize& size = sizes[module][static_cast<std::size_t>(m)];
      const std::int64_t count = selected ? size.out : size.rows;
      const SourceItem source{groups[producer].front(), m, 0, count};
      const WantedItem wanted{groups[consumer].front(), 0, 0, count};
      const Route whole = make_route(edge.id, m, std::span(&source, 1), std::span(&wanted, 1));
      g.producers_of.back().push_back({m});
      g.routes.back().push_back(spread_over_tp(
          whole, [&](int) { return groups[producer]; }, [&](int) { return groups[consumer]; }));
    }
  }
  return g;
}

}  // namespace mmt::plan
