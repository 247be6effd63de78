#include "parallel/plan/live.h"

#include "core/at.h"
#include "core/error.h"
#include "parallel/plan/lifetimes.h"

#include <algorithm>

namespace mmt::plan {
namespace {

/// The blocks of one stage, this step's first and then those of each later step.
struct StageBlocks {
  struct Block {
    BlockReaders readers;
    bool open = false;
    bool computed = false;
    bool restored = false;
  };
  int num_blocks = 0;
  bool runs_here = false;
  bool needs_backward = false;
  bool has_weight_grads = false;
  std::vector<Block> blocks;
};

class Replay {
 public:
  Replay(const Wiring& wiring, const Program& program) : wiring_(wiring), graph_(wiring.graph()), program_(program) {
    int ahead = 0;
    for (const Action& a : program.actions) ahead = std::max(ahead, static_cast<int>(a.step_ahead));
    for (const StageInfo& info : graph_.stages) {
      StageBlocks& s = stages_.emplace_back();
      s.runs_here = std::ranges::find(info.ranks, program.rank) != info.ranks.end();
      if (!s.runs_here) continue;
      s.num_blocks = info.num_blocks;
      s.needs_backward = info.needs_backward;
      s.has_weight_grads = info.has_weight_grads;
      s.blocks.resize(at(s.num_blocks) * at(ahead + 1));
    }
  }

  std::vector<LiveEvent> run() {
    open_what_was_made();
    for (std::size_t i = 0; i < program_.actions.size(); ++i) {
      const Action& a = program_.actions[i];
      action_ = static_cast<std::int32_t>(i);
      own(a);
      if (a.kind == Kind::send || a.kind == Kind::recv) transfer(a);
    }
    return std::move(events_);
  }

 private:
  void event(int stage, int ahead, int block, LivePart part, int delta) {
    events_.push_back({action_, delta < 0, part, static_cast<std::int16_t>(stage), static_cast<std::int8_t>(delta),
                       static_cast<std::int8_t>(ahead), block});
  }

  StageBlocks::Block& open(int stage, int ahead, int block) {
    StageBlocks& s = stages_[at(stage)];
    MMT_CHECK(s.runs_here && block >= 0 && block < s.num_blocks, "rank {} has no block {} of stage {}", program_.rank,
              block, stage);
    StageBlocks::Block& b = s.blocks[at(ahead * s.num_blocks + block)];
    if (!b.open) {
      b = {readers_of(wiring_, stage, block, program_.rank), true, false, false};
      event(stage, ahead, block, LivePart::ports, +1);
    }
    return b;
  }
  void close_if_done(int stage, int ahead, int block, StageBlocks::Block& b) {
    if (!b.open || !b.computed || b.readers.out > 0 || b.readers.grads > 0) return;
    b.open = false;
    event(stage, ahead, block, LivePart::ports, -1);
  }

  void open_what_was_made() {
    std::vector<std::vector<char>> made_here(stages_.size());
    for (std::size_t s = 0; s < stages_.size(); ++s) made_here[s].resize(at(stages_[s].num_blocks), 0);
    for (const Action& a : program_.actions) {
      if (a.kind == Kind::forward && a.step_ahead == 0) made_here[at(a.stage)][at(a.block)] = 1;
    }
    action_ = -1;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      for (std::size_t b = 0; b < made_here[s].size(); ++b) {
        if (made_here[s][b] == 0) open(static_cast<int>(s), 0, static_cast<int>(b)).computed = true;
      }
    }
  }

  void own(const Action& a) {
    const auto block = [&]() -> StageBlocks::Block& { return open(a.stage, a.step_ahead, a.block); };
    const auto part = [&](LivePart p, int delta) { event(a.stage, a.step_ahead, a.block, p, delta); };
    const auto done = [&] {
      StageBlocks::Block& b = block();
      b.computed = true;
      close_if_done(a.stage, a.step_ahead, a.block, b);
    };
    const auto drop_restored = [&] {
      StageBlocks::Block& b = block();
      if (b.restored) part(LivePart::restored, -1);
      b.restored = false;
    };
    const StageBlocks& stage = stages_[at(a.stage)];
    switch (a.kind) {
      case Kind::forward:
        block();
        if (!stage.needs_backward) return done();
        part(LivePart::kept, +1);
        return part(LivePart::held, +1);
      case Kind::recompute: block().restored = true; return part(LivePart::restored, +1);
      case Kind::backward_input:
        if (stage.has_weight_grads) part(LivePart::stash, +1);
        part(LivePart::kept, -1);
        drop_restored();
        if (stage.has_weight_grads) return;
        part(LivePart::held, -1);
        return done();
      case Kind::backward_weight:
        part(LivePart::held, -1);
        part(LivePart::stash, -1);
        return done();
      case Kind::backward:
        part(LivePart::kept, -1);
        part(LivePart::held, -1);
        drop_restored();
        return done();
      default: return;
    }
  }

  void transfer(const Action& a) {
    const Edge& edge = graph_.edges[at(a.edge)];
    const bool local = a.kind == Kind::recv && wiring_.has_local(a.edge, a.block, program_.rank);
    if (a.transposed) {
      if (a.stage != edge.consumer && !local) return;
      if (!stages_[at(edge.consumer)].runs_here) return;
      StageBlocks::Block& b = open(edge.consumer, 0, a.block);
      --b.readers.grads;
      return close_if_done(edge.consumer, 0, a.block, b);
    }
    if (a.kind == Kind::recv) open(edge.consumer, 0, a.block);
    if (a.kind != Kind::send && !local) return;
    for (const int p : wiring_.producer_blocks(a.edge, a.block)) {
      StageBlocks::Block& b = open(edge.producer, 0, p);
      --b.readers.out;
      close_if_done(edge.producer, 0, p, b);
    }
  }

  const Wiring& wiring_;
  const StageGraph& graph_;
  const Program& program_;
  std::vector<StageBlocks> stages_;
  std::vector<LiveEvent> events_;
  std::int32_t action_ = -1;
};

}  // namespace

std::vector<LiveEvent> live_events(const Wiring& wiring, const Program& program) {
  return Replay(wiring, program).run();
}

std::vector<LiveEvent> live_events(const StageGraph& graph, const Program& program) {
  return live_events(Wiring(graph), program);
}

std::int64_t BlockBytes::of(LivePart part) const {
  switch (part) {
    case LivePart::kept: return kept;
    case LivePart::held: return held;
    case LivePart::stash: return stash;
    case LivePart::restored: return restored;
    case LivePart::ports: return ports;
  }
  return 0;
}

}  // namespace mmt::plan
