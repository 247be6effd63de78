#include "apps/mmtrain/layout.h"

#include "apps/mmtrain/layer_chain.h"
#include "apps/mmtrain/predict.h"
#include "apps/mmtrain/stage_setup.h"
#include "apps/mmtrain/step.h"
#include "kernels/backend.h"
#include "parallel/plan/auto_plan.h"
#include "parallel/plan/recompute.h"

#include <algorithm>
#include <array>

namespace mmt::app {
namespace {

using run::Recompute;

std::vector<plan::ModuleUnits> module_units(const Config& c) {
  std::vector<plan::ModuleUnits> modules;
  for (std::size_t m = 0; m <= c.encoders.size(); ++m) modules.push_back({module_name(c, m), whole_module(c, m).last});
  return modules;
}

plan::Chain cut_out(const plan::Chain& chain, const plan::PlaceCost& place) {
  plan::Chain part;
  part.layers.assign(chain.layers.begin() + place.first, chain.layers.begin() + place.first + place.count);
  return part;
}

/// Makes the choices that a configuration leaves open, one after the other.
class Chooser {
 public:
  Chooser(const Config& config, const Workload& workload, const Machine& machine)
      : c_(config), p_(config.parallel), workload_(workload), machine_(machine) {
    spec_.modules = module_units(config);
    for (const MeshConfig& mesh : p_.meshes) {
      spec_.meshes.push_back(plan::Mesh(mesh.tp, mesh.cp, mesh.dp, mesh.pp, {mesh.ranks.begin(), mesh.ranks.end()}));
    }
    spec_.runs.resize(p_.meshes.size());
  }

  LayoutChoice choose() {
    if (c_.train.recompute_auto) choose_recompute();
    const bool separate = p_.meshes.size() > 1 && p_.policy != "interleaved" &&
                          std::ranges::all_of(p_.meshes, [](const MeshConfig& m) { return m.stages.empty(); });
    if (separate && spec_.modules.size() == p_.meshes.size() && places() > static_cast<int>(p_.meshes.size())) {
      cut_modules();
    } else {
      for (std::size_t k = 0; k < p_.meshes.size(); ++k) cut_mesh(k);
    }
    choice_.layout = plan::Layout(std::move(spec_));
    if (!choice_.schedule && places() > 1 && (p_.policy == "auto" || p_.policy == "list" || p_.policy == "zero-bubble"))
      choose_order();
    return std::move(choice_);
  }

 private:
  int places() const {
    int n = 0;
    for (const MeshConfig& mesh : p_.meshes) n += mesh.pp;
    return n;
  }
  void tell(const std::string& line) { choice_.reason += (choice_.reason.empty() ? "" : "\n") + line; }

  /// Whether a module's projector stands between the encoders and the LLM of their common mesh, which is to be cut.
  bool projector_in_front(std::size_t m) const {
    const MeshConfig& mesh = p_.meshes[static_cast<std::size_t>(p_.mesh_of.back())];
    return mesh.stages.empty() && mesh.pp * p_.chunks > 1 && m < c_.encoders.size() &&
           c_.encoders[m].spec.projector.kind != "none" && c_.encoders[m].projector_place == ProjectorPlace::llm &&
           p_.mesh_of[m] == p_.mesh_of.back();
  }
  /// What a mesh runs, in topological order.
  std::vector<plan::UnitSpan> units_of(std::size_t mesh) const {
    std::vector<plan::UnitSpan> list, in_front;
    for (std::size_t m = 0; m < spec_.modules.size(); ++m) {
      plan::UnitSpan units = units_on(c_, m, mesh);
      if (units.first == units.last) continue;
      if (projector_in_front(m)) {
        in_front.push_back({units.module, units.last - 1, units.last});
        --units.last;
      }
      if (m == c_.encoders.size()) list.insert(list.end(), in_front.begin(), in_front.end());
      list.push_back(units);
    }
    return list;
  }

