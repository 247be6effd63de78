// What one rank's program must keep by itself.
#include "core/at.h"
#include "parallel/plan/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>

namespace mmt::plan {
namespace {

constexpr int kAbsent = -1, kEarlier = -2;  ///< kEarlier: made by the previous step

Action compute(Kind kind, int stage, int block) { return {kind, static_cast<std::int16_t>(stage), block}; }

Action transfer(Kind kind, int stage, int block, int edge, bool transposed) {
  return {kind, static_cast<std::int16_t>(stage), block, static_cast<std::int16_t>(edge), transposed, 0};
}

class OrderCheck {
 public:
  OrderCheck(const Wiring& wiring, const Program& program, const VerifyOptions& options)
      : wiring_(wiring), graph_(wiring.graph()), program_(program), rank_(program.rank), options_(options) {
    fill_tables();
  }

  void run() {
    for (const int s : stages_) check_stage(graph_.stages[at(s)]);
    for (const int e : edges_) check_edge(graph_.edges[at(e)]);
    for (std::size_t i = 0; i < program_.actions.size(); ++i) {
      if (!expected_[i]) refuse(rank_, program_.actions[i], "is no action of the graph");
    }
    check_end();
  }

 private:
  /// Places in the program of one stage's computations (by kind and block) or of one edge's transfers (by direction,
  /// kind and consumer block).
  struct StageTable {
    std::array<std::vector<int>, 6> at_kind;
    int last_backward = kAbsent;
    Action last_backward_action;
  };
  struct EdgeTable {
    std::array<std::array<std::vector<int>, 2>, 2> at_direction;  ///< [transposed][SEND, RECV]
  };

  void fill_tables() {
    if (rank_ >= 0 && rank_ < wiring_.num_ranks()) stages_ = wiring_.stages_of(rank_);
    stage_tables_.resize(graph_.stages.size());
    edge_tables_.resize(graph_.edges.size());
    for (const int s : stages_) {
      for (auto& list : stage_tables_[at(s)].at_kind) list.assign(at(graph_.stages[at(s)].num_blocks), kAbsent);
      for (const auto edges : {wiring_.edges_into(s), wiring_.edges_out_of(s)}) {
        for (const int e : edges) edges_.push_back(e);
      }
    }
    std::ranges::sort(edges_);
    edges_.erase(std::ranges::unique(edges_).begin(), edges_.end());
    for (const int e : edges_) {
      const auto blocks = at(graph_.stages[at(graph_.edges[at(e)].consumer)].num_blocks);
      for (auto& direction : edge_tables_[at(e)].at_direction) {
        for (auto& list : direction) list.assign(blocks, kAbsent);
      }
    }
    for (const Action& a : options_.made_before) {
      if (a.kind == Kind::forward && runs(a.stage) && a.block >= 0 && a.block < graph_.stages[at(a.stage)].num_blocks)
        place(a.stage, Kind::forward, a.block) = kEarlier;
    }
    expected_.assign(program_.actions.size(), false);
    for (std::size_t i = 0; i < program_.actions.size(); ++i) enter(program_.actions[i], static_cast<int>(i));
  }

  bool runs(int stage) const { return std::ranges::binary_search(stages_, stage); }

  int& place(int stage, Kind kind, int block) {
    std::size_t index = 0;
    switch (kind) {
      case Kind::load: index = 0; break;
      case Kind::forward: index = 1; break;
      case Kind::recompute: index = 2; break;
      case Kind::backward_input: index = 3; break;
      case Kind::backward_weight: index = 4; break;
      default: index = 5; break;
    }
    return stage_tables_[at(stage)].at_kind[index][at(block)];
  }
  int& place(const Action& a) {
    auto& table = edge_tables_[at(a.edge)];
    return table.at_direction[a.transposed ? 1 : 0][a.kind == Kind::send ? 0 : 1][at(a.block)];
  }

  void enter(const Action& a, int i) {
    if (a.stage < 0 || at(a.stage) >= graph_.stages.size()) refuse(rank_, a, "there is no such stage");
    if (!runs(a.stage)) refuse(rank_, a, "the stage does not run on this rank");
    const bool transfers = a.kind == Kind::send || a.kind == Kind::recv;
    int blocks = graph_.stages[at(a.stage)].num_blocks;
    if (transfers) {
      if (a.edge < 0 || at(a.edge) >= graph_.edges.size()) refuse(rank_, a, "there is no such edge");
      const Edge& edge = graph_.edges[at(a.edge)];
      const int stage = (a.kind == Kind::send) != a.transposed ? edge.producer : edge.consumer;
      if (stage != a.stage) refuse(rank_, a, fmt::format("on this edge it belongs to stage {}", stage));
      blocks = graph_.stages[at(edge.consumer)].num_blocks;
    }
    const bool ends = a.kind == Kind::tie || a.kind == Kind::reduce || a.kind == Kind::optimize;
    if (a.block < 0 || (!ends && a.block >= blocks)) refuse(rank_, a, "is no action of the graph");
    if (ends || a.step_ahead > 0) {
      expected_[at(i)] = true;
      const std::tuple key{a.kind, a.stage, a.block, a.edge, a.transposed, a.step_ahead};
      if (!others_.try_emplace(key, i).second) refuse(rank_, a, "happens twice");
      return;
    }
    int& slot = transfers ? place(a) : place(a.stage, a.kind, a.block);
    if (slot == kEarlier) refuse(rank_, a, "was made by the previous step already");
    if (slot != kAbsent) refuse(rank_, a, "happens twice");
    slot = i;
    const bool backward = a.kind == Kind::backward || a.kind == Kind::backward_input || a.kind == Kind::backward_weight;
    if (!backward) return;
    stage_tables_[at(a.stage)].last_backward = i;
    stage_tables_[at(a.stage)].last_backward_action = a;
  }

