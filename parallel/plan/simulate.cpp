#include "parallel/plan/simulate.h"

#include "core/error.h"

#include <algorithm>
#include <array>
#include <unordered_set>
#include <utility>

namespace mmt::plan {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

constexpr bool is_transfer(Kind kind) { return kind == Kind::send || kind == Kind::recv; }

/// Rows between two ranks in one route.
struct Flow {
  int src = 0;
  int dst = 0;
  std::int64_t rows = 0;
};

/// By edge and consumer block: who sends how many rows to whom, ordered by (src, dst).
using FlowTable = std::vector<std::vector<std::vector<Flow>>>;

FlowTable flows_of(const StageGraph& graph) {
  FlowTable table(graph.routes.size());
  for (std::size_t e = 0; e < graph.routes.size(); ++e) {
    table[e].resize(graph.routes[e].size());
    for (std::size_t m = 0; m < graph.routes[e].size(); ++m) {
      auto& flows = table[e][m];
      for (const RouteSegment& s : graph.routes[e][m].segments) flows.push_back({s.src_rank, s.dst_rank, s.count});
      std::ranges::sort(flows, {}, [](const Flow& f) { return std::pair(f.src, f.dst); });
      std::size_t kept = 0;
      for (std::size_t i = 0; i < flows.size(); ++i) {
        if (kept > 0 && flows[kept - 1].src == flows[i].src && flows[kept - 1].dst == flows[i].dst) {
          flows[kept - 1].rows += flows[i].rows;
        } else {
          flows[kept++] = flows[i];
        }
      }
      flows.resize(kept);
    }
  }
  return table;
}

/// One FIFO: an edge, a direction, two ranks.
struct Channel {
  int src = 0, dst = 0;
  Link link;
  std::int64_t row_bytes = 0;
  std::int32_t first_message = 0;  ///< of its messages in the flat list
  std::int32_t sent = 0, received = 0;
  std::int32_t sender_waits = -1, receiver_waits = -1;  ///< programs
  Ns line_free = 0;                                     ///< overlapped: the end of the previous message's bytes
  std::int32_t line_origin = -1;                        ///< the SEND that the line's chain of messages began with
};

struct Message {
  Ns arrival = 0;
  std::int32_t block = 0;
  std::int32_t origin = -1;  ///< the SEND whose end, plus time under way, is the arrival
  Ns freed = 0;              ///< when its RECV ended
  std::int32_t recv = -1;
};

/// A transfer's part on one channel.
struct Leg {
  std::int32_t channel = 0;
  std::int64_t rows = 0;
};

class Simulation {
 public:
  Simulation(const StageGraph& graph, std::span<const Program> programs, const SimulateOptions& options)
      : graph_(graph), programs_(programs), options_(options) {
    std::int32_t actions = 0, max_rank = -1;
    for (const Program& p : programs) {
      base_.push_back(actions);
      actions += static_cast<std::int32_t>(p.actions.size());
      max_rank = std::max(max_rank, p.rank);
    }
    base_.push_back(actions);
    start_.resize(at(actions));
    end_.resize(at(actions));
    pred_.assign(at(actions), -1);
    own_time_.resize(at(actions));
    legs_at_.reserve(at(actions) + 1);
    position_.assign(programs.size(), 0);
    list_legs();
    set_groups(max_rank);
  }

  template <class TimeOf> Timeline run(const TimeOf& time_of) {
    for (std::size_t p = 0; p < programs_.size(); ++p) {
      for (std::size_t i = 0; i < programs_[p].actions.size(); ++i) {
        const Ns time = time_of(p, i);
        MMT_CHECK(time >= 0 || (time == kModelled && is_transfer(programs_[p].actions[i].kind)),
                  "rank {}: {} takes {} ns", programs_[p].rank, to_string(programs_[p].actions[i]), time);
        own_time_[at(base_[p]) + i] = time;
      }
    }
    for (std::size_t p = programs_.size(); p-- > 0;) ready_.push_back(static_cast<std::int32_t>(p));
    while (!ready_.empty()) {
      const std::int32_t p = ready_.back();
      ready_.pop_back();
      advance(p);
    }
    require_end();
    return timeline();
  }

