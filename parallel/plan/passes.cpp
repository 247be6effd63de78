#include "parallel/plan/passes.h"

#include "core/at.h"
#include "core/error.h"
#include "parallel/plan/chunks.h"
#include "parallel/plan/wiring.h"

#include <algorithm>
#include <utility>

namespace mmt::plan {
namespace {

Action transfer(Kind kind, int stage, int block, const Edge& edge, bool transposed) {
  return {kind, static_cast<std::int16_t>(stage), block, static_cast<std::int16_t>(edge.id), transposed, 0};
}

bool is_backward(Kind kind) { return kind == Kind::backward || kind == Kind::backward_input; }

/// Adds transfers to the order of one place, for all its ranks at once; SENDs stand here whether a rank has rows to
/// send or not.
class PlacePass {
 public:
  PlacePass(const Wiring& wiring, const std::vector<int>& places, const std::vector<int>& chunk, int place,
            Boundary boundary)
      : wiring_(wiring), graph_(wiring.graph()), places_(places), chunk_(chunk), place_(place), boundary_(boundary) {
    waits_.resize(graph_.edges.size());
    returned_.resize(graph_.edges.size());
    for (const Edge& e : graph_.edges) {
      const auto blocks = at(graph_.stages[at(e.consumer)].num_blocks);
      if (places_[at(e.producer)] != place) continue;
      returned_[at(e.id)].assign(blocks, false);
      for (std::size_t m = 0; m < blocks; ++m) {
        waits_[at(e.id)].push_back(static_cast<int>(wiring.producer_blocks(e.id, static_cast<int>(m)).size()));
      }
    }
  }

  std::vector<Action> run(const ComputeOrder& order) {
    std::size_t first = 0;
    while (first < order.size()) {
      std::size_t last = first + 1;
      while (boundary_ == Boundary::paired && last < order.size() && together(order[first], order[last])) ++last;
      slot(std::span(order).subspan(first, last - first));
      first = last;
    }
    flush();
    return std::move(out_);
  }

 private:
  struct Transfers {
    std::vector<Action> sends, recvs;
  };

  /// Whether two computations belong to one block of stages that run as one.
  bool together(const Action& a, const Action& b) const {
    return a.block == b.block && a.kind == b.kind && chunk_[at(a.stage)] == chunk_[at(b.stage)];
  }

  void slot(std::span<const Action> actions) {
    // Receives from other places stand in front of the slot, local copies in front of what reads them.
    std::vector<std::vector<Action>> local(actions.size());
    for (std::size_t i = 0; i < actions.size(); ++i) receives(actions[i], local[i]);
    flush();
    for (std::size_t i = 0; i < actions.size(); ++i) {
      out_.insert(out_.end(), local[i].begin(), local[i].end());
      const StageInfo& info = graph_.stages[at(actions[i].stage)];
      if (actions[i].kind == Kind::forward && info.reads_loader) {
        out_.push_back({Kind::load, actions[i].stage, actions[i].block});
      }
      out_.push_back(actions[i]);
      sends(actions[i]);
    }
  }

  void receives(const Action& a, std::vector<Action>& local) {
    if (a.kind == Kind::forward) {
      for (const int e : wiring_.edges_into(a.stage)) {
        const Edge& edge = graph_.edges[at(e)];
        auto& list = places_[at(edge.producer)] == place_ ? local : forward_.recvs;
        list.push_back(transfer(Kind::recv, a.stage, a.block, edge, false));
      }
    }
    if (!is_backward(a.kind)) return;
    for (const int e : wiring_.edges_out_of(a.stage)) {
      const Edge& edge = graph_.edges[at(e)];
      if (!edge.needs_grad) continue;
      auto& list = places_[at(edge.consumer)] == place_ ? local : back_.recvs;
      for (const int m : wiring_.consumer_blocks(e, a.block)) {
        if (returned_[at(e)][at(m)]) continue;
        returned_[at(e)][at(m)] = true;
        list.push_back(transfer(Kind::recv, a.stage, m, edge, true));
      }
    }
  }

  void sends(const Action& a) {
    if (a.kind == Kind::forward) {
      for (const int e : wiring_.edges_out_of(a.stage)) {
        for (const int m : wiring_.consumer_blocks(e, a.block)) {
          if (--waits_[at(e)][at(m)] > 0) continue;
          forward_.sends.push_back(transfer(Kind::send, a.stage, m, graph_.edges[at(e)], false));
        }
      }
    }
    if (!is_backward(a.kind)) return;
    for (const int e : wiring_.edges_into(a.stage)) {
      const Edge& edge = graph_.edges[at(e)];
      if (!edge.needs_grad || wiring_.producer_blocks(e, a.block).empty()) continue;
      back_.sends.push_back(transfer(Kind::send, a.stage, a.block, edge, true));
    }
  }

  void flush() {
    const auto emit = [&](std::vector<Action>& list) {
      out_.insert(out_.end(), list.begin(), list.end());
      list.clear();
    };
    emit(forward_.sends);
    if (boundary_ == Boundary::sends_first) emit(back_.sends);
    emit(forward_.recvs);
    emit(back_.sends);
    emit(back_.recvs);
  }

