#include "parallel/plan/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <tuple>
#include <unordered_map>

namespace mmt::plan {
namespace {

std::uint64_t key_of(const Action& a) {
  std::uint64_t key = static_cast<std::uint64_t>(a.kind);
  key = key << 12 | (static_cast<std::uint64_t>(a.stage) & 0xfff);
  key = key << 28 | (static_cast<std::uint64_t>(a.block) & 0xfffffff);
  key = key << 12 | (static_cast<std::uint64_t>(a.edge) & 0xfff);
  key = key << 1 | (a.transposed ? 1 : 0);
  return key << 4 | (static_cast<std::uint64_t>(a.step_ahead) & 0xf);
}

[[noreturn]] void fail(int rank, const Action& action, const std::string& rule) {
  throw std::logic_error(fmt::format("program of rank {}: {}: {}", rank, to_string(action), rule));
}

Action compute(Kind kind, int stage, int block) {
  return {.kind = kind, .stage = static_cast<std::int16_t>(stage), .block = block};
}

Action transfer(Kind kind, int stage, int block, int edge, bool transposed) {
  return {.kind = kind,
          .stage = static_cast<std::int16_t>(stage),
          .block = block,
          .edge = static_cast<std::int16_t>(edge),
          .transposed = transposed};
}

bool runs(const StageInfo& stage, int rank) { return std::ranges::find(stage.ranks, rank) != stage.ranks.end(); }

bool any_other(const std::vector<int>& ranks, int rank) {
  return std::ranges::any_of(ranks, [&](int r) { return r != rank; });
}

/// The rules that one rank's program must keep by itself.
class RankCheck {
 public:
  RankCheck(const StageGraph& graph, const Program& program, std::span<const Action> made_before)
      : graph_(graph), program_(program), rank_(program.rank) {
    for (std::size_t i = 0; i < program.actions.size(); ++i) {
      const Action& a = program.actions[i];
      if (a.stage < 0 || static_cast<std::size_t>(a.stage) >= graph.stages.size())
        fail(rank_, a, "there is no such stage");
      if (!runs(graph.stages[static_cast<std::size_t>(a.stage)], rank_))
        fail(rank_, a, "the stage does not run on this rank");
      if (!position_.emplace(key_of(a), i).second) fail(rank_, a, "happens twice");
    }
    for (const Action& a : made_before) made_.insert(key_of(a));
  }

  void run() {
    for (const StageInfo& stage : graph_.stages) {
      if (runs(stage, rank_)) check_stage(stage);
    }
    for (const Edge& edge : graph_.edges) check_edge(edge);
    for (const Action& a : program_.actions) {
      const bool free = a.kind == Kind::tie || a.kind == Kind::reduce || a.kind == Kind::optimize || a.step_ahead > 0;
      if (!free && !expected_.contains(key_of(a))) fail(rank_, a, "is no action of the graph");
    }
  }

 private:
  std::optional<std::size_t> find(const Action& a) const {
    const auto found = position_.find(key_of(a));
    return found == position_.end() ? std::nullopt : std::optional(found->second);
  }
  std::size_t require(const Action& a) {
    expected_.insert(key_of(a));
    const auto at = find(a);
    if (!at) fail(rank_, a, "is missing");
    return *at;
  }
  /// Place of a forward; -1 when an earlier step made it.
  std::ptrdiff_t forward_at(int stage, int block) {
    const Action f = compute(Kind::forward, stage, block);
    if (!made_.contains(key_of(f))) return static_cast<std::ptrdiff_t>(require(f));
    if (find(f)) fail(rank_, f, "was made by the previous step already");
    return -1;
  }
  /// The action that computes the input gradient of a block: B or I.
  Action returning(int stage, int block) const {
    const Action b = compute(Kind::backward, stage, block);
    return find(b) ? b : compute(Kind::backward_input, stage, block);
  }
  void before(std::ptrdiff_t a, std::size_t b, const Action& late, const std::string& rule) const {
    if (a >= static_cast<std::ptrdiff_t>(b)) fail(rank_, late, rule);
  }