 private:
  const Action& action(std::int32_t p) const { return programs_[at(p)].actions[at(position_[at(p)])]; }

  Link link_between(int src, int dst) const {
    const auto node = [&](int rank) {
      return at(rank) < options_.transfers.node_of.size() ? options_.transfers.node_of[at(rank)] : 0;
    };
    return node(src) == node(dst) ? options_.transfers.intra : options_.transfers.inter;
  }
  static std::int64_t entry(const std::vector<std::int64_t>& values, int i) {
    return at(i) < values.size() ? values[at(i)] : 0;
  }
  std::int64_t row_bytes(int edge, bool transposed) const {
    const TransferCosts& t = options_.transfers;
    return entry(transposed && !t.grad_bytes.empty() ? t.grad_bytes : t.row_bytes, edge);
  }

  /// Channels, and for each action which channels it uses with how many rows.
  void list_legs() {
    const FlowTable flows = flows_of(graph_);
    // Channels by (edge, direction): short lists, as an edge joins the ranks of two stages.
    std::vector<std::vector<std::int32_t>> by_edge(graph_.edges.size() * 2);
    for (const Program& p : programs_) {
      for (const Action& a : p.actions) {
        legs_at_.push_back(static_cast<std::int32_t>(legs_.size()));
        local_rows_.push_back(0);
        if (!is_transfer(a.kind)) continue;
        MMT_CHECK(a.edge >= 0 && at(a.edge) < flows.size() && a.block >= 0 && at(a.block) < flows[at(a.edge)].size(),
                  "rank {}: {} is over no edge of the graph", p.rank, to_string(a));
        const bool sends = a.kind == Kind::send;
        auto& channels = by_edge[at(a.edge) * 2 + (a.transposed ? 1 : 0)];
        for (const Flow& f : flows[at(a.edge)][at(a.block)]) {
          const int src = a.transposed ? f.dst : f.src, dst = a.transposed ? f.src : f.dst;
          if ((sends ? src : dst) != p.rank) continue;
          if (src == dst) {
            if (!sends) local_rows_.back() += f.rows;
            continue;
          }
          auto c = std::ranges::find_if(
              channels, [&](std::int32_t i) { return channels_[at(i)].src == src && channels_[at(i)].dst == dst; });
          if (c == channels.end()) {
            channels.push_back(static_cast<std::int32_t>(channels_.size()));
            c = channels.end() - 1;
            channels_.push_back(
                {.src = src, .dst = dst, .link = link_between(src, dst), .row_bytes = row_bytes(a.edge, a.transposed)});
          }
          legs_.push_back({*c, f.rows});
          if (sends) ++channels_[at(*c)].first_message;  // counts for now
        }
      }
    }
    legs_at_.push_back(static_cast<std::int32_t>(legs_.size()));
    std::int32_t first = 0;
    for (Channel& c : channels_) first += std::exchange(c.first_message, first);
    messages_.resize(at(first));
  }
  std::span<const Leg> legs(std::int32_t a) const {
    return {legs_.data() + legs_at_[at(a)], legs_.data() + legs_at_[at(a) + 1]};
  }

  void set_groups(int max_rank) {
    group_of_.assign(at(max_rank + 1) * graph_.stages.size() * 2, -1);
    for (const SyncGroup& group : options_.groups) {
      if (group.ranks.size() < 2) continue;
      MMT_CHECK(group.stage >= 0 && at(group.stage) < graph_.stages.size(), "no stage {} for a group", group.stage);
      groups_.push_back({static_cast<int>(group.ranks.size()), {}});
      for (const int rank : group.ranks) {
        MMT_CHECK(rank >= 0 && rank <= max_rank, "a group of stage {} has rank {}, which has no program", group.stage,
                  rank);
        for (const bool reduce : {false, true}) {
          if (reduce ? group.reduce : group.compute) group_at(rank, group.stage, reduce) = last_group();
        }
      }
    }
  }
  std::int32_t last_group() const { return static_cast<std::int32_t>(groups_.size()) - 1; }
  std::int32_t& group_at(int rank, int stage, bool reduce) {
    return group_of_[(at(rank) * graph_.stages.size() + at(stage)) * 2 + (reduce ? 1 : 0)];
  }
  std::int32_t group_for(int rank, const Action& a) {
    switch (a.kind) {
      case Kind::send:
      case Kind::recv:
      case Kind::load: return -1;
      case Kind::reduce:
      case Kind::tie:
      case Kind::optimize: return group_at(rank, a.stage, true);
      default: return group_at(rank, a.stage, false);
    }
  }

