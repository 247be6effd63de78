// Program: what one rank does in one step, as data. The same representation is generated, verified, simulated, executed
// and traced.
//
// Text form, one action per word: `2F0` stage 2 forward of block 0, `1W3` backward weight, `1SEND3@e2` send over edge
// 2 what consumer block 3 reads, `1RECV3@-e2` the transposed transfer (gradients), `2RED:b4` reduce bucket 4,
// `2TIE:b1`, `0OPT`, `0LOAD0`. A block of the next step is written `1F0+1`.
#pragma once

#include "parallel/plan/route.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mmt::plan {

enum class Kind : std::uint8_t {
  load,             ///< LOAD: hand the loader's media and labels to a block
  forward,          ///< F
  recompute,        ///< R: restore a whole stage's kept state early
  backward_input,   ///< I
  backward_weight,  ///< W, any time after I
  backward,         ///< B: I and W unit by unit
  send,             ///< SEND
  recv,             ///< RECV; within a rank it makes the local copy and there is no SEND
  tie,              ///< TIE: add the gradients of a tied parameter's uses, in use order
  reduce,           ///< RED: sum a bucket over its module's data lanes
  optimize,         ///< OPT
};

/// `block` counts in its own stage's module; a transfer's block is the consumer's; TIE and RED hold a bucket there.
struct Action {
  Kind kind = Kind::forward;
  std::int16_t stage = 0;
  std::int32_t block = 0;
  std::int16_t edge = -1;
  bool transposed = false;     ///< a transfer of gradients, from the consumer back to the producer
  std::int8_t step_ahead = 0;  ///< the block belongs to this step + step_ahead
  friend bool operator==(const Action&, const Action&) = default;
};

std::string to_string(const Action& action);
Action parse_action(std::string_view text);  ///< throws std::invalid_argument with the text

struct Program {
  int rank = 0;
  std::vector<Action> actions;
  friend bool operator==(const Program&, const Program&) = default;
};
std::string to_string(const Program& program);  ///< "rank 0: 0F0 0F1 ..."
Program parse_program(std::string_view text);

/// A link between two stages. Every link has an id: edges between modules, and inner links of one module.
struct Edge {
  int id = 0;
  int producer = 0;        ///< stage
  int consumer = 0;        ///< stage
  std::string port = "x";  ///< the consumer's input port: "x" for inner links, the encoder's name for `write` edges
  bool needs_grad = true;  ///< false: nothing returns, no transposed transfer exists
};

struct StageInfo {
  int id = 0;  ///< global, in topological order
  std::string module;
  std::vector<int> ranks;  ///< world ranks that run this stage
  int num_blocks = 0;
  bool needs_backward = false;  ///< anything to compute in BI or BW
  bool has_weight_grads = false;
  bool reads_loader = false;  ///< has LOAD actions
};

struct StageGraph {
  std::vector<StageInfo> stages;
  std::vector<Edge> edges;
  /// By edge id: the producer's blocks that each consumer block reads, ascending.
  std::vector<std::vector<std::vector<int>>> producers_of;
  /// By edge id and consumer block: which rows go where; decides which ranks exchange a message.
  std::vector<std::vector<Route>> routes;
  int credits = 2;  ///< buffers per edge and direction

  std::vector<int> consumers_of(int edge, int producer_block) const;
};

/// What ends a step, behind its last backward.
struct StepEnd {
  std::vector<int> buckets;            ///< by stage: RED each; stages beyond the list have none
  std::vector<std::vector<int>> ties;  ///< stages with a use of each tied parameter: one TIE on each of their ranks
  bool update = false;                 ///< one OPT on every rank

  int num_buckets(int stage) const {
    return static_cast<std::size_t>(stage) < buckets.size() ? buckets[static_cast<std::size_t>(stage)] : 0;
  }
};

}  // namespace mmt::plan
