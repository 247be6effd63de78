// Zero-bubble and list schedules: places are simulated with the given costs, and each takes the best of what is ready.
// What runs this way keeps the caps on blocks in flight and the credits of edges, so its programs end by construction.
#include "core/at.h"
#include "core/error.h"
#include "parallel/plan/chunks.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>

namespace mmt::plan {
namespace {

std::int64_t unit_cost(Kind kind) { return kind == Kind::backward ? 2 : kind == Kind::recompute ? 0 : 1; }

/// What a place prefers among its ready computations.
enum class Rule : std::uint8_t {
  backward_first,  ///< gradients, then forwards of the oldest block
  forward_first,   ///< forwards; weight gradients where memory keeps one from running; then gradients
  critical_path,   ///< what has the longest way to the end of the step
};

struct Caps {
  std::vector<int> kept, held;  ///< by place: blocks between F and I, between F and W
};

struct Result {
  std::vector<ComputeOrder> orders;
  std::int64_t makespan = 0;
};

class GreedyRun {
 public:
  GreedyRun(const PipelineShape& shape, const std::vector<Chunk>& nodes, const ScheduleOptions& options, Caps caps,
            bool split, Rule rule)
      : shape_(shape),
        nodes_(nodes),
        caps_(std::move(caps)),
        credits_(std::max(1, options.credits)),
        split_(split),
        rule_(rule) {
    const auto cost = [&](const Chunk& c, Kind kind, int block) {
      std::int64_t sum = 0;
      for (const int s : c.stages) {
        const PipelineShape::Stage& stage = shape.stages[at(s)];
        if (kind != Kind::forward && (!stage.needs_backward || (kind == Kind::backward_weight && !stage.trains)))
          continue;
        const auto one = [&](Kind k) { return options.cost ? options.cost(k, s, block) : unit_cost(k); };
        sum += one(kind);
        if (stage.restore && (kind == Kind::backward || kind == Kind::backward_input)) sum += one(Kind::recompute);
      }
      return std::max<std::int64_t>(0, sum);
    };
    const std::size_t num_nodes = nodes.size(), num_blocks = at(shape.num_blocks);
    forward_cost_.resize(num_nodes);
    back_cost_.resize(num_nodes);
    weight_cost_.resize(num_nodes);
    for (std::size_t n = 0; n < num_nodes; ++n) {
      for (int m = 0; m < shape.num_blocks; ++m) {
        forward_cost_[n].push_back(cost(nodes[n], Kind::forward, m));
        back_cost_[n].push_back(cost(nodes[n], split ? Kind::backward_input : Kind::backward, m));
        weight_cost_[n].push_back(split ? cost(nodes[n], Kind::backward_weight, m) : 0);
      }
    }
    forward_end_.assign(num_nodes, std::vector<std::int64_t>(num_blocks, kNever));
    back_end_ = forward_end_;
    next_forward_.assign(num_nodes, 0);
    next_back_ = next_weight_ = next_forward_;
    const auto num_places = at(shape.num_places());
    own_.resize(num_places);
    neighbours_.resize(num_places);
    busy_.assign(num_places, false);
    for (std::size_t n = 0; n < num_nodes; ++n) {
      const int place = nodes[n].place;
      own_[at(place)].push_back(static_cast<int>(n));
      for (const auto* list : {&nodes[n].producers, &nodes[n].consumers}) {
        for (const int other : *list) {
          auto& near = neighbours_[at(place)];
          const int q = nodes[at(other)].place;
          if (q != place && std::ranges::find(near, q) == near.end()) near.push_back(q);
        }
      }
    }
    if (rule == Rule::critical_path) find_ways();
  }

  Result run() {
    result_.orders.resize(own_.size());
    std::vector<int> wake(own_.size());
    for (std::size_t p = 0; p < own_.size(); ++p) wake[p] = static_cast<int>(p);
    while (true) {
      while (!wake.empty()) {
        std::ranges::sort(wake);
        wake.erase(std::ranges::unique(wake).begin(), wake.end());
        std::vector<int> next;
        for (const int p : wake) {
          // A start gives back a credit, for which a neighbour may wait.
          if (!busy_[at(p)] && start(p)) next.insert(next.end(), neighbours_[at(p)].begin(), neighbours_[at(p)].end());
        }
        wake = std::move(next);
      }
      if (ends_.empty()) break;
      now_ = ends_.top().first;
      while (!ends_.empty() && ends_.top().first == now_) {
        const int p = ends_.top().second;
        ends_.pop();
        busy_[at(p)] = false;
        wake.push_back(p);
        wake.insert(wake.end(), neighbours_[at(p)].begin(), neighbours_[at(p)].end());
      }
    }
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      MMT_CHECK(next_forward_[n] == shape_.num_blocks && (!nodes_[n].needs_backward || !backward_left(n)),
                "the schedule stops in block {} of stage {}", next_forward_[n], nodes_[n].stages.front());
    }
    result_.makespan = now_;
    return std::move(result_);
  }