  Ns free_at(std::int32_t p) const { return position_[at(p)] == 0 ? 0 : end_[at(current(p)) - 1]; }
  std::int32_t current(std::int32_t p) const { return base_[at(p)] + position_[at(p)]; }
  /// The action before it on its rank, or -1.
  std::int32_t before(std::int32_t p) const { return position_[at(p)] == 0 ? -1 : current(p) - 1; }

  void finish(std::int32_t p, Ns start, Ns end, std::int32_t pred) {
    const std::size_t a = at(current(p));
    start_[a] = start;
    end_[a] = end;
    pred_[a] = pred;
    ++position_[at(p)];
  }
  void wake(std::int32_t& waiting) {
    if (waiting >= 0) ready_.push_back(waiting);
    waiting = -1;
  }

  /// Runs a program until it ends or waits.
  void advance(std::int32_t p) {
    while (at(position_[at(p)]) < programs_[at(p)].actions.size()) {
      const Action& a = action(p);
      if (a.kind == Kind::send) {
        if (!send(p, a)) return;
      } else if (a.kind == Kind::recv) {
        if (!receive(p, a)) return;
      } else if (const std::int32_t g = group_for(programs_[at(p)].rank, a); g >= 0) {
        if (!meet(p, g)) return;
      } else {
        const Ns start = free_at(p);
        finish(p, start, start + own_time_[at(current(p))], before(p));
      }
    }
  }

  bool send(std::int32_t p, const Action& a) {
    const std::int32_t self = current(p);
    Ns start = free_at(p);
    std::int32_t pred = before(p);
    for (const Leg& leg : legs(self)) {
      Channel& c = channels_[at(leg.channel)];
      if (c.sent - c.received >= graph_.credits) {
        c.sender_waits = p;
        return false;
      }
      if (c.sent < graph_.credits) continue;
      const Message& freed = messages_[at(c.first_message + c.sent - graph_.credits)];
      if (freed.freed > start) start = freed.freed, pred = freed.recv;
    }
    Ns end = start;
    const bool recorded = own_time_[at(self)] != kModelled;
    if (recorded) end += own_time_[at(self)];
    for (const Leg& leg : legs(self)) {
      Channel& c = channels_[at(leg.channel)];
      Message& m = messages_[at(c.first_message + c.sent++)];
      m.block = a.block;
      const std::int64_t bytes = leg.rows * c.row_bytes;
      if (c.link.overlapped) {
        if (end >= c.line_free) c.line_origin = self;
        c.line_free = std::max(end, c.line_free) + c.link.time(bytes) - c.link.latency;
        m.origin = c.line_origin;
        m.arrival = c.line_free + c.link.latency;
      } else {
        if (!recorded) end += c.link.time(bytes);
        m.origin = self;
        m.arrival = end;
      }
    }
    finish(p, start, end, pred);
    for (const Leg& leg : legs(self)) wake(channels_[at(leg.channel)].receiver_waits);
    return true;
  }

  bool receive(std::int32_t p, const Action& a) {
    const std::int32_t self = current(p);
    Ns start = free_at(p);
    std::int32_t pred = before(p);
    Ns copy = local_rows_[at(self)] > 0
                  ? options_.transfers.local.time(local_rows_[at(self)] * row_bytes(a.edge, a.transposed))
                  : 0;
    for (const Leg& leg : legs(self)) {
      Channel& c = channels_[at(leg.channel)];
      if (c.sent == c.received) {
        c.receiver_waits = p;
        return false;
      }
      const Message& m = messages_[at(c.first_message + c.received)];
      MMT_CHECK(m.block == a.block, "rank {}: {}: rank {} sent block {} first on this channel", programs_[at(p)].rank,
                to_string(a), c.src, m.block);
      if (m.arrival > start) start = m.arrival, pred = m.origin;
      if (!c.link.overlapped) copy += c.link.time(leg.rows * c.row_bytes);
    }
    if (own_time_[at(self)] != kModelled) copy = own_time_[at(self)];
    finish(p, start, start + copy, pred);
    for (const Leg& leg : legs(self)) {
      Channel& c = channels_[at(leg.channel)];
      Message& m = messages_[at(c.first_message + c.received++)];
      m.freed = start + copy;
      m.recv = self;
      wake(c.sender_waits);
    }
    return true;
  }