  void check_stage(const StageInfo& stage) {
    for (int block = 0; block < stage.num_blocks; ++block) {
      const std::ptrdiff_t f = forward_at(stage.id, block);
      if (stage.reads_loader && f >= 0) {
        const Action load = compute(Kind::load, stage.id, block);
        before(static_cast<std::ptrdiff_t>(require(load)), static_cast<std::size_t>(f), load,
               "comes after its forward");
      }
      const Action r = compute(Kind::recompute, stage.id, block);
      if (!stage.needs_backward) continue;
      const Action back = returning(stage.id, block);
      const std::size_t at = require(back);
      before(f, at, back, "comes before its forward");
      if (back.kind == Kind::backward_input && stage.has_weight_grads) {
        const Action w = compute(Kind::backward_weight, stage.id, block);
        before(static_cast<std::ptrdiff_t>(at), require(w), w, "comes before its backward of the input");
      }
      if (const auto again = find(r)) {
        expected_.insert(key_of(r));
        before(f, *again, r, "comes before its forward");
        before(static_cast<std::ptrdiff_t>(*again), at, r, "comes after its backward");
      }
    }
  }

  void check_edge(const Edge& edge) {
    const StageInfo& producer = graph_.stages[static_cast<std::size_t>(edge.producer)];
    const StageInfo& consumer = graph_.stages[static_cast<std::size_t>(edge.consumer)];
    const auto& table = graph_.producers_of[static_cast<std::size_t>(edge.id)];
    const auto& routes = graph_.routes[static_cast<std::size_t>(edge.id)];
    for (int m = 0; m < consumer.num_blocks; ++m) {
      const Route& route = routes[static_cast<std::size_t>(m)];
      const auto& read = table[static_cast<std::size_t>(m)];
      const bool produces = runs(producer, rank_), consumes = runs(consumer, rank_);
      if (produces && any_other(destinations_of(route, rank_), rank_)) {
        const Action send = transfer(Kind::send, edge.producer, m, edge.id, false);
        const std::size_t at = require(send);
        for (const int p : read) before(forward_at(edge.producer, p), at, send, "comes before its rows are made");
      }
      if (consumes) {
        const Action recv = transfer(Kind::recv, edge.consumer, m, edge.id, false);
        const std::size_t at = require(recv);
        const std::ptrdiff_t f = forward_at(edge.consumer, m);
        before(static_cast<std::ptrdiff_t>(at), static_cast<std::size_t>(f), recv,
               "comes after the forward that reads it");
        if (produces && std::ranges::count(sources_of(route, rank_), rank_) > 0) {
          for (const int p : read) before(forward_at(edge.producer, p), at, recv, "comes before its rows are made");
        }
      }
      if (edge.needs_grad) check_return(edge, m, route, produces, consumes);
    }
  }

  void check_return(const Edge& edge, int m, const Route& route, bool produces, bool consumes) {
    std::ptrdiff_t made = -1;
    if (consumes) made = static_cast<std::ptrdiff_t>(require(returning(edge.consumer, m)));
    if (consumes && any_other(sources_of(route, rank_), rank_)) {
      const Action send = transfer(Kind::send, edge.consumer, m, edge.id, true);
      before(made, require(send), send, "comes before its gradients are made");
    }
    if (!produces) return;
    const Action recv = transfer(Kind::recv, edge.producer, m, edge.id, true);
    const std::size_t at = require(recv);
    if (consumes && std::ranges::count(destinations_of(route, rank_), rank_) > 0) {
      before(made, at, recv, "comes before its gradients are made");
    }
    for (const int p : graph_.producers_of[static_cast<std::size_t>(edge.id)][static_cast<std::size_t>(m)]) {
      before(static_cast<std::ptrdiff_t>(at), require(returning(edge.producer, p)), recv,
             "comes after the backward that reads it");
    }
  }

