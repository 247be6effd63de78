// What the executor needs of a stage before it runs: sizes of its blocks, how many are alive at once.
#pragma once

#include "apps/mmtrain/dataset.h"
#include "apps/mmtrain/model.h"
#include "parallel/run/executor.h"
#include "parallel/run/rows.h"

#include <map>
#include <vector>

namespace mmt::app {

/// The edges that fill a stage's ports: the LLM's port of encoder e is edge e, "x" an inner link (-1).
std::vector<int> port_edges(const Model& model, int stage);

/// Without the store and communicators of a rank, and without the blocks alive.
run::StageSetup stage_setup(const Model& model, const RowCaps& caps, int stage);

/// Of each block's ids, positions, masks and media.
run::RowsCapacity rows_capacity(const Config& config, const Model& model, const RowCaps& caps, int stage);

/// By rank of the model's lane and stage: the most blocks alive in any training or evaluation step, from programs of
/// growing numbers of blocks, which are verified on the way. Zero for stages that a rank does not run.
using AliveBlocks = std::map<int, std::vector<plan::LiveBlocks>>;
AliveBlocks most_alive(const Model& model, const RowCaps& caps);

}  // namespace mmt::app