  struct Group {
    int size = 0;
    std::vector<std::int32_t> present;  ///< programs
  };

  /// True when `p` was the last one: the action of all members is done then.
  bool meet(std::int32_t p, std::int32_t g) {
    auto& present = groups_[at(g)].present;
    present.push_back(p);
    if (static_cast<int>(present.size()) < groups_[at(g)].size) return false;
    Ns start = -1, time = 0;
    std::int32_t pred = -1;
    for (const std::int32_t q : present) {
      MMT_CHECK(action(q) == action(p), "rank {} runs {} where rank {} of its group runs {}", programs_[at(q)].rank,
                to_string(action(q)), programs_[at(p)].rank, to_string(action(p)));
      if (free_at(q) > start) start = free_at(q), pred = before(q);
      time = std::max(time, own_time_[at(current(q))]);
    }
    for (const std::int32_t q : present) {
      finish(q, start, start + time, pred);
      if (q != p) ready_.push_back(q);
    }
    present.clear();
    return true;
  }

  void require_end() const {
    std::string stuck;
    for (std::size_t p = 0; p < programs_.size(); ++p) {
      if (at(position_[p]) == programs_[p].actions.size()) continue;
      stuck +=
          fmt::format(" rank {} waits in {};", programs_[p].rank, to_string(programs_[p].actions[at(position_[p])]));
    }
    MMT_CHECK(stuck.empty(), "the programs never end:{}", stuck);
  }

  Timeline timeline() const {
    Timeline t;
    for (std::size_t p = 0; p < programs_.size(); ++p) {
      RankTimeline& r = t.ranks.emplace_back();
      r.rank = programs_[p].rank;
      r.rows.reserve(programs_[p].actions.size());
      for (std::size_t i = 0; i < programs_[p].actions.size(); ++i) {
        const std::size_t a = at(base_[p]) + i;
        r.rows.push_back({programs_[p].actions[i], start_[a], end_[a]});
      }
      if (!options_.block_bytes.empty()) add_memory(programs_[p], r);
    }
    summarise(t);
    t.critical = critical_path(t.makespan);
    return t;
  }

  std::vector<CriticalStep> critical_path(Ns makespan) const {
    std::vector<CriticalStep> path;
    std::int32_t a = -1;
    for (std::size_t i = 0; i < end_.size() && a < 0; ++i) {
      if (end_[i] == makespan) a = static_cast<std::int32_t>(i);
    }
    while (a >= 0) {
      const auto p = std::ranges::upper_bound(base_, a) - base_.begin() - 1;
      const std::int32_t pred = pred_[at(a)];
      path.push_back({programs_[at(p)].rank, a - base_[at(p)], start_[at(a)] - (pred < 0 ? 0 : end_[at(pred)])});
      a = pred;
    }
    std::ranges::reverse(path);
    return path;
  }

  void add_memory(const Program& program, RankTimeline& r) const {
    const std::int64_t fixed = entry(options_.fixed_bytes, program.rank);
    std::int64_t work = 0;
    for (const StageInfo& stage : graph_.stages) {
      if (std::ranges::find(stage.ranks, program.rank) == stage.ranks.end()) continue;
      MMT_CHECK(at(stage.id) < options_.block_bytes.size(), "no bytes are given for stage {}", stage.id);
      work = std::max(work, options_.block_bytes[at(stage.id)].work);
    }
    std::int64_t now = fixed + work;
    r.arenas = work;
    r.peak = now;
    r.memory.push_back({0, now});
    bool up = true;  // what happens at once, in one direction, is one point
    std::vector<std::array<std::pair<int, int>, kNumLiveParts>> live(graph_.stages.size());  // blocks now, at most
    for (const LiveEvent& e : live_events(graph_, program)) {
      const std::int64_t bytes = options_.block_bytes[at(e.stage)].of(e.part);
      auto& [count, most] = live[at(e.stage)][static_cast<std::size_t>(e.part)];
      count += e.delta;
      if (count > most) {
        most = count;
        r.arenas += bytes;
      }
      if (bytes == 0) continue;
      now += e.delta * bytes;
      r.peak = std::max(r.peak, now);
      const Ns when = e.action < 0 ? 0 : e.at_end ? r.rows[at(e.action)].end : r.rows[at(e.action)].start;
      if (r.memory.back().at == when && (e.delta > 0) == up) {
        r.memory.back().bytes = now;
      } else {
        r.memory.push_back({when, now});
      }
      up = e.delta > 0;
    }
  }