  const Model& uncut() {
    if (!uncut_) uncut_.emplace(build_model(c_, uncut_layout(c_), 0));
    return *uncut_;
  }
  std::vector<plan::ModuleLayers> layers_with(std::optional<Recompute> level) {
    return module_layers(layer_infos(c_, uncut(), workload_.caps, cpu_stream(), level), workload_, machine_);
  }
  /// All modules' layers, with the recompute that was chosen or written.
  const std::vector<plan::ModuleLayers>& layers() {
    if (layers_.empty()) layers_ = layers_with({});
    return layers_;
  }
  plan::Chain chain_of(std::size_t mesh, const std::vector<plan::ModuleLayers>& from) const {
    std::vector<plan::ModuleLayers> own;
    for (std::size_t m = 0; m < from.size(); ++m) {
      const plan::UnitSpan units = units_on(c_, m, mesh);
      if (units.first == units.last) continue;
      plan::ModuleLayers& part = own.emplace_back();
      part.name = from[m].name;
      part.layers.assign(from[m].layers.begin() + units.first, from[m].layers.begin() + units.last);
      if (projector_in_front(m)) {
        part.side = plan::ProjectorSide::reader;
        part.projector = {part.layers.back()};
        part.layers.pop_back();
      } else if (m < c_.encoders.size() && c_.encoders[m].projector_place == ProjectorPlace::encoder) {
        part.layers.back().with_previous = part.layers.size() > 1 && c_.encoders[m].spec.projector.kind != "none";
      }
    }
    return plan::joined_chain(own);
  }

  /// Places of other modules behind a mesh's last one: an encoder's block waits for the LLM's.
  int behind(std::size_t mesh) const { return mesh + 1 < p_.meshes.size() ? p_.meshes.back().pp : 0; }
  /// What blocks and weights may take of a rank's memory, beside the rows of a step; 0: any.
  std::int64_t limit() {
    if (machine_.memory == 0) return 0;
    std::int64_t rows = 0;
    for (std::size_t s = 0; s < uncut().stages.size(); ++s)
      rows += rows_capacity(c_, uncut(), workload_.caps, static_cast<int>(s)).bytes();
    rows *= workload_.most_blocks;
    if (rows >= machine_.memory) {
      throw ConfigError(
          fmt::format("ids, masks and media of a step's {} microbatches alone take {} of the {} that a rank has: lower "
                      "train.tokens_per_microbatch or train.global_batch_size",
                      workload_.most_blocks, plan::bytes_text(rows), plan::bytes_text(machine_.memory)));
    }
    return machine_.memory - rows;
  }
  plan::CutOptions cut_options(std::size_t mesh) {
    plan::CutOptions o;
    o.memory = limit();
    o.in_flight.num_blocks = workload_.num_blocks;
    o.places_behind = behind(mesh);
    o.links = place_links(spec_.meshes[mesh], machine_);
    return o;
  }
  std::vector<plan::ScheduleOptions> schedules() const {
    if (p_.policy == "auto") return plan::all_schedules();
    plan::ScheduleOptions written;
    written.policy = plan::parse_policy(p_.policy).value_or(plan::Policy::one_f_one_b);
    written.memory = p_.memory_h2 ? plan::ZeroBubbleMemory::h2 : plan::ZeroBubbleMemory::h1;
    return {written};
  }
  plan::AutoOptions auto_options(std::size_t mesh) {
    plan::AutoOptions o;
    o.num_blocks = workload_.num_blocks;
    o.cut = cut_options(mesh);
    o.transfers = machine_.transfers(0);
    // A place stands for the ranks of the first lane that run it.
    for (const plan::Mesh& grid : spec_.meshes) {
      for (int pp = 0; machine_.ranks_per_node > 0 && pp < grid.degree(plan::Axis::pp); ++pp) {
        plan::Coord at;
        at[plan::Axis::pp] = pp;
        o.transfers.node_of.push_back(grid.rank_at(at) / machine_.ranks_per_node);
      }
    }
    o.schedules = schedules();
    if (machine_.memory > 0) o.memory = {limit()};
    o.chunks = p_.policy == "auto" ? 2 : 1;
    return o;
  }

