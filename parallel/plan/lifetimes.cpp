#include "parallel/plan/lifetimes.h"

#include "parallel/plan/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace mmt::plan {
namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

/// Transfers by which rows of a route leave `rank`: one to other ranks and one that stays.
int transfers_of(std::span<const Message> messages, int rank, bool from_source) {
  bool away = false, stays = false;
  for (const Message& m : messages) {
    if ((from_source ? m.src : m.dst) != rank) continue;
    (m.src == m.dst ? stays : away) = true;
  }
  return (away ? 1 : 0) + (stays ? 1 : 0);
}

/// Replays the lives of one stage's blocks, with the rules by which the executor takes and gives back their memory.
class LiveReplay {
 public:
  LiveReplay(const Wiring& wiring, const Program& program, int stage)
      : wiring_(wiring), graph_(wiring.graph()), program_(program), stage_(stage) {
    std::vector<bool> runs(at(info().num_blocks), false);
    for (const Action& a : program.actions) {
      if (a.stage == stage && a.kind == Kind::forward && a.step_ahead == 0 && inside(a.block)) runs[at(a.block)] = true;
    }
    // What an earlier step made is there from the start.
    for (int b = 0; b < info().num_blocks; ++b) {
      if (!runs[at(b)]) open(0, b).computed = true;
    }
    raise();
  }

  LiveBlocks run() {
    for (const Action& a : program_.actions) {
      if (a.stage == stage_) own(a);
      if (a.kind == Kind::send || a.kind == Kind::recv) transfer_of(a);
    }
    return most_;
  }

  /// A block of this step that is alive after the last action; -1 when there is none.
  int left_over() const {
    if (blocks_.empty()) return -1;
    for (std::size_t b = 0; b < blocks_[0].size(); ++b) {
      if (blocks_[0][b].open) return static_cast<int>(b);
    }
    return -1;
  }

 private:
  struct Block {
    BlockReaders readers;
    bool open = false;
    bool computed = false;
    bool restored = false;
  };
  const StageInfo& info() const { return graph_.stages[at(stage_)]; }
  bool inside(int block) const { return block >= 0 && block < info().num_blocks; }

  Block& block(int ahead, int index) {
    if (blocks_.size() <= at(ahead)) blocks_.resize(at(ahead) + 1);
    auto& list = blocks_[at(ahead)];
    if (list.empty()) list.resize(at(info().num_blocks));
    return list.at(at(index));
  }
  Block& open(int ahead, int index) {
    Block& b = block(ahead, index);
    if (b.open) return b;
    b = Block{.readers = readers_of(wiring_, stage_, index, program_.rank), .open = true};
    ++now_.ports;
    return b;
  }
  void close_if_done(int ahead, int index) {
    Block& b = block(ahead, index);
    if (!b.open || !b.computed || b.readers.out > 0 || b.readers.grads > 0) return;
    b.open = false;
    --now_.ports;
  }

  void own(const Action& a) {
    switch (a.kind) {
      case Kind::forward:
        open(a.step_ahead, a.block);
        if (info().needs_backward) {
          ++now_.kept;
          ++now_.held;
          raise();
          return;
        }
        raise();
        return done(a);
      case Kind::recompute:
        ++now_.restored;
        block(a.step_ahead, a.block).restored = true;
        return raise();
      case Kind::backward_input:
        now_.stash += info().has_weight_grads ? 1 : 0;
        raise();
        --now_.kept;
        drop_restored(a);
        if (info().has_weight_grads) return;
        --now_.held;
        return done(a);
      case Kind::backward_weight:
        --now_.held;
        --now_.stash;
        return done(a);
      case Kind::backward:
        most_.joint = true;
        --now_.kept;
        --now_.held;
        drop_restored(a);
        return done(a);
      default: return;
    }
  }
  void done(const Action& a) {
    open(a.step_ahead, a.block).computed = true;
    close_if_done(a.step_ahead, a.block);
  }
  void drop_restored(const Action& a) {
    bool& restored = block(a.step_ahead, a.block).restored;
    if (restored) --now_.restored;
    restored = false;
  }

