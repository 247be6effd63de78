// Wiring: a stage graph's edges and messages as flat tables, made once and read by passes, verifier and simulator.
#pragma once

#include "parallel/plan/program.h"

#include <cstdint>
#include <span>
#include <vector>

namespace mmt::plan {

/// Two ranks between which a route has rows.
struct Message {
  int src = 0;  ///< of the forward direction; src == dst is a local copy
  int dst = 0;
  int channel = -1;  ///< of the forward direction; the transposed one is the next; -1 for a local copy
};

/// One queue of messages: an edge, a direction, a sender and a receiver.
struct Channel {
  int edge = 0;
  bool transposed = false;
  int from = 0;  ///< who sends on this channel
  int to = 0;
};

class Wiring {
 public:
  /// The graph must outlive it. Throws std::logic_error for tables that do not fit each other.
  explicit Wiring(const StageGraph& graph);

  const StageGraph& graph() const { return *graph_; }
  std::span<const int> edges_into(int stage) const { return in_[static_cast<std::size_t>(stage)]; }
  std::span<const int> edges_out_of(int stage) const { return out_[static_cast<std::size_t>(stage)]; }
  std::span<const int> producer_blocks(int edge, int consumer_block) const {
    return graph_->producers_of[static_cast<std::size_t>(edge)][static_cast<std::size_t>(consumer_block)];
  }
  std::span<const int> consumer_blocks(int edge, int producer_block) const;

  /// Ordered by (src, dst).
  std::span<const Message> messages(int edge, int consumer_block) const;
  /// Whether the action (a SEND or a RECV) of `rank` exchanges a message with another rank.
  bool has_peer(const Action& a, int rank) const;
  /// Whether rows of the route stay on `rank`.
  bool has_local(int edge, int consumer_block, int rank) const;

  std::span<const Channel> channels() const { return channels_; }
  int num_ranks() const { return num_ranks_; }  ///< one more than the largest rank of any stage
  std::span<const int> stages_of(int rank) const { return stages_of_[static_cast<std::size_t>(rank)]; }

 private:
  const StageGraph* graph_;
  std::vector<std::vector<int>> in_, out_, stages_of_;
  struct Inverse {
    std::vector<int> first, blocks;  ///< producer block p: blocks[first[p] .. first[p + 1])
  };
  std::vector<Inverse> consumers_;
  std::vector<std::vector<std::uint32_t>> first_message_;  ///< by edge and consumer block
  std::vector<Message> messages_;
  std::vector<Channel> channels_;
  int num_ranks_ = 0;
};

}  // namespace mmt::plan
