#include "parallel/plan/lifetimes.h"

#include "core/at.h"
#include "parallel/plan/live.h"
#include "parallel/plan/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

namespace mmt::plan {
namespace {

/// Transfers by which rows of a route leave `rank`: one to other ranks and one that stays.
int transfers_of(std::span<const Message> messages, int rank, bool from_source) {
  bool away = false, stays = false;
  for (const Message& m : messages) {
    if ((from_source ? m.src : m.dst) != rank) continue;
    (m.src == m.dst ? stays : away) = true;
  }
  return (away ? 1 : 0) + (stays ? 1 : 0);
}

/// The most of each part alive at once, of one stage.
class Most {
 public:
  void add(const LiveEvent& e) {
    int& now = now_[static_cast<std::size_t>(e.part)];
    int& most = most_[static_cast<std::size_t>(e.part)];
    now += e.delta;
    most = std::max(most, now);
  }
  LiveBlocks blocks(const Program& program, int stage) const {
    const auto of = [&](LivePart part) { return most_[static_cast<std::size_t>(part)]; };
    const bool joint = std::ranges::any_of(
        program.actions, [&](const Action& a) { return a.stage == stage && a.kind == Kind::backward; });
    return {of(LivePart::kept),     of(LivePart::held),  of(LivePart::stash),
            of(LivePart::restored), of(LivePart::ports), joint};
  }

 private:
  std::array<int, kNumLiveParts> now_{}, most_{};
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
  Most most;
  for (const LiveEvent& e : live_events(wiring, program)) {
    if (e.stage == stage) most.add(e);
  }
  return most.blocks(program, stage);
}

LiveBlocks live_blocks(const StageGraph& graph, const Program& program, int stage) {
  return live_blocks(Wiring(graph), program, stage);
}

void check_lifetimes(const Wiring& wiring, const Program& program, std::span<const LiveBlocks> caps) {
  std::vector<Most> all(wiring.graph().stages.size());
  std::map<std::pair<int, int>, int> open;  // stage and block of this step
  for (const LiveEvent& e : live_events(wiring, program)) {
    all[at(e.stage)].add(e);
    if (e.part == LivePart::ports && e.step_ahead == 0) open[{e.stage, e.block}] += e.delta;
  }
  for (const auto& [place, count] : open) {
    if (count <= 0) continue;
    refuse(program.rank, {Kind::forward, static_cast<std::int16_t>(place.first), place.second},
           "its block is alive after the step");
  }
  for (const int stage : wiring.stages_of(program.rank)) {
    const LiveBlocks most = all[at(stage)].blocks(program, stage);
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
