// Partition over modules: how many places each module gets of a budget of ranks, where the projectors stand, and the
// stages, costs and memory that a cut means for schedules and the simulator.
#pragma once

#include "parallel/plan/choose.h"
#include "parallel/plan/partition.h"
#include "parallel/plan/schedule.h"
#include "parallel/plan/simulate.h"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace mmt::plan {

/// Which side of an encoder's edge its projector is computed on.
enum class ProjectorSide : std::uint8_t { either, encoder, reader };

/// A module's layers with their costs. The last module of a list is the one that all others feed.
struct ModuleLayers {
  std::string name;
  std::vector<PlannedLayer> layers{};
  int ranks_per_place = 1;  ///< tp * cp
  int max_places = 0;       ///< 0: as many as layers
  int min_places = 1;
  std::vector<PlannedLayer> projector{};            ///< as computed with the encoder's mesh
  std::vector<PlannedLayer> projector_at_reader{};  ///< with the reader's mesh; empty: as `projector`
  ProjectorSide side = ProjectorSide::encoder;
};

/// One chain of all modules in order (layout `all`): each encoder, then the last module, joined at its first layer. A
/// projector stands behind its encoder, at its end's place (`encoder`) or wherever the cuts fall (`either`); or in
/// front of the last module, at the place of its first layer (`reader`).
Chain joined_chain(std::span<const ModuleLayers> modules);
/// Chains of modules on ranks of their own. `at_reader` by encoder; those projectors begin the last chain.
std::vector<Chain> separate_chains(std::span<const ModuleLayers> modules, const std::vector<bool>& at_reader);

/// Places by module, and how each is cut.
struct ModuleCuts {
  std::vector<bool> projector_at_reader;  ///< by encoder
  std::vector<Cut> cuts;                  ///< by module, of separate_chains
  Ns bottleneck = 0;
  int ranks = 0;                                                  ///< used, of one replica
  std::string text(std::span<const ModuleLayers> modules) const;  ///< "eyes 1, ears 1, llm 4 places"
};

/// The best `count` divisions of `ranks` (of one replica: all ranks / dp), best first: for each number of places of the
/// last module, the least tau such that the others have places of at most tau on the ranks that are left; equal
/// bottlenecks: more places of the last module, then fewer of the first ones; projectors rather at the encoder.
/// Throws ConfigError when none exists, with the ranks or the memory that would be needed.
std::vector<ModuleCuts> partition_modules(std::span<const ModuleLayers> modules, int ranks, const CutOptions& options,
                                          int count = 1);

/// A cut as a graph of stages: one rank a place (standing for its tp * cp), one row a message.
struct PlannedPipeline {
  StageGraph graph;
  std::vector<int> places;         ///< by stage
  std::vector<StageTimes> times;   ///< by stage
  std::vector<PlannedLayer> sums;  ///< by stage: its layers added up
  SimulateOptions simulate;        ///< bytes of edges and blocks, fixed bytes; `transfers` has no links yet
  ActionCost cost(std::span<const Program> programs) const { return cost_of_stages(programs, times); }
};

/// Places of a joined chain; a place with layers of several modules has a stage for each of them. Interleaved: piece i
/// of the cut is a chunk of place i % num_places; 0: every piece is a place.
PlannedPipeline pipeline_of(const Chain& chain, const Cut& cut, int num_blocks, int num_places = 0);
/// Modules on ranks of their own: encoder after encoder, then the last module.
PlannedPipeline pipeline_of(std::span<const ModuleLayers> modules, const ModuleCuts& cuts, int num_blocks);

/// What choose_schedule works on, with one reduction for each stage that trains; the pipeline must outlive it.
ScheduleProblem problem_of(const PlannedPipeline& pipeline);

/// Simulated makespan of each candidate; the least one wins, the first of equals.
struct Settled {
  std::size_t best = 0;
  std::vector<Ns> makespans;
};
Settled settle(std::size_t candidates, const std::function<Ns(std::size_t)>& makespan);

}  // namespace mmt::plan
