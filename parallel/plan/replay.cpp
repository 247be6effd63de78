// Replays: whether programs end. Programs are sequential and channels are queues between two ranks, so one order of
// running them stands for all: if it ends, every other one does.
#include "core/at.h"
#include "parallel/plan/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace mmt::plan {
namespace {

constexpr int kNobody = -1;

/// What a rank waits for at once: messages, or one collective.
struct Step {
  std::uint32_t first = 0, count = 0;  ///< of the program's transfers
  std::uint32_t action = 0;
  int collective = -1;
};

struct Transfer {
  int channel = 0;
  bool sends = false;
};

struct RankState {
  const Program* program = nullptr;
  std::vector<Step> steps;
  std::vector<Transfer> transfers;
  std::size_t at = 0;
  std::uint32_t open = 0;  ///< transfers of the current step that are not done
  bool posted = false;
};

struct ChannelState {
  int capacity = 0;
  int buffered = 0;
  int sender = kNobody, receiver = kNobody;  ///< ranks (of the list of programs) that wait
};

class Replay {
 public:
  Replay(const Wiring& wiring, std::span<const Program> programs, Transport transport, std::span<const int> capacity)
      : transport_(transport) {
    channels_.resize(wiring.channels().size());
    for (std::size_t c = 0; c < channels_.size(); ++c) {
      const auto edge = at(wiring.channels()[c].edge);
      channels_[c].capacity = edge < capacity.size() ? capacity[edge] : 0;
    }
    ranks_.resize(programs.size());
    for (std::size_t p = 0; p < programs.size(); ++p) compile(wiring, programs[p], ranks_[p]);
    waiting_.resize(members_.size());
  }

  void run() {
    for (std::size_t p = 0; p < ranks_.size(); ++p) ready_.push_back(static_cast<int>(p));
    while (!ready_.empty()) {
      const int p = ready_.back();
      ready_.pop_back();
      advance(p);
    }
    std::string stuck;
    for (const RankState& r : ranks_) {
      if (r.at == r.steps.size()) continue;
      stuck +=
          fmt::format(" rank {} waits in {};", r.program->rank, to_string(r.program->actions[r.steps[r.at].action]));
    }
    if (stuck.empty()) return;
    const char* how = transport_ == Transport::credit   ? ""
                      : transport_ == Transport::strict ? " without buffers (strict rendezvous)"
                                                        : " with one message at a time (serial)";
    throw std::logic_error(fmt::format("the programs never end{}:{}", how, stuck));
  }

 private:
  void compile(const Wiring& wiring, const Program& program, RankState& rank) {
    rank.program = &program;
    for (std::uint32_t i = 0; i < program.actions.size(); ++i) {
      const Action& a = program.actions[i];
      if (a.kind == Kind::reduce || a.kind == Kind::tie || a.kind == Kind::optimize) {
        // RED is shared by the ranks of its stage, TIE by those of its uses, OPT by all.
        const std::tuple key{a.kind, a.kind == Kind::reduce ? a.stage : 0, a.kind == Kind::optimize ? 0 : a.block};
        const auto [found, fresh] = collectives_.try_emplace(key, static_cast<int>(members_.size()));
        if (fresh) members_.push_back(0);
        ++members_[at(found->second)];
        rank.steps.push_back({.action = i, .collective = found->second});
        continue;
      }
      if (a.kind != Kind::send && a.kind != Kind::recv) continue;
      const auto first = static_cast<std::uint32_t>(rank.transfers.size());
      const bool from_source = (a.kind == Kind::send) != a.transposed;
      for (const Message& m : wiring.messages(a.edge, a.block)) {
        if (m.src == m.dst || (from_source ? m.src : m.dst) != program.rank) continue;
        rank.transfers.push_back({m.channel + (a.transposed ? 1 : 0), a.kind == Kind::send});
        if (transport_ == Transport::strict) continue;
        rank.steps.push_back({.first = static_cast<std::uint32_t>(rank.transfers.size()) - 1, .count = 1, .action = i});
      }
      const auto count = static_cast<std::uint32_t>(rank.transfers.size()) - first;
      if (transport_ == Transport::strict && count > 0) rank.steps.push_back({first, count, i});
    }
  }

  void advance(int p) {
    RankState& rank = ranks_[at(p)];
    while (rank.at < rank.steps.size()) {
      const Step& step = rank.steps[rank.at];
      if (!rank.posted) {
        rank.posted = true;
        rank.open = step.count;
        if (step.collective >= 0) {
          arrive(p, step.collective);
        } else {
          for (std::uint32_t i = step.first; i < step.first + step.count; ++i) post(p, rank.transfers[i]);
        }
      }
      if (rank.open > 0) return;
      rank.posted = false;
      ++rank.at;
    }
  }

  void arrive(int p, int collective) {
    std::vector<int>& waiting = waiting_[at(collective)];
    if (static_cast<int>(waiting.size()) + 1 < members_[at(collective)]) {
      ranks_[at(p)].open = 1;
      waiting.push_back(p);
      return;
    }
    for (const int other : waiting) done(other);
  }

  void done(int p) {
    if (--ranks_[at(p)].open == 0) ready_.push_back(p);
  }

  void post(int p, const Transfer& t) {
    ChannelState& c = channels_[at(t.channel)];
    RankState& rank = ranks_[at(p)];
    if (t.sends) {
      if (c.receiver != kNobody) {
        done(std::exchange(c.receiver, kNobody));
      } else if (c.buffered < c.capacity) {
        ++c.buffered;
      } else {
        c.sender = p;
        return;
      }
    } else if (c.buffered > 0) {
      --c.buffered;
      if (c.sender != kNobody) {
        ++c.buffered;
        done(std::exchange(c.sender, kNobody));
      }
    } else if (c.sender != kNobody) {
      done(std::exchange(c.sender, kNobody));
    } else {
      c.receiver = p;
      return;
    }
    --rank.open;
  }

  Transport transport_;
  std::vector<RankState> ranks_;
  std::vector<ChannelState> channels_;
  std::map<std::tuple<Kind, int, int>, int> collectives_;
  std::vector<int> members_;               ///< by collective: how many programs have it
  std::vector<std::vector<int>> waiting_;  ///< by collective
  std::vector<int> ready_;
};

}  // namespace

void replay(const Wiring& wiring, std::span<const Program> programs, Transport transport,
            std::span<const int> capacity) {
  Replay(wiring, programs, transport, capacity).run();
}

}  // namespace mmt::plan