  /// Stages as they are written; projectors that run with the LLM stand in front of it.
  std::vector<std::vector<plan::UnitSpan>> written(std::size_t k) const {
    auto runs = stage_spans(c_, p_.meshes[k]);
    for (std::size_t m = c_.encoders.size(); m-- > 0;) {
      if (projector_moves(c_, m) && p_.mesh_of.back() == static_cast<int>(k))
        runs.front().insert(runs.front().begin(), units_on(c_, m, k));
    }
    return runs;
  }

  void cut_mesh(std::size_t k) {
    const MeshConfig& mesh = p_.meshes[k];
    if (!mesh.stages.empty()) {
      spec_.runs[k] = written(k);
      return;
    }
    const std::vector<plan::UnitSpan> modules = units_of(k);
    if (mesh.pp * p_.chunks == 1) {
      spec_.runs[k] = {modules};
      return;
    }
    const plan::Chain chain = chain_of(k, layers());
    const bool whole_graph = p_.meshes.size() == 1 && p_.policy != "interleaved";
    if (!whole_graph) {
      plan::CutOptions options = cut_options(k);
      if (p_.chunks > 1) options.memory = 0;  // the program counts what several runs of a place need
      const plan::Cut cut = plan::cut_chain(chain, mesh.pp * p_.chunks, options);
      spec_.runs[k] = runs_of(cut, modules);
      tell(fmt::format("stages: [{}], the slowest takes {}", stages_text(c_, spec_.runs[k]),
                       plan::duration_text(cut.bottleneck)));
      return;
    }
    plan::AutoPlan best = plan::plan_chain(chain, mesh.pp, auto_options(k));
    spec_.runs[k] = runs_of(best.cuts.front(), modules);
    tell(fmt::format("stages: [{}]: {}", stages_text(c_, spec_.runs[k]), best.reason));
    choice_.schedule = std::move(best.schedule);
  }

  /// Modules on ranks of their own, whose numbers of places are written; projectors on either side.
  void cut_modules() {
    std::vector<plan::ModuleLayers> modules = layers();
    int ranks = 0;
    for (std::size_t m = 0; m < modules.size(); ++m) {
      const MeshConfig& mesh = p_.meshes[m];
      modules[m].ranks_per_place = mesh.tp * mesh.cp;
      modules[m].min_places = modules[m].max_places = mesh.pp;
      ranks += mesh.tp * mesh.cp * mesh.pp;
      if (m + 1 == modules.size() || c_.encoders[m].spec.projector.kind == "none") continue;
      modules[m].projector = {modules[m].layers.back()};
      modules[m].layers.pop_back();
      const ProjectorPlace place = c_.encoders[m].projector_place;
      modules[m].side = place == ProjectorPlace::llm       ? plan::ProjectorSide::reader
                        : place == ProjectorPlace::encoder ? plan::ProjectorSide::encoder
                                                           : plan::ProjectorSide::either;
    }
    plan::AutoOptions options = auto_options(modules.size() - 1);
    options.cut.links = {};  // of several meshes: between places there are only those of one
    options.cut.places_behind = 0;
    const plan::AutoPlan best = plan::plan_modules(modules, ranks, options);
    std::string text;
    std::vector<plan::UnitSpan> reader;
    for (std::size_t m = 0; m < modules.size(); ++m) {
      plan::UnitSpan own = whole_module(c_, m);
      if (m < best.projector_at_reader.size() && best.projector_at_reader[m]) {
        reader.push_back({own.module, own.last - 1, own.last});
        --own.last;
      }
      std::vector<plan::UnitSpan> units = {own};
      if (m + 1 == modules.size()) units.insert(units.begin(), reader.begin(), reader.end());
      spec_.runs[m] = runs_of(best.cuts[m], units);
      text += (text.empty() ? "" : "], [") + stages_text(c_, spec_.runs[m]);
    }
    // The order follows from the graph that will run.
    tell(fmt::format("stages: [{}]: {}", text, best.reason));
  }