  /// The place of what must be there; kEarlier for what the previous step made.
  int require(int stage, Kind kind, int block) {
    const int i = place(stage, kind, block);
    if (i == kAbsent) refuse(rank_, compute(kind, stage, block), "is missing");
    if (i >= 0) expected_[at(i)] = true;
    return i;
  }
  int require(const Action& a) {
    const int i = place(a);
    if (i == kAbsent) refuse(rank_, a, "is missing");
    expected_[at(i)] = true;
    return i;
  }
  /// The action that computes the input gradient of a block: B or I.
  Kind returning(int stage, int block) {
    return place(stage, Kind::backward, block) >= 0 ? Kind::backward : Kind::backward_input;
  }
  void before(int early, int late, const Action& blamed, std::string_view rule) const {
    if (early >= late) refuse(rank_, blamed, rule);
  }

  void check_stage(const StageInfo& stage) {
    for (int block = 0; block < stage.num_blocks; ++block) {
      const int f = require(stage.id, Kind::forward, block);
      if (stage.reads_loader && f >= 0) {
        before(require(stage.id, Kind::load, block), f, compute(Kind::load, stage.id, block),
               "comes after its forward");
      }
      if (!stage.needs_backward) continue;
      const Kind kind = returning(stage.id, block);
      const int back = require(stage.id, kind, block);
      for (const Kind part : {Kind::backward_input, Kind::backward_weight}) {
        if (kind == Kind::backward && place(stage.id, part, block) != kAbsent)
          refuse(rank_, compute(part, stage.id, block), "is part of the block's backward, which runs whole");
      }
      before(f, back, compute(kind, stage.id, block), "comes before its forward");
      if (kind == Kind::backward_input && stage.has_weight_grads) {
        before(back, require(stage.id, Kind::backward_weight, block), compute(Kind::backward_weight, stage.id, block),
               "comes before its backward of the input");
      }
      if (place(stage.id, Kind::recompute, block) == kAbsent) continue;
      const int again = require(stage.id, Kind::recompute, block);
      before(f, again, compute(Kind::recompute, stage.id, block), "comes before its forward");
      before(again, back, compute(Kind::recompute, stage.id, block), "comes after its backward");
    }
  }

  void check_edge(const Edge& edge) {
    const bool produces = runs(edge.producer), consumes = runs(edge.consumer);
    for (int m = 0; m < graph_.stages[at(edge.consumer)].num_blocks; ++m) {
      const std::span<const int> read = wiring_.producer_blocks(edge.id, m);
      const Action send = transfer(Kind::send, edge.producer, m, edge.id, false);
      if (produces && wiring_.has_peer(send, rank_)) {
        const int sent = require(send);
        for (const int p : read) {
          before(require(edge.producer, Kind::forward, p), sent, send, "comes before its rows are made");
        }
      }
      if (consumes) {
        const Action recv = transfer(Kind::recv, edge.consumer, m, edge.id, false);
        const int received = require(recv);
        before(received, require(edge.consumer, Kind::forward, m), recv, "comes after the forward that reads it");
        if (produces && wiring_.has_local(edge.id, m, rank_)) {
          for (const int p : read) {
            before(require(edge.producer, Kind::forward, p), received, recv, "comes before its rows are made");
          }
        }
      }
      if (edge.needs_grad && !read.empty()) check_return(edge, m, produces, consumes);
    }
  }

  void check_return(const Edge& edge, int m, bool produces, bool consumes) {
    const int made = consumes ? require(edge.consumer, returning(edge.consumer, m), m) : kEarlier;
    const Action send = transfer(Kind::send, edge.consumer, m, edge.id, true);
    if (consumes && wiring_.has_peer(send, rank_)) {
      before(made, require(send), send, "comes before its gradients are made");
    }
    if (!produces) return;
    const Action recv = transfer(Kind::recv, edge.producer, m, edge.id, true);
    const int received = require(recv);
    if (consumes && wiring_.has_local(edge.id, m, rank_)) {
      before(made, received, recv, "comes before its gradients are made");
    }
    for (const int p : wiring_.producer_blocks(edge.id, m)) {
      before(require(edge.producer, Kind::forward, p), received, recv, "comes before the forward of its block");
      before(received, require(edge.producer, returning(edge.producer, p), p), recv,
             "comes after the backward that reads it");
    }
  }