  void transfer_of(const Action& a) {
    const Edge& edge = graph_.edges[at(a.edge)];
    if (edge.consumer != stage_ && edge.producer != stage_) return;
    const bool local = a.kind == Kind::recv && wiring_.has_local(a.edge, a.block, program_.rank);
    if (a.transposed) {
      if (edge.consumer != stage_ || (a.kind == Kind::recv && !local)) return;
      --open(0, a.block).readers.grads;
      close_if_done(0, a.block);
      return;
    }
    if (edge.consumer == stage_ && a.kind == Kind::recv) {
      open(0, a.block);
      raise();
    }
    if (edge.producer != stage_ || (a.kind == Kind::recv && !local)) return;
    for (const int p : wiring_.producer_blocks(a.edge, a.block)) {
      --open(0, p).readers.out;
      close_if_done(0, p);
    }
  }

  void raise() {
    most_.kept = std::max(most_.kept, now_.kept);
    most_.held = std::max(most_.held, now_.held);
    most_.stash = std::max(most_.stash, now_.stash);
    most_.restored = std::max(most_.restored, now_.restored);
    most_.ports = std::max(most_.ports, now_.ports);
  }

  const Wiring& wiring_;
  const StageGraph& graph_;
  const Program& program_;
  int stage_;
  std::vector<std::vector<Block>> blocks_;  ///< by step ahead and block
  LiveBlocks now_, most_;
};

}  // namespace

BlockReaders readers_of(const Wiring& wiring, int stage, int block, int rank) {
  BlockReaders r;
  for (const int e : wiring.edges_out_of(stage)) {
    const Edge& edge = wiring.graph().edges[at(e)];
    for (const int m : wiring.consumer_blocks(e, block)) {
      r.out += transfers_of(wiring.messages(e, m), rank, true);
      r.returns += edge.needs_grad ? 1 : 0;
    }
  }
  for (const int e : wiring.edges_into(stage)) {
    if (wiring.graph().edges[at(e)].needs_grad) r.grads += transfers_of(wiring.messages(e, block), rank, false);
  }
  return r;
}

BlockReaders readers_of(const StageGraph& graph, int stage, int block, int rank) {
  BlockReaders r;
  const auto count = [&](const std::vector<int>& ranks) {
    const bool self = std::ranges::find(ranks, rank) != ranks.end();
    return (self ? 1 : 0) + (ranks.size() > (self ? 1U : 0U) ? 1 : 0);
  };
  for (const Edge& edge : graph.edges) {
    const auto& routes = graph.routes[at(edge.id)];
    if (edge.producer == stage) {
      for (const int m : graph.consumers_of(edge.id, block)) {
        r.out += count(destinations_of(routes[at(m)], rank));
        r.returns += edge.needs_grad ? 1 : 0;
      }
    }
    if (edge.consumer == stage && edge.needs_grad) r.grads += count(sources_of(routes[at(block)], rank));
  }
  return r;
}

LiveBlocks live_blocks(const Wiring& wiring, const Program& program, int stage) {
  return LiveReplay(wiring, program, stage).run();
}

LiveBlocks live_blocks(const StageGraph& graph, const Program& program, int stage) {
  return live_blocks(Wiring(graph), program, stage);
}

void check_lifetimes(const Wiring& wiring, const Program& program, std::span<const LiveBlocks> caps) {
  for (const int stage : wiring.stages_of(program.rank)) {
    LiveReplay lives(wiring, program, stage);
    const LiveBlocks most = lives.run();
    if (const int block = lives.left_over(); block >= 0) {
      refuse(program.rank, {Kind::forward, static_cast<std::int16_t>(stage), block},
             "its block is alive after the step");
    }
    if (at(stage) >= caps.size()) continue;
    const LiveBlocks& cap = caps[at(stage)];
    const auto keep = [&](int used, int allowed, std::string_view what) {
      if (used <= allowed) return;
      throw std::logic_error(fmt::format("program of rank {}: stage {} has {} blocks {} at once, its cap is {}",
                                         program.rank, stage, used, what, allowed));
    };
    keep(most.kept, cap.kept, "kept (F to I)");
    keep(most.held, cap.held, "held (F to W)");
    keep(most.stash, cap.stash, "stashed (I to W)");
    keep(most.restored, cap.restored, "restored (R to I)");
    keep(most.ports, cap.ports, "in its ports");
  }
}

}  // namespace mmt::plan
