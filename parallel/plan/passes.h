// Passes: from the compute orders of places to the programs of ranks.
#pragma once

#include "parallel/plan/schedule.h"

#include <vector>

namespace mmt::plan {

/// How the transfers between two computations of a place are ordered.
enum class Boundary : std::uint8_t {
  /// Forward edges (sends of what was computed, then receives of what comes next), then transposed ones. With it 1f1b
  /// ends without buffers, too. Stages of a place that run as one block by block receive together before it and send
  /// together after it.
  paired,
  /// All sends at once, then the receives of the next computation: nothing waits longer than it must, where edges
  /// buffer. Interleaved and greedy schedules, which need buffers anyway, have it.
  sends_first,
};
/// What a policy's programs need: paired for gpipe and 1f1b, sends_first for the others.
Boundary boundary_of(Policy policy);

struct PassOptions {
  Boundary boundary = Boundary::paired;
  StepEnd end;
  bool reduce_early = false;  ///< RED right behind the last backward of its stage instead of at the end
};

/// Programs of all ranks of the graph's stages, ascending by rank. Adds to the orders (by place): LOAD in front of the
/// forwards of stages that read the loader; SEND where the step's routes have rows from this rank to another one; RECV
/// in front of what reads it (within a rank it is the local copy; a block without rows has it too, since the port's
/// buffer is taken there); at the end RED of all buckets, last stage first, TIE, and one OPT. A rank runs those actions
/// of its place whose stage it runs; all ranks of a stage get them in the same order.
/// Throws std::logic_error when a rank would stand in two places or an order names a stage twice over.
std::vector<Program> make_programs(const StageGraph& graph, const std::vector<ComputeOrder>& orders,
                                   const PassOptions& options);

}  // namespace mmt::plan