  void check_end() {
    int last = kAbsent;  // of all backwards, RED and TIE
    for (const int s : stages_) last = std::max(last, stage_tables_[at(s)].last_backward);
    std::map<int, int> last_reduction;  // by stage
    for (const auto& [key, i] : others_) {
      const Action& a = program_.actions[at(i)];
      if (a.step_ahead > 0 || a.kind != Kind::reduce) continue;
      last_reduction[a.stage] = std::max(last_reduction.try_emplace(a.stage, kAbsent).first->second, i);
      last = std::max(last, i);
      const StageTable& table = stage_tables_[at(a.stage)];
      if (table.last_backward > i)
        refuse(rank_, a, fmt::format("comes before {}, which adds to it", to_string(table.last_backward_action)));
      if (options_.end != nullptr && a.block >= options_.end->num_buckets(a.stage))
        refuse(rank_, a, fmt::format("stage {} has {} buckets", a.stage, options_.end->num_buckets(a.stage)));
    }
    std::set<int> ties;
    for (const auto& [key, i] : others_) {
      const Action& a = program_.actions[at(i)];
      if (a.step_ahead > 0 || a.kind != Kind::tie) continue;
      last = std::max(last, i);
      if (!ties.insert(a.block).second) refuse(rank_, a, "the tie happens twice on this rank");
      check_tie(a, i, last_reduction);
    }
    int updates = 0;
    for (const auto& [key, i] : others_) {
      const Action& a = program_.actions[at(i)];
      if (a.step_ahead > 0 || a.kind != Kind::optimize) continue;
      if (++updates > 1 && options_.end != nullptr) refuse(rank_, a, "the update happens twice on this rank");
      if (i < last) refuse(rank_, a, fmt::format("comes before {}", to_string(program_.actions[at(last)])));
      if (options_.end != nullptr && !options_.end->update) refuse(rank_, a, "is no action of the graph");
    }
    if (options_.end != nullptr) check_complete(*options_.end, ties, updates);
  }

  void check_tie(const Action& a, int i, const std::map<int, int>& last_reduction) const {
    std::vector<int> uses = {a.stage};
    if (options_.end != nullptr) {
      if (a.block < 0 || at(a.block) >= options_.end->ties.size()) refuse(rank_, a, "there is no such tie");
      uses = options_.end->ties[at(a.block)];
      if (std::ranges::find(uses, int{a.stage}) == uses.end()) refuse(rank_, a, "the stage has no use of it");
    }
    for (const int s : uses) {
      if (!runs(s)) continue;
      const StageTable& table = stage_tables_[at(s)];
      if (table.last_backward > i)
        refuse(rank_, a, fmt::format("comes before {}, which adds to it", to_string(table.last_backward_action)));
      const auto reduced = last_reduction.find(s);
      if (reduced != last_reduction.end() && reduced->second > i)
        refuse(rank_, a, fmt::format("comes before {}", to_string(program_.actions[at(reduced->second)])));
    }
  }

  void check_complete(const StepEnd& end, const std::set<int>& ties, int updates) const {
    const auto there = [&](const Action& a) {
      return others_.contains({a.kind, a.stage, a.block, a.edge, a.transposed, a.step_ahead});
    };
    for (const int s : stages_) {
      for (int b = 0; b < end.num_buckets(s); ++b) {
        const Action a = compute(Kind::reduce, s, b);
        if (!there(a)) refuse(rank_, a, "is missing");
      }
    }
    for (std::size_t t = 0; t < end.ties.size(); ++t) {
      const auto use = std::ranges::find_if(end.ties[t], [&](int s) { return runs(s); });
      if (use != end.ties[t].end() && !ties.contains(static_cast<int>(t)))
        refuse(rank_, compute(Kind::tie, *use, static_cast<int>(t)), "is missing");
    }
    if (end.update && updates == 0 && !stages_.empty())
      refuse(rank_, compute(Kind::optimize, stages_.back(), 0), "is missing");
  }

  const Wiring& wiring_;
  const StageGraph& graph_;
  const Program& program_;
  int rank_;
  const VerifyOptions& options_;
  std::span<const int> stages_;  ///< ascending
  std::vector<int> edges_;
  std::vector<StageTable> stage_tables_;  ///< filled for the rank's own stages and edges
  std::vector<EdgeTable> edge_tables_;
  /// Places of RED, TIE, OPT and of what runs ahead: few.
  std::map<std::tuple<Kind, std::int16_t, std::int32_t, std::int16_t, bool, std::int8_t>, int> others_;
  std::vector<bool> expected_;
};

}  // namespace

void check_order(const Wiring& wiring, const Program& program, const VerifyOptions& options) {
  OrderCheck(wiring, program, options).run();
}

}  // namespace mmt::plan