  const Wiring& wiring_;
  const StageGraph& graph_;
  const std::vector<int>& places_;
  const std::vector<int>& chunk_;
  int place_;
  Boundary boundary_;
  std::vector<std::vector<int>> waits_;      ///< by edge and consumer block: producer blocks still to run
  std::vector<std::vector<bool>> returned_;  ///< by edge and consumer block: its gradients are received already
  Transfers forward_, back_;
  std::vector<Action> out_;
};

std::vector<int> places_of(const StageGraph& graph, const std::vector<ComputeOrder>& orders) {
  std::vector<int> places(graph.stages.size(), -1);
  for (std::size_t p = 0; p < orders.size(); ++p) {
    for (const Action& a : orders[p]) {
      MMT_CHECK(a.stage >= 0 && at(a.stage) < places.size(), "{} of {} stages", to_string(a), places.size());
      int& place = places[at(a.stage)];
      MMT_CHECK(place < 0 || place == static_cast<int>(p), "stage {} stands in the orders of places {} and {}", a.stage,
                place, p);
      place = static_cast<int>(p);
    }
  }
  return places;
}

/// RED, TIE and OPT of one rank. Stages with an early reduction are left out.
void push_end(const Wiring& wiring, const StepEnd& end, int rank, bool reductions, std::vector<Action>& out) {
  const std::span<const int> stages = wiring.stages_of(rank);
  for (std::size_t i = stages.size(); reductions && i-- > 0;) {
    for (int b = 0; b < end.num_buckets(stages[i]); ++b) {
      out.push_back({Kind::reduce, static_cast<std::int16_t>(stages[i]), b});
    }
  }
  for (std::size_t t = 0; t < end.ties.size(); ++t) {
    int last = -1;
    for (const int s : end.ties[t]) {
      if (std::ranges::find(stages, s) != stages.end()) last = std::max(last, s);
    }
    if (last >= 0) out.push_back({Kind::tie, static_cast<std::int16_t>(last), static_cast<int>(t)});
  }
  if (end.update && !stages.empty()) out.push_back({Kind::optimize, static_cast<std::int16_t>(stages.back())});
}

/// Where each stage's gradients are complete: behind its last backward.
std::vector<const Action*> last_backwards(const StageGraph& graph, const std::vector<Action>& actions) {
  std::vector<const Action*> last(graph.stages.size(), nullptr);
  for (const Action& a : actions) {
    if (is_backward(a.kind) || a.kind == Kind::backward_weight) last[at(a.stage)] = &a;
  }
  return last;
}

}  // namespace

Boundary boundary_of(Policy policy) {
  return policy == Policy::gpipe || policy == Policy::one_f_one_b ? Boundary::paired : Boundary::sends_first;
}

std::vector<Program> make_programs(const StageGraph& graph, const std::vector<ComputeOrder>& orders,
                                   const PassOptions& options) {
  const Wiring wiring(graph);
  const std::vector<int> places = places_of(graph, orders);
  PipelineShape shape;
  for (const int place : places) shape.stages.push_back({std::max(place, 0), false, false, false});
  for (const Edge& e : graph.edges) shape.links.push_back({e.producer, e.consumer, false});
  const std::vector<int> chunk = chunk_indices(shape);
  std::vector<std::vector<Action>> with_transfers;
  for (std::size_t p = 0; p < orders.size(); ++p) {
    with_transfers.push_back(PlacePass(wiring, places, chunk, static_cast<int>(p), options.boundary).run(orders[p]));
  }
  std::vector<Program> programs;
  for (int rank = 0; rank < wiring.num_ranks(); ++rank) {
    const std::span<const int> stages = wiring.stages_of(rank);
    if (stages.empty()) continue;
    const int place = places[at(stages.front())];
    std::vector<bool> runs(graph.stages.size(), false);
    for (const int s : stages) {
      MMT_CHECK(places[at(s)] == place, "rank {} stands in places {} and {}", rank, place, places[at(s)]);
      runs[at(s)] = true;
    }
    Program& program = programs.emplace_back();
    program.rank = rank;
    if (place >= 0) {
      const std::vector<Action>& actions = with_transfers[at(place)];
      const std::vector<const Action*> last = last_backwards(graph, actions);
      program.actions.reserve(actions.size());
      std::vector<Action> reductions;  // of the slot before: they come behind its sends
      for (const Action& a : actions) {
        if (a.kind != Kind::send) {
          program.actions.insert(program.actions.end(), reductions.begin(), reductions.end());
          reductions.clear();
        }
        if (!runs[at(a.stage)] || (a.kind == Kind::send && !wiring.has_peer(a, rank))) continue;
        program.actions.push_back(a);
        if (!options.reduce_early || last[at(a.stage)] != &a) continue;
        for (int b = 0; b < options.end.num_buckets(a.stage); ++b) reductions.push_back({Kind::reduce, a.stage, b});
      }
      program.actions.insert(program.actions.end(), reductions.begin(), reductions.end());
    }
    push_end(wiring, options.end, rank, !options.reduce_early, program.actions);
  }
  return programs;
}

}  // namespace mmt::plan