  /// The order of actions for stages that are written, from the graph that will run.
  void choose_order() {
    Model model = build_model(c_, choice_.layout, 0);
    choice_.apply(model);
    model.end.update = true;
    const Predictor predictor(c_, model, workload_.caps, machine_, cpu_stream());
    BlockSizes sizes;
    for (const plan::BlockSize& size : workload_.block)
      sizes.emplace_back(static_cast<std::size_t>(workload_.num_blocks), size);
    plan::StageGraph graph = plan::lane_graph(model.layout, model.lane, model.traits, sizes, true);
    const std::vector<plan::Program> plain = lane_programs(model, graph, true);
    plan::ScheduleProblem problem;
    problem.graph = &graph;
    for (const plan::LayoutStage& stage : model.layout.stages()) problem.places.push_back(stage.place);
    for (plan::StageTimes& t : predictor.times(sizes)) {
      t.blocks.resize(1);  // all alike
      problem.times.push_back(std::move(t));
    }
    problem.simulate = predictor.options(graph, plain);
    problem.end = model.end;
    std::vector<std::int64_t> memory;
    if (machine_.memory > 0) memory = {limit()};
    const std::vector<plan::ScheduleOptions> candidates = schedules();
    const bool chunked = std::ranges::any_of(model.layout.stages(), [](const auto& s) { return s.round > 0; });
    if (chunked) return;  // only interleaved has chunks, and asks for no costs
    plan::ScheduleChoice best = plan::choose_schedule(std::span(&problem, 1), candidates, memory);
    if (best.best < 0) throw ConfigError("no schedule fits: " + best.reason);
    choice_.schedule = best.trials[static_cast<std::size_t>(best.best)].options;
    if (p_.policy == "auto") tell("schedule: " + best.reason);
  }

  /// By module and unit, for the cut that is written or that would be best with it.
  void choose_recompute() {
    constexpr std::array kLevels = {Recompute::none, Recompute::selective, Recompute::full};
    std::vector<std::vector<plan::ModuleLayers>> variants;
    for (const Recompute level : kLevels) variants.push_back(layers_with(level));
    std::vector<std::vector<Recompute>> levels;
    for (const plan::ModuleLayers& m : variants.front()) levels.emplace_back(m.layers.size(), Recompute::none);
    for (std::size_t k = 0; k < p_.meshes.size(); ++k) {
      const MeshConfig& mesh = p_.meshes[k];
      std::vector<plan::Chain> chains;
      for (const auto& v : variants) chains.push_back(chain_of(k, v));
      std::vector<std::pair<std::size_t, std::size_t>> units;  // of the chain's layers
      for (const plan::UnitSpan& m : units_of(k)) {
        for (int u = m.first; u < m.last; ++u) units.emplace_back(m.module, u);
      }
      const auto take = [&](const plan::RecomputeChoice& best, std::size_t first) {
        for (std::size_t i = 0; i < best.level.size(); ++i)
          levels[units[first + i].first][units[first + i].second] = kLevels[best.level[i]];
      };
      const std::string name = p_.meshes.size() == 1 ? "" : module_name(c_, k) + ": ";
      if (mesh.stages.empty() && p_.chunks == 1) {
        const plan::RecomputeChoice best = plan::choose_recompute(chains, mesh.pp, cut_options(k));
        take(best, 0);
        tell(fmt::format("recompute: {}{}", name, best.reason));
        continue;
      }
      if (!mesh.stages.empty() && p_.chunks == 1) {
        recompute_in(k, written(k), chains, units, take, name);
        continue;
      }
      throw ConfigError(
          "train.recompute: auto does not know what several chunks of a place need: give none, selective or full");
    }
    choice_.recompute = std::move(levels);
    choice_.apply(*uncut_);
    layers_.clear();
  }