  const StageGraph& graph_;
  std::span<const Program> programs_;
  const SimulateOptions& options_;
  std::vector<std::int32_t> base_;  ///< of each program's actions in the flat lists
  std::vector<Ns> start_, end_, own_time_;
  std::vector<std::int32_t> pred_;  ///< whose end (plus time under way) is the start
  std::vector<std::int32_t> legs_at_;
  std::vector<Leg> legs_;
  std::vector<std::int64_t> local_rows_;
  std::vector<Channel> channels_;
  std::vector<Message> messages_;
  std::vector<std::int32_t> position_;  ///< next action of each program
  std::vector<std::int32_t> ready_;
  std::vector<std::int32_t> group_of_;
  std::vector<Group> groups_;
};

}  // namespace

Timeline simulate(const StageGraph& graph, std::span<const Program> programs, const ActionCost& cost,
                  const SimulateOptions& options) {
  return Simulation(graph, programs, options).run([&](std::size_t p, std::size_t i) {
    const Action& a = programs[p].actions[i];
    return is_transfer(a.kind) ? kModelled : cost(programs[p].rank, a);
  });
}

Timeline replay(const StageGraph& graph, std::span<const Program> programs, std::span<const std::vector<Ns>> times,
                const SimulateOptions& options) {
  MMT_CHECK(times.size() == programs.size(), "times of {} programs for {}", times.size(), programs.size());
  for (std::size_t p = 0; p < programs.size(); ++p) {
    MMT_CHECK(times[p].size() == programs[p].actions.size(), "rank {}: {} times for {} actions", programs[p].rank,
              times[p].size(), programs[p].actions.size());
  }
  return Simulation(graph, programs, options).run([&](std::size_t p, std::size_t i) { return times[p][i]; });
}

ActionCost cost_of_stages(std::span<const Program> programs, std::vector<StageTimes> stages) {
  const auto key = [](const Action& a) {
    return static_cast<std::uint64_t>(a.stage) << 40 | static_cast<std::uint64_t>(a.step_ahead) << 32 |
           static_cast<std::uint64_t>(a.block);
  };
  std::unordered_set<std::uint64_t> restored;  // the same on all ranks of a stage
  for (const Program& p : programs) {
    for (const Action& a : p.actions) {
      if (a.kind == Kind::recompute) restored.insert(key(a));
    }
  }
  return [stages = std::move(stages), restored = std::move(restored), key](int, const Action& a) -> Ns {
    MMT_CHECK(a.stage >= 0 && at(a.stage) < stages.size(), "{}: no times of this stage", to_string(a));
    const StageTimes& s = stages[at(a.stage)];
    const auto block = [&]() -> const LayerTime& {
      if (s.blocks.size() == 1) return s.blocks[0];
      MMT_CHECK(a.block >= 0 && at(a.block) < s.blocks.size(), "{}: no time of this block", to_string(a));
      return s.blocks[at(a.block)];
    };
    const auto again = [&] { return restored.empty() || !restored.contains(key(a)) ? block().recompute : 0; };
    switch (a.kind) {
      case Kind::load: return s.load;
      case Kind::forward: return block().forward;
      case Kind::recompute: return block().recompute;
      case Kind::backward_input: return block().backward_input + again();
      case Kind::backward_weight: return block().backward_weight;
      case Kind::backward: return block().backward_input + block().backward_weight + again();
      case Kind::reduce:
      case Kind::tie: return s.reduce;
      case Kind::optimize: return s.optimize;
      case Kind::send:
      case Kind::recv: return 0;
    }
    return 0;
  };
}

}  // namespace mmt::plan
