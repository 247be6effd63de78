#include "parallel/plan/simulate.h"

#include "core/at.h"
#include "core/error.h"
#include "parallel/plan/wiring.h"

#include <algorithm>
#include <array>
#include <utility>

namespace mmt::plan {
namespace {

constexpr bool is_transfer(Kind kind) { return kind == Kind::send || kind == Kind::recv; }

/// One FIFO: a channel of the wiring as it is used.
struct Line {
  Link link;
  std::int64_t row_bytes = 0;
  std::int32_t first_parcel = 0;  ///< of its messages in the flat list
  std::int32_t sent = 0, received = 0;
  std::int32_t sender_waits = -1, receiver_waits = -1;  ///< programs
  Ns free = 0;                                          ///< overlapped: the end of the previous message's bytes
  std::int32_t origin = -1;                             ///< the SEND that the chain of messages under way began with
};

struct Parcel {
  Ns arrival = 0;
  std::int32_t block = 0;
  std::int32_t origin = -1;  ///< the SEND whose end, plus time under way, is the arrival
  Ns freed = 0;              ///< when its RECV ended
  std::int32_t recv = -1;
};

/// A transfer's part on one line.
struct Leg {
  std::int32_t line = 0;
  std::int64_t rows = 0;
};

class Simulation {
 public:
  Simulation(const StageGraph& graph, std::span<const Program> programs, const SimulateOptions& options)
      : graph_(graph), programs_(programs), options_(options), wiring_(graph) {
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

  /// Rows of each message of each route, in the order of the wiring.
  std::vector<std::vector<std::vector<std::int64_t>>> count_rows() const {
    std::vector<std::vector<std::vector<std::int64_t>>> rows(graph_.routes.size());
    for (std::size_t e = 0; e < rows.size(); ++e) {
      rows[e].resize(graph_.routes[e].size());
      for (std::size_t m = 0; m < rows[e].size(); ++m) {
        const auto messages = wiring_.messages(static_cast<int>(e), static_cast<int>(m));
        rows[e][m].assign(messages.size(), 0);
        for (const RouteSegment& s : graph_.routes[e][m].segments) {
          const auto to = std::ranges::lower_bound(messages, std::pair(s.src_rank, s.dst_rank), {},
                                                   [](const Message& x) { return std::pair(x.src, x.dst); });
          rows[e][m][at(to - messages.begin())] += s.count;
        }
      }
    }
    return rows;
  }

  /// For each action which lines it uses with how many rows.
  void list_legs() {
    for (const Channel& c : wiring_.channels()) {
      lines_.push_back({.link = link_between(c.from, c.to), .row_bytes = row_bytes(c.edge, c.transposed)});
    }
    const auto rows = count_rows();
    for (const Program& p : programs_) {
      for (const Action& a : p.actions) {
        legs_at_.push_back(static_cast<std::int32_t>(legs_.size()));
        local_rows_.push_back(0);
        if (!is_transfer(a.kind)) continue;
        MMT_CHECK(a.edge >= 0 && at(a.edge) < rows.size() && a.block >= 0 && at(a.block) < rows[at(a.edge)].size(),
                  "rank {}: {} is over no edge of the graph", p.rank, to_string(a));
        const bool sends = a.kind == Kind::send;
        const auto messages = wiring_.messages(a.edge, a.block);
        for (std::size_t i = 0; i < messages.size(); ++i) {
          const Message& m = messages[i];
          if ((sends == a.transposed ? m.dst : m.src) != p.rank) continue;
          const std::int64_t count = rows[at(a.edge)][at(a.block)][i];
          if (m.channel < 0) {
            if (!sends) local_rows_.back() += count;
            continue;
          }
          const std::int32_t line = m.channel + (a.transposed ? 1 : 0);
          legs_.push_back({line, count});
          if (sends)
            ++lines_[at(line)]
                  .first_parcel;  // a number of parcels here; the loop below turns it into the first one's place
        }
      }
    }
    legs_at_.push_back(static_cast<std::int32_t>(legs_.size()));
    std::int32_t first = 0;
    for (Line& l : lines_) first += std::exchange(l.first_parcel, first);
    parcels_.resize(at(first));
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
      Line& l = lines_[at(leg.line)];
      if (l.sent - l.received >= graph_.credits) {
        l.sender_waits = p;
        return false;
      }
      if (l.sent < graph_.credits) continue;
      const Parcel& freed = parcels_[at(l.first_parcel + l.sent - graph_.credits)];
      if (freed.freed > start) start = freed.freed, pred = freed.recv;
    }
    Ns end = start;
    const bool recorded = own_time_[at(self)] != kModelled;
    if (recorded) end += own_time_[at(self)];
    for (const Leg& leg : legs(self)) {
      Line& l = lines_[at(leg.line)];
      Parcel& m = parcels_[at(l.first_parcel + l.sent++)];
      m.block = a.block;
      const std::int64_t bytes = leg.rows * l.row_bytes;
      if (l.link.overlapped) {
        if (end >= l.free) l.origin = self;
        l.free = std::max(end, l.free) + l.link.time(bytes) - l.link.latency;
        m.origin = l.origin;
        m.arrival = l.free + l.link.latency;
      } else {
        if (!recorded) end += l.link.time(bytes);
        m.origin = self;
        m.arrival = end;
      }
    }
    finish(p, start, end, pred);
    for (const Leg& leg : legs(self)) wake(lines_[at(leg.line)].receiver_waits);
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
      Line& l = lines_[at(leg.line)];
      if (l.sent == l.received) {
        l.receiver_waits = p;
        return false;
      }
      const Parcel& m = parcels_[at(l.first_parcel + l.received)];
      MMT_CHECK(m.block == a.block, "rank {}: {}: rank {} sent block {} first on this channel", programs_[at(p)].rank,
                to_string(a), wiring_.channels()[at(leg.line)].from, m.block);
      if (m.arrival > start) start = m.arrival, pred = m.origin;
      if (!l.link.overlapped) copy += l.link.time(leg.rows * l.row_bytes);
    }
    if (own_time_[at(self)] != kModelled) copy = own_time_[at(self)];
    finish(p, start, start + copy, pred);
    for (const Leg& leg : legs(self)) {
      Line& l = lines_[at(leg.line)];
      Parcel& m = parcels_[at(l.first_parcel + l.received++)];
      m.freed = start + copy;
      m.recv = self;
      wake(l.sender_waits);
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
    for (const LiveEvent& e : live_events(wiring_, program)) {
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
  Wiring wiring_;
  std::vector<std::int32_t> base_;  ///< of each program's actions in the flat lists
  std::vector<Ns> start_, end_, own_time_;
  std::vector<std::int32_t> pred_;  ///< whose end (plus time under way) is the start
  std::vector<std::int32_t> legs_at_;
  std::vector<Leg> legs_;
  std::vector<std::int64_t> local_rows_;
  std::vector<Line> lines_;  ///< by channel of the wiring
  std::vector<Parcel> parcels_;
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

}  // namespace mmt::plan