  /// Of written stages: each place for itself.
  template <class Take> void recompute_in(std::size_t k, const std::vector<std::vector<plan::UnitSpan>>& runs,
                                          const std::vector<plan::Chain>& chains,
                                          const std::vector<std::pair<std::size_t, std::size_t>>& units,
                                          const Take& take, const std::string& name) {
    for (std::size_t r = 0; r < runs.size(); ++r) {
      for (const plan::UnitSpan& span : runs[r]) {
        const auto at = std::ranges::find(
            units, std::pair(static_cast<std::size_t>(span.module), static_cast<std::size_t>(span.first)));
        const plan::PlaceCost place{.first = static_cast<int>(at - units.begin()), .count = span.last - span.first};
        std::vector<plan::Chain> parts;
        for (const plan::Chain& chain : chains) parts.push_back(cut_out(chain, place));
        plan::CutOptions options = cut_options(k);
        options.places_behind += static_cast<int>(runs.size() - r) - 1;
        options.links.clear();
        const plan::RecomputeChoice best = plan::choose_recompute(parts, 1, options);
        take(best, static_cast<std::size_t>(place.first));
        if (best.reason != "nothing is recomputed")
          tell(fmt::format("recompute: {}stage {} of {}: {}", name, r,
                           module_name(c_, units[static_cast<std::size_t>(place.first)].first), best.reason));
      }
    }
  }

  const Config& c_;
  const ParallelConfig& p_;
  const Workload& workload_;
  const Machine& machine_;
  plan::LayoutSpec spec_;
  std::optional<Model> uncut_;
  std::vector<plan::ModuleLayers> layers_;
  LayoutChoice choice_;
};

}  // namespace

plan::Layout one_rank_layout(const Config& c) {
  plan::LayoutSpec spec;
  spec.modules = module_units(c);
  spec.meshes.push_back(plan::Mesh(1, 1, 1, 1, {0}));
  auto& runs = spec.runs.emplace_back();
  runs.emplace_back();
  for (std::size_t m = 0; m < spec.modules.size(); ++m) runs.back().push_back(whole_module(c, m));
  return plan::Layout(std::move(spec));
}

LayoutChoice make_layout(const Config& c, const Workload& workload, const Machine& machine) {
  if (c.parallel.mesh_of.empty()) return {one_rank_layout(c), {}, {}, ""};
  // Cuts are made by estimates for layers wherever they may stand. What those miss of what the engine of the layout
  // will take (ports of a place's several stages) is kept free in another try.
  constexpr int kTries = 4;
  Machine room = machine;
  for (int tries = 1;; ++tries) {
    LayoutChoice choice = Chooser(c, workload, room).choose();
    if (machine.memory == 0 || choice.reason.empty()) return choice;
    Model model = build_model(c, choice.layout, choice.layout.meshes().back().ranks().front());
    choice.apply(model);
    const std::int64_t most =
        most_memory(Predictor(c, model, workload.caps, machine, cpu_stream()).memory(workload.most_blocks));
    if (most <= machine.memory) return choice;
    room.memory -= most - machine.memory;
    if (tries == kTries || room.memory <= 0) {
      throw ConfigError(fmt::format("{}: that takes {} of the {} of a rank", choice.reason, plan::bytes_text(most),
                                    plan::bytes_text(machine.memory)));
    }
  }
}

LayoutChoice make_layout(const Config& c, const std::vector<plan::BlockSize>& sizes) {
  constexpr plan::Ns kRate = 20'000'000;  // of 10^9 FLOPs; only ratios count
  Machine machine;
  machine.costs = plan::CostModel({kRate, kRate, kRate});
  return make_layout(c, workload_of(sizes, 8), machine);
}

}  // namespace mmt::app
