// Chunks: stages of a place that run as one. What the generators of schedules share.
#pragma once

#include "parallel/plan/schedule.h"

#include <cstddef>
#include <vector>

namespace mmt::plan {

struct Chunk {
  int place = 0;
  int index = 0;              ///< among the place's chunks
  std::vector<int> stages{};  ///< ascending
  bool needs_backward = false;
  bool trains = false;
  bool restore = false;
  std::vector<int> producers{}, consumers{};  ///< chunks
  std::vector<int> grad_producers{},
      grad_consumers{};  ///< chunks whose gradients come from here; that return gradients
};

/// Chunks in an order in which producers come first. Throws std::logic_error for a shape that is no graph, ConfigError
/// when places feed each other in a way that no order of whole chunks serves.
std::vector<Chunk> chunks_of(const PipelineShape& shape);
/// Every stage is a chunk of its own.
std::vector<Chunk> single_stages(const PipelineShape& shape);

/// Which chunk of its place each stage belongs to: one more than that of the ancestors which it has at its own place
/// through another place.
std::vector<int> chunk_indices(const PipelineShape& shape);

/// Longest ways to a sink, by chunk, counted in places; 0 for chunks without a backward.
std::vector<int> distances_of(const std::vector<Chunk>& chunks);

/// Actions of one block of a chunk: forwards in order, backwards in reverse.
void push_forward(const Chunk& chunk, int block, ComputeOrder& order);
void push_backward(const PipelineShape& shape, const Chunk& chunk, Kind kind, int block, ComputeOrder& order);

/// The fewest credits, 2 or more, with which orders end. Throws ConfigError when none do.
int credits_of(const PipelineShape& shape, const std::vector<ComputeOrder>& orders);

/// zero_bubble and list.
std::vector<ComputeOrder> generate_greedy(const PipelineShape& shape, const ScheduleOptions& options);

}  // namespace mmt::plan
