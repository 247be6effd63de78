// The model of a run as one rank sees it: all stages, the stores of its own, ties.
#pragma once

#include "apps/mmtrain/config.h"
#include "models/build.h"
#include "parallel/plan/layout.h"
#include "parallel/plan/schedule.h"
#include "parallel/plan/step.h"
#include "parallel/run/optimized.h"
#include "parallel/run/ties.h"

#include <memory>
#include <string>
#include <vector>

namespace mmt::app {

/// Communicators of one mesh; null where the degree is 1 or this rank is elsewhere.
struct MeshComms {
  std::unique_ptr<comm::Communicator> tp, data;
};

struct Model {
  plan::Layout layout;
  int rank = 0;
  int lane = 0;

  /// By stage id. Every rank plans all stages; the units hold no tensors.
  std::vector<run::Stage> stages;
  std::vector<plan::StageTraits> traits;
  std::vector<run::StageUses> uses;
  std::vector<std::vector<run::Recompute>> recompute;        ///< by stage and unit, as wanted
  std::vector<std::unique_ptr<run::ParameterStore>> stores;  ///< by stage id; null: another rank's
  std::vector<int> own;                                      ///< stages of this rank, ascending
  std::vector<MeshComms> comms;                              ///< by mesh
  run::Ties ties;
  plan::ScheduleOptions schedule;  ///< as written, `auto` as 1f1b, unless a choice was made (layout.h)
  plan::StepEnd end;               ///< reductions, ties and update that end a training step

  // By module.
  std::vector<plan::EncoderRows> encoder_rows;
  plan::LlmRows llm_rows;
  std::vector<bool> zero;
  std::vector<std::int64_t> row_quantum;  ///< what divides the rows of a block

  std::size_t num_modules() const { return layout.modules().size(); }
  std::size_t num_encoders() const { return num_modules() - 1; }
  std::size_t module_of(int stage) const {
    return static_cast<std::size_t>(layout.stages()[static_cast<std::size_t>(stage)].units.module);
  }
  bool runs_module(std::size_t module) const;
  int first_stage(std::size_t module) const { return layout.first_stage(static_cast<int>(module)); }
  int last_stage(std::size_t module) const { return layout.last_stage(static_cast<int>(module)); }
  /// Whether this rank runs every stage: what generating text needs.
  bool whole() const { return own.size() == stages.size() && layout.num_ranks() == layout.lanes(); }
  /// Whether this rank speaks for its lane about a stage: it runs it and is the first of its tp group.
  bool leads(int stage) const;
  run::Stage& llm() { return stages.back(); }

  /// Place of this rank in the mesh of a stage that it runs.
  plan::Coord coord(int stage) const { return layout.mesh_of(stage).coord_of(rank); }
  comm::Communicator* comm(int stage, plan::Axis axis) const;
  std::vector<run::PlacedStore> placed() const;
  /// With master weights on this rank, each once.
  std::vector<run::PlacedParam> params(bool trainable_only) const;
};

/// The stages alone, cut as the layout says. Throws ConfigError (patterns, degrees that do not divide a module).
Model build_model(const Config& config, plan::Layout layout, int rank);
/// All of it on one rank.
Model build_model(const Config& config);
/// Collective over the world: communicators, stores, ties. Weights are not set yet.
void make_stores(Model& model, comm::Communicator& world, const Stream& stream);
/// Fresh values, addressed by (seed, name, element): the same in every layout.
void initialize_model(Model& model, std::uint64_t seed, const Stream& stream);
/// Copies masters into compute weights.
void refresh_compute(run::ParameterStore& store, const Stream& stream);

/// "eyes: 1.2 M parameters, 0.3 M trainable" for each module, for the start-up report.
std::string describe(const Model& model);

}  // namespace mmt::app
