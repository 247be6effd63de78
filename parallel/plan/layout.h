// Layout: which rank runs which part of which module, for a whole run. Integers only, the same on every rank.
//
// Modules have meshes, which several may share; a mesh's pp coordinates are *places*; a place runs *stages*, each a run
// of consecutive units of one module. All modules have the same number of data lanes. Within a lane the stages are a
// graph: encoders write into the LLM's first stage, and a module cut into several stages has inner links.
#pragma once

#include "parallel/plan/cost.h"
#include "parallel/plan/mesh.h"
#include "parallel/plan/program.h"

#include <string>
#include <vector>

namespace mmt::plan {

/// A run of units of one module: embedding or stem, blocks, head or exit and projector.
struct UnitSpan {
  int module = 0;
  int first = 0;
  int last = 0;  ///< one past the last
  friend bool operator==(const UnitSpan&, const UnitSpan&) = default;
};

struct ModuleUnits {
  std::string name;
  int num_units = 0;
};

struct LayoutSpec {
  std::vector<ModuleUnits> modules;  ///< encoders in config order, then the LLM
  std::vector<Mesh> meshes;
  /// By mesh: its runs in order, each the spans of one or more modules. Run r is on place r % pp, so that more runs
  /// than places are chunks of an interleaved pipeline. A module's spans may lie in several meshes: a projector that
  /// runs where its reader does.
  std::vector<std::vector<std::vector<UnitSpan>>> runs;
};

struct LayoutStage {
  UnitSpan units;
  int place = 0;  ///< of Layout::places
  int round = 0;  ///< which of the place's runs: above 0 in interleaved pipelines
};

struct LayoutPlace {
  int mesh = 0;
  int pp = 0;
  friend bool operator==(const LayoutPlace&, const LayoutPlace&) = default;
};

class Layout {
 public:
  Layout() = default;
  /// Throws ConfigError: spans that do not cover every module once and in order, a number of runs that is no multiple
  /// of the places, meshes that share ranks or differ in dp.
  explicit Layout(LayoutSpec spec);

  const std::vector<ModuleUnits>& modules() const { return spec_.modules; }
  int num_modules() const { return static_cast<int>(spec_.modules.size()); }
  const std::vector<Mesh>& meshes() const { return spec_.meshes; }
  /// In topological order: encoders in config order, then the LLM; a stage's id is its place in this list.
  const std::vector<LayoutStage>& stages() const { return stages_; }
  const std::vector<LayoutPlace>& places() const { return places_; }
  int lanes() const { return spec_.meshes.front().degree(Axis::dp); }
  int num_ranks() const;  ///< of all meshes together

  int mesh_index(int stage) const;  ///< of meshes()
  const Mesh& mesh_of(int stage) const { return meshes()[static_cast<std::size_t>(mesh_index(stage))]; }
  /// The tp group that runs a stage in a lane, in tp order.
  std::vector<int> ranks_of(int stage, int lane) const;
  bool runs(int stage, int rank) const;
  std::vector<int> stages_on(int rank) const;  ///< ascending
  int lane_of(int rank) const;                 ///< throws std::logic_error for a rank of no mesh
  /// Stages of one module, ascending.
  std::vector<int> stages_of_module(int module) const;
  int first_stage(int module) const { return stages_of_module(module).front(); }
  int last_stage(int module) const { return stages_of_module(module).back(); }

 private:
  LayoutSpec spec_;
  std::vector<LayoutPlace> places_;
  std::vector<LayoutStage> stages_;
};

/// What the models say of a stage.
struct StageTraits {
  bool needs_backward = false;  ///< trains, or gradients of its input are wanted
  bool trains = false;
  bool selects = false;  ///< its output has the `out` rows of a block, not all
};

/// The links of a layout: edge e < number of encoders writes encoder e's rows into the LLM's port of its name; inner
/// links ("x") follow. Gradients return over an edge whose producer needs a backward.
std::vector<Edge> layout_edges(const Layout& layout, std::span<const StageTraits> traits);

/// The graph of one lane in one step. Block m of every module works on the same samples. `sizes`: by module and block,
/// of this lane. `train` false: nothing runs backward.
StageGraph lane_graph(const Layout& layout, int lane, std::span<const StageTraits> traits,
                      const std::vector<std::vector<BlockSize>>& sizes, bool train);

}  // namespace mmt::plan
