// Schedules: in which order each place computes its stages' blocks. Integers only; communication, reductions and the
// update are added by passes (passes.h).
//
// A *place* is the ranks that run several stages, for example the end of an encoder and the start of the LLM. Stages of
// a place that feed each other without leaving it run as one, block by block; a stage that is fed through another place
// begins the place's next *chunk*. In every schedule each stage's forwards, input gradients and weight gradients take
// the blocks in ascending order, so that the sums of gradients are those of plain accumulation, bit for bit.
#pragma once

#include "parallel/plan/program.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace mmt::plan {

enum class Policy : std::uint8_t {
  gpipe,        ///< all forwards, then all backwards
  one_f_one_b,  ///< `1f1b`: warm-up by the distance to the sink, then one forward and one backward in turn
  interleaved,  ///< 1f1b over places with several chunks each
  zero_bubble,  ///< the backward is split, weight gradients fill what would be idle
  list,         ///< simulated greedily with the given costs: for unequal stages and blocks
};
const char* name_of(Policy policy);  ///< as a config writes it: gpipe, 1f1b, interleaved, zero-bubble, list
std::optional<Policy> parse_policy(std::string_view name);

/// What a zero-bubble schedule may keep (Qi et al. 2023). With d = distance to the sink in places, D the largest:
/// h1 has at most d + 1 blocks between F and I as 1f1b and D + 1 between F and W; h2 has 2d + 1 and 2D + 1.
enum class ZeroBubbleMemory : std::uint8_t { h1, h2 };

/// A stage graph as schedules see it. Every stage has `num_blocks` blocks; block m reads block m of its producers.
struct PipelineShape {
  struct Stage {
    int place = 0;
    bool needs_backward = true;  ///< false: forward only
    bool trains = true;          ///< has weight gradients: W where the backward is split
    bool restore = false;        ///< an R in front of each backward: what it recomputes, it recomputes while it waits
    int chunk = -1;              ///< which of its place's chunks; -1 (of all stages): found from the links
  };
  struct Link {
    int producer = 0;
    int consumer = 0;
    bool needs_grad = true;  ///< gradients return over it
  };
  std::vector<Stage> stages;  ///< by StageGraph id: topological order
  std::vector<Link> links;
  int num_blocks = 0;

  int num_places() const;
};

/// The shape of `graph` with stage s at places[s]. `restore` and `chunks` (may be empty) by stage. A layout that deals
/// stages out to places in rounds says by `chunks` in which round each was dealt; links alone do not tell it of stages
/// that do not depend on each other, such as those of two encoders.
PipelineShape shape_of(const StageGraph& graph, std::span<const int> places, const std::vector<bool>& restore = {},
                       std::span<const int> chunks = {});

/// Nanoseconds of F, R, B, I or W of one block of a stage.
using CostFunction = std::function<std::int64_t(Kind kind, int stage, int block)>;

struct ScheduleOptions {
  Policy policy = Policy::one_f_one_b;
  ZeroBubbleMemory memory = ZeroBubbleMemory::h1;
  /// Of zero_bubble and list; without it F, I and W cost 1 each and B 2.
  CostFunction cost{};
  /// list: most blocks of a place between their first forward and their last backward; empty: what 1f1b has.
  std::vector<int> in_flight{};
  bool split_backward = false;  ///< list: I and W instead of B
  int credits = 2;              ///< the graph's: messages under way per edge and direction
};

using ComputeOrder = std::vector<Action>;

/// By place: F, R, and B or I and W, in order. Throws ConfigError when the policy does not fit the shape (with what to
/// choose instead), std::logic_error for a shape that is no graph.
std::vector<ComputeOrder> generate(const PipelineShape& shape, const ScheduleOptions& options);

/// The fewest credits with which the policy's programs end: 2, or more where places have several chunks and messages
/// wait for their round. StageGraph::credits must not be less; generate refuses interleaved with less.
int credits_needed(const PipelineShape& shape, Policy policy);

/// By place: the longest way to a sink, counted in places; 0 for places that only run forwards. The warm-up of 1f1b has
/// that many forwards. Throws ConfigError when places feed each other.
std::vector<int> distances_to_sink(const PipelineShape& shape);

}  // namespace mmt::plan