 private:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  bool weights(std::size_t n) const { return split_ && nodes_[n].trains; }
  bool backward_left(std::size_t n) const {
    return next_back_[n] < shape_.num_blocks || (weights(n) && next_weight_[n] < shape_.num_blocks);
  }

  /// Longest ways from the start of each forward and each backward to the end of the step.
  void find_ways() {
    const auto num_blocks = at(shape_.num_blocks);
    back_way_.assign(nodes_.size(), std::vector<std::int64_t>(num_blocks, 0));
    forward_way_ = back_way_;
    for (std::size_t m = 0; m < num_blocks; ++m) {
      for (std::size_t n = 0; n < nodes_.size(); ++n) {
        if (!nodes_[n].needs_backward) continue;
        std::int64_t behind = weight_cost_[n][m];
        for (const int u : nodes_[n].grad_producers) behind = std::max(behind, back_way_[at(u)][m]);
        back_way_[n][m] = back_cost_[n][m] + behind;
      }
      for (std::size_t n = nodes_.size(); n-- > 0;) {
        std::int64_t behind = back_way_[n][m];
        for (const int c : nodes_[n].consumers) behind = std::max(behind, forward_way_[at(c)][m]);
        forward_way_[n][m] = forward_cost_[n][m] + behind;
      }
    }
  }

  /// Whether what the next forward reads is there and its consumers have room for what it makes.
  bool forward_possible(int p, std::size_t n) const {
    const int m = next_forward_[n];
    if (m >= shape_.num_blocks) return false;
    for (const int u : nodes_[n].producers) {
      if (forward_end_[at(u)][at(m)] > now_) return false;
    }
    for (const int c : nodes_[n].consumers) {
      if (nodes_[at(c)].place != p && m + 1 - next_forward_[at(c)] > credits_) return false;
    }
    return true;
  }

  /// Room for one more block at a place: between F and I, and between F and W.
  struct Room {
    bool kept = true, held = true;
  };
  Room room_for(int p, std::size_t n) const {
    if (!nodes_[n].needs_backward) return {};
    const int m = next_forward_[n];
    int begun = 0, returned = shape_.num_blocks, freed = shape_.num_blocks;
    for (const int other : own_[at(p)]) {
      const auto o = at(other);
      if (!nodes_[o].needs_backward) continue;
      begun = std::max(begun, next_forward_[o]);
      returned = std::min(returned, next_back_[o]);
      freed = std::min(freed, weights(o) ? next_weight_[o] : next_back_[o]);
    }
    if (m < begun) return {};  // in flight already
    return {m + 1 - returned <= caps_.kept[at(p)], m + 1 - freed <= caps_.held[at(p)]};
  }

  bool back_ready(int p, std::size_t n) const {
    const int m = next_back_[n];
    if (!nodes_[n].needs_backward || m >= shape_.num_blocks || forward_end_[n][at(m)] > now_) return false;
    for (const int c : nodes_[n].grad_consumers) {
      if (back_end_[at(c)][at(m)] > now_) return false;
    }
    for (const int u : nodes_[n].grad_producers) {
      if (nodes_[at(u)].place != p && m + 1 - next_back_[at(u)] > credits_) return false;
    }
    return true;
  }

  /// Larger is better.
  std::pair<std::int64_t, std::int64_t> rank_of(std::size_t n, bool back) const {
    const int m = back ? next_back_[n] : next_forward_[n];
    switch (rule_) {
      case Rule::backward_first: return {back ? 1 : 0, -m};
      case Rule::forward_first: return {back ? 0 : 1, -m};
      case Rule::critical_path: return {(back ? back_way_ : forward_way_)[n][at(m)], -m};
    }
    return {};
  }

  /// Starts the best ready computation of a place; false when there is none.
  bool start(int p) {
    std::size_t best = nodes_.size();
    bool best_back = false;
    const auto offer = [&](std::size_t n, bool back) {
      if (best == nodes_.size() || rank_of(n, back) > rank_of(best, best_back)) best = n, best_back = back;
    };
    // Later nodes first: of equals the one nearer to the sink.
    bool blocked = false, runs_forward = false;
    for (std::size_t i = own_[at(p)].size(); i-- > 0;) {
      const auto n = at(own_[at(p)][i]);
      if (back_ready(p, n)) offer(n, true);
      if (!forward_possible(p, n)) continue;
      const Room room = room_for(p, n);
      if (room.kept && room.held) {
        offer(n, false);
        runs_forward = true;
      }
      blocked |= room.kept && !room.held;
    }
    if (rule_ == Rule::forward_first && blocked && !runs_forward && next_weight(p) < nodes_.size()) {
      best = nodes_.size();
    }
    ComputeOrder& order = result_.orders[at(p)];
    if (best < nodes_.size()) {
      const auto m = at(best_back ? next_back_[best] : next_forward_[best]);
      const std::int64_t end = now_ + (best_back ? back_cost_ : forward_cost_)[best][m];
      if (best_back) {
        push_backward(shape_, nodes_[best], split_ ? Kind::backward_input : Kind::backward, next_back_[best]++, order);
        back_end_[best][m] = end;
      } else {
        push_forward(nodes_[best], next_forward_[best]++, order);
        forward_end_[best][m] = end;
      }
      return occupy(p, end);
    }
    best = next_weight(p);
    if (best == nodes_.size()) return false;
    const std::int64_t end = now_ + weight_cost_[best][at(next_weight_[best])];
    push_backward(shape_, nodes_[best], Kind::backward_weight, next_weight_[best]++, order);
    return occupy(p, end);
  }

