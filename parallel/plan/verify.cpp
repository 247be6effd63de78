#include "parallel/plan/verify.h"

#include "core/at.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace mmt::plan {
namespace {

/// A rank's actions that all ranks of a stage share. Peers differ, so a send may be absent on some of them.
std::vector<const Action*> shared_actions(const Program& program) {
  std::vector<const Action*> actions;
  for (const Action& a : program.actions) {
    if (a.kind != Kind::send) actions.push_back(&a);
  }
  return actions;
}

void require_equal(std::span<const Action* const> first, int first_rank, std::span<const Action* const> other,
                   int other_rank) {
  const auto [a, b] = std::ranges::mismatch(first, other, [](const Action* x, const Action* y) { return *x == *y; });
  if (a == first.end() && b == other.end()) return;
  refuse(other_rank, b == other.end() ? **a : **b,
         fmt::format("rank {} of the same stage runs {} there", first_rank,
                     a == first.end() ? "nothing" : to_string(**a)));
}

}  // namespace

void refuse(int rank, const Action& action, std::string_view rule) {
  throw std::logic_error(fmt::format("program of rank {}: {}: {}", rank, to_string(action), rule));
}

void check_channels(const Wiring& wiring, std::span<const Program> programs) {
  struct Ends {
    int sender = -1, receiver = -1;
    std::vector<const Action*> sends, recvs;
  };
  std::vector<Ends> channels(wiring.channels().size());
  for (const Program& p : programs) {
    for (const Action& a : p.actions) {
      if (a.kind != Kind::send && a.kind != Kind::recv) continue;
      const bool from_source = (a.kind == Kind::send) != a.transposed;
      for (const Message& m : wiring.messages(a.edge, a.block)) {
        if (m.src == m.dst || (from_source ? m.src : m.dst) != p.rank) continue;
        Ends& ends = channels[at(m.channel + (a.transposed ? 1 : 0))];
        (a.kind == Kind::send ? ends.sends : ends.recvs).push_back(&a);
      }
    }
  }
  const auto same = [](const Action* s, const Action* r) {
    return s->block == r->block && s->step_ahead == r->step_ahead;
  };
  for (std::size_t c = 0; c < channels.size(); ++c) {
    const Ends& ends = channels[c];
    const Channel& channel = wiring.channels()[c];
    const auto [s, r] = std::ranges::mismatch(ends.sends, ends.recvs, same);
    if (s != ends.sends.end() && r != ends.recvs.end())
      refuse(channel.to, **r, fmt::format("rank {} sent {} first on this channel", channel.from, to_string(**s)));
    if (s != ends.sends.end()) refuse(channel.from, **s, fmt::format("rank {} never receives it", channel.to));
    if (r != ends.recvs.end()) refuse(channel.to, **r, fmt::format("rank {} never sends it", channel.from));
  }
}

void check_same_sequence(const Wiring& wiring, std::span<const Program> programs) {
  // Ranks with the same stages have the same programs, apart from sends; of others those actions are compared that
  // belong to a stage of both.
  struct Reference {
    const Program* program = nullptr;
    std::vector<const Action*> actions;
  };
  std::vector<Reference> by_stage(wiring.graph().stages.size());
  const auto of_stage = [](std::span<const Action* const> actions, int stage) {
    std::vector<const Action*> own;
    std::ranges::copy_if(actions, std::back_inserter(own), [&](const Action* a) { return a->stage == stage; });
    return own;
  };
  for (const Program& p : programs) {
    if (p.rank < 0 || p.rank >= wiring.num_ranks()) continue;
    const std::span<const int> stages = wiring.stages_of(p.rank);
    const std::vector<const Action*> actions = shared_actions(p);
    bool compared = false;
    for (const int s : stages) {
      Reference& reference = by_stage[at(s)];
      if (reference.program == nullptr) {
        reference = {&p, actions};
      } else if (std::ranges::equal(stages, wiring.stages_of(reference.program->rank))) {
        if (!std::exchange(compared, true)) require_equal(reference.actions, reference.program->rank, actions, p.rank);
      } else {
        require_equal(of_stage(reference.actions, s), reference.program->rank, of_stage(actions, s), p.rank);
      }
    }
  }
}

void verify(const StageGraph& graph, std::span<const Program> programs, const VerifyOptions& options) {
  const Wiring wiring(graph);
  for (const Program& program : programs) check_order(wiring, program, options);
  check_channels(wiring, programs);
  check_same_sequence(wiring, programs);
  for (const Program& program : programs) check_lifetimes(wiring, program, options.caps);
  const std::vector<int> credits(graph.edges.size(), graph.credits);
  replay(wiring, programs, Transport::credit, credits);
  if (options.strict) replay(wiring, programs, Transport::strict, options.posted);
  if (options.serial) replay(wiring, programs, Transport::serial, options.posted);
}

void verify(const StageGraph& graph, std::span<const Program> programs, std::span<const Action> made_before) {
  verify(graph, programs, VerifyOptions{.made_before = made_before});
}

}  // namespace mmt::plan