  const StageGraph& graph_;
  const Program& program_;
  int rank_;
  std::unordered_map<std::uint64_t, std::size_t> position_;
  std::set<std::uint64_t> made_, expected_;
};

/// Ranks that `rank` exchanges a message with in a transfer, itself excluded.
std::vector<int> peers(const StageGraph& graph, const Action& a, int rank) {
  const Route& route = graph.routes[static_cast<std::size_t>(a.edge)][static_cast<std::size_t>(a.block)];
  const bool towards = (a.kind == Kind::send) != a.transposed;  // whom the rows of the forward route go to
  std::vector<int> ranks = towards ? destinations_of(route, rank) : sources_of(route, rank);
  std::erase(ranks, rank);
  return ranks;
}

/// Runs all programs at once with `credits` buffers a channel: ends, or names what every rank waits for.
void replay(const StageGraph& graph, std::span<const Program> programs) {
  using Channel = std::tuple<int, bool, int, int>;  // edge, transposed, source, destination
  std::map<Channel, std::deque<Action>> in_flight;
  std::vector<std::size_t> at(programs.size(), 0);
  const auto can_run = [&](const Action& a, int rank) {
    if (a.kind == Kind::send) {
      return std::ranges::all_of(peers(graph, a, rank), [&](int to) {
        return in_flight[{a.edge, a.transposed, rank, to}].size() < static_cast<std::size_t>(graph.credits);
      });
    }
    if (a.kind != Kind::recv) return true;
    for (const int from : peers(graph, a, rank)) {
      const auto& queue = in_flight[{a.edge, a.transposed, from, rank}];
      if (queue.empty()) return false;
      if (queue.front().block != a.block || queue.front().step_ahead != a.step_ahead) {
        fail(rank, a, fmt::format("rank {} sent {} first on this channel", from, to_string(queue.front())));
      }
    }
    return true;
  };
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::size_t p = 0; p < programs.size(); ++p) {
      const int rank = programs[p].rank;
      while (at[p] < programs[p].actions.size() && can_run(programs[p].actions[at[p]], rank)) {
        const Action& a = programs[p].actions[at[p]];
        if (a.kind == Kind::send) {
          for (const int to : peers(graph, a, rank)) in_flight[{a.edge, a.transposed, rank, to}].push_back(a);
        } else if (a.kind == Kind::recv) {
          for (const int from : peers(graph, a, rank)) in_flight[{a.edge, a.transposed, from, rank}].pop_front();
        }
        ++at[p];
        moved = true;
      }
    }
  }
  std::string stuck;
  for (std::size_t p = 0; p < programs.size(); ++p) {
    if (at[p] == programs[p].actions.size()) continue;
    stuck += fmt::format(" rank {} waits in {};", programs[p].rank, to_string(programs[p].actions[at[p]]));
  }
  if (!stuck.empty()) throw std::logic_error("the programs never end:" + stuck);
  for (const auto& [channel, queue] : in_flight) {
    if (!queue.empty())
      fail(std::get<2>(channel), queue.front(), fmt::format("rank {} never receives it", std::get<3>(channel)));
  }
}

void check_same_sequence(const StageGraph& graph, std::span<const Program> programs) {
  for (const StageInfo& stage : graph.stages) {
    const auto sequence = [&](int rank) {
      std::vector<Action> own;
      for (const Program& p : programs) {
        if (p.rank != rank) continue;
        for (const Action& a : p.actions) {
          // Ranks of a stage exchange with different peers, so a send may be absent on some of them.
          if (a.stage == stage.id && a.kind != Kind::send) own.push_back(a);
        }
      }
      return own;
    };
    for (std::size_t i = 1; i < stage.ranks.size(); ++i) {
      const auto first = sequence(stage.ranks[0]), other = sequence(stage.ranks[i]);
      const auto [a, b] = std::ranges::mismatch(first, other);
      if (a == first.end() && b == other.end()) continue;
      fail(stage.ranks[i], b == other.end() ? *a : *b,
           fmt::format("rank {} of the same stage runs {} there", stage.ranks[0],
                       a == first.end() ? "nothing" : to_string(*a)));
    }
  }
}

}  // namespace

void verify(const StageGraph& graph, std::span<const Program> programs, std::span<const Action> made_before) {
  for (const Program& program : programs) RankCheck(graph, program, made_before).run();
  check_same_sequence(graph, programs);
  replay(graph, programs);
}