  /// The node whose weight gradients come next: the oldest block's.
  std::size_t next_weight(int p) const {
    std::size_t best = nodes_.size();
    for (std::size_t i = own_[at(p)].size(); i-- > 0;) {
      const auto n = at(own_[at(p)][i]);
      if (!weights(n) || next_weight_[n] >= next_back_[n]) continue;
      if (best == nodes_.size() || next_weight_[n] < next_weight_[best]) best = n;
    }
    return best;
  }

  bool occupy(int p, std::int64_t end) {
    busy_[at(p)] = true;
    ends_.emplace(end, p);
    return true;
  }

  const PipelineShape& shape_;
  const std::vector<Chunk>& nodes_;
  Caps caps_;
  int credits_;
  bool split_;
  Rule rule_;
  std::vector<std::vector<std::int64_t>> forward_cost_, back_cost_, weight_cost_;  ///< by node and block
  std::vector<std::vector<std::int64_t>> forward_way_, back_way_;
  std::vector<std::vector<std::int64_t>> forward_end_, back_end_;  ///< kNever until it runs
  std::vector<int> next_forward_, next_back_, next_weight_;        ///< by node: the first block that has not run
  std::vector<std::vector<int>> own_, neighbours_;                 ///< by place: nodes; places linked with it
  std::vector<bool> busy_;
  std::priority_queue<std::pair<std::int64_t, int>, std::vector<std::pair<std::int64_t, int>>, std::greater<>> ends_;
  std::int64_t now_ = 0;
  Result result_;
};

/// The shortest of the schedules that the rules make.
std::vector<ComputeOrder> best_of(const PipelineShape& shape, const std::vector<Chunk>& nodes,
                                  const ScheduleOptions& options, const Caps& caps, bool split) {
  Result best;
  for (const Rule rule : {Rule::backward_first, Rule::forward_first, Rule::critical_path}) {
    Result result = GreedyRun(shape, nodes, options, caps, split, rule).run();
    if (best.orders.empty() || result.makespan < best.makespan) best = std::move(result);
  }
  return std::move(best.orders);
}

std::vector<int> place_distances(const PipelineShape& shape, const std::vector<Chunk>& nodes) {
  std::vector<int> by_place(at(shape.num_places()), 0);
  const std::vector<int> distance = distances_of(nodes);
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    int& d = by_place[at(nodes[n].place)];
    d = std::max(d, distance[n]);
  }
  return by_place;
}

std::vector<ComputeOrder> zero_bubble(const PipelineShape& shape, const ScheduleOptions& options) {
  const std::vector<Chunk> chunks = chunks_of(shape);
  for (const Chunk& c : chunks) {
    if (c.index > 0) {
      throw ConfigError(fmt::format(
          "policy zero-bubble: place {} is fed through another place and feeds it: one chunk a place, or policy list",
          c.place));
    }
  }
  const std::vector<int> distance = place_distances(shape, chunks);
  const int furthest = distance.empty() ? 0 : *std::ranges::max_element(distance);
  const bool h2 = options.memory == ZeroBubbleMemory::h2;
  Caps caps;
  for (const int d : distance) {
    caps.kept.push_back(h2 ? 2 * d + 1 : d + 1);
    caps.held.push_back(h2 ? 2 * furthest + 1 : furthest + 1);
  }
  return best_of(shape, chunks, options, caps, true);
}

std::vector<ComputeOrder> list_schedule(const PipelineShape& shape, const ScheduleOptions& options) {
  const std::vector<Chunk> nodes = single_stages(shape);
  Caps caps;
  caps.kept = options.in_flight;
  if (caps.kept.empty()) {
    for (const int d : place_distances(shape, nodes)) caps.kept.push_back(d + 1);
  }
  MMT_CHECK(caps.kept.size() == at(shape.num_places()), "{} caps for {} places", caps.kept.size(), shape.num_places());
  for (int& cap : caps.kept) cap = std::max(1, cap);
  caps.held = caps.kept;
  return best_of(shape, nodes, options, caps, options.split_backward);
}

}  // namespace

std::vector<ComputeOrder> generate_greedy(const PipelineShape& shape, const ScheduleOptions& options) {
  return options.policy == Policy::zero_bubble ? zero_bubble(shape, options) : list_schedule(shape, options);
}

}  // namespace mmt::plan
