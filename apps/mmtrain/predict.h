// What a lane's programs will take, before any of them runs: time and memory of every action.
#pragma once

#include "apps/mmtrain/layer_infos.h"
#include "apps/mmtrain/machine.h"
#include "parallel/plan/lifetimes.h"
#include "parallel/plan/simulate.h"

#include <cstdint>
#include <span>
#include <vector>

namespace mmt::app {

/// By module and block of a lane.
using BlockSizes = std::vector<std::vector<plan::BlockSize>>;

/// Bytes on one rank, as its engine takes them before the first step. `activations` are the arenas of all blocks alive
/// at once; `rows` the ids, masks and media of a step's blocks.
struct RankMemory {
  std::int64_t parameters = 0, gradients = 0, optimizer = 0, activations = 0, rows = 0;
  std::int64_t total() const { return parameters + gradients + optimizer + activations + rows; }
};
std::int64_t most_memory(const std::vector<RankMemory>& ranks);  ///< of the fullest one

class Predictor {
 public:
  /// All of them must outlive it. The model's lane is predicted: its ranks stand for those of the others.
  Predictor(const Config& config, const Model& model, const RowCaps& caps, const Machine& machine,
            const Stream& stream);

  /// By stage: its units and their collectives added up for each block; reduction of the gradients over the data lanes
  /// and the update, which a rank has once, at the speed of links and memory.
  std::vector<plan::StageTimes> times(const BlockSizes& sizes) const;
  /// Links with the bytes of rows and gradients, tensor-parallel groups, bytes of blocks, fixed bytes.
  plan::SimulateOptions options(const plan::StageGraph& graph, std::span<const plan::Program> programs) const;
  plan::Timeline timeline(const plan::StageGraph& graph, std::span<const plan::Program> programs,
                          const BlockSizes& sizes) const;

  /// By rank of the lane, ascending.
  std::vector<RankMemory> memory(int num_blocks) const;
  /// Of a rank of the lane; `alive`: its blocks (most_alive), `num_blocks`: those of a step.
  RankMemory memory(int rank, const std::vector<plan::LiveBlocks>& alive, int num_blocks) const;

 private:
  /// The slowest link among ranks from `first` to `last`.
  const plan::Link& link_among(int first, int last) const;
  /// Of a unit's tensor-parallel group.
  plan::LayerTime collectives_of(int stage, const run::UnitPlan& unit, const plan::BlockSize& size) const;
  plan::Ns reduction_of(int stage) const;
  plan::Ns update_of(int place) const;
  /// The units of a stage.
  std::span<const plan::LayerInfo> units(int stage) const;

  const Config& config_;
  const Model& model_;
  const RowCaps& caps_;
  const Machine& machine_;
  Stream stream_;
  std::vector<std::vector<plan::LayerInfo>> infos_;
};

}  // namespace mmt::app