BlockReaders readers_of(const StageGraph& graph, int stage, int block, int rank) {
  BlockReaders r;
  const auto count = [&](const std::vector<int>& ranks) {
    const bool self = std::ranges::find(ranks, rank) != ranks.end();
    return (self ? 1 : 0) + (ranks.size() > (self ? 1U : 0U) ? 1 : 0);
  };
  for (const Edge& edge : graph.edges) {
    const auto& routes = graph.routes[static_cast<std::size_t>(edge.id)];
    if (edge.producer == stage) {
      for (const int m : graph.consumers_of(edge.id, block)) {
        r.out += count(destinations_of(routes[static_cast<std::size_t>(m)], rank));
        r.returns += edge.needs_grad ? 1 : 0;
      }
    }
    if (edge.consumer == stage && edge.needs_grad)
      r.grads += count(sources_of(routes[static_cast<std::size_t>(block)], rank));
  }
  return r;
}

namespace {

/// Replays the lives of one stage's blocks, with the rules by which the executor takes and gives back their memory.
class LiveReplay {
 public:
  LiveReplay(const StageGraph& graph, const Program& program, int stage)
      : graph_(graph), program_(program), stage_(stage) {
    // What an earlier step made is there from the start.
    for (int b = 0; b < info().num_blocks; ++b) {
      if (std::ranges::find(program.actions, compute(Kind::forward, stage, b)) == program.actions.end()) {
        open(0, b).computed = true;
      }
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

 private:
  struct Block {
    BlockReaders readers;
    bool computed = false;
  };
  const StageInfo& info() const { return graph_.stages[static_cast<std::size_t>(stage_)]; }

  Block& open(int ahead, int block) {
    const auto [at, fresh] = open_.try_emplace({ahead, block});
    if (fresh) at->second.readers = readers_of(graph_, stage_, block, program_.rank);
    return at->second;
  }
  void close_if_done(int ahead, int block) {
    const auto at = open_.find({ahead, block});
    if (at == open_.end() || !at->second.computed || at->second.readers.out > 0 || at->second.readers.grads > 0) return;
    open_.erase(at);
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
        restored_.insert(a.block);
        return raise();
      case Kind::backward_input:
        now_.stash += info().has_weight_grads ? 1 : 0;
        raise();
        --now_.kept;
        drop_restored(a.block);
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
        drop_restored(a.block);
        return done(a);
      default: return;
    }
  }
  void done(const Action& a) {
    open(a.step_ahead, a.block).computed = true;
    close_if_done(a.step_ahead, a.block);
  }
  void drop_restored(int block) { now_.restored -= static_cast<int>(restored_.erase(block)); }

  void transfer_of(const Action& a) {
    const Edge& edge = graph_.edges[static_cast<std::size_t>(a.edge)];
    const auto& table = graph_.producers_of[static_cast<std::size_t>(a.edge)][static_cast<std::size_t>(a.block)];
    const Route& route = graph_.routes[static_cast<std::size_t>(a.edge)][static_cast<std::size_t>(a.block)];
    const bool local = std::ranges::count(sources_of(route, program_.rank), program_.rank) > 0;
    if (!a.transposed) {
      if (edge.consumer == stage_ && a.kind == Kind::recv) {
        open(0, a.block);
        raise();
      }
      if (edge.producer == stage_ && (a.kind == Kind::send || local)) {
        for (const int p : table) {
          --open(0, p).readers.out;
          close_if_done(0, p);
        }
      }
      return;
    }
    if (edge.consumer == stage_ && (a.kind == Kind::send || local)) {
      --open(0, a.block).readers.grads;
      close_if_done(0, a.block);
    }
  }

  void raise() {
    most_.kept = std::max(most_.kept, now_.kept);
    most_.held = std::max(most_.held, now_.held);
    most_.stash = std::max(most_.stash, now_.stash);
    most_.restored = std::max(most_.restored, now_.restored);
    most_.ports = std::max(most_.ports, static_cast<int>(open_.size()));
  }

  const StageGraph& graph_;
  const Program& program_;
  int stage_;
  std::map<std::pair<int, int>, Block> open_;
  std::set<int> restored_;
  LiveBlocks now_, most_;
};

}  // namespace

LiveBlocks live_blocks(const StageGraph& graph, const Program& program, int stage) {
  return LiveReplay(graph, program, stage).run();
}

}  // namespace mmt::plan
