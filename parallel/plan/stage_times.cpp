// Times of stages as costs of actions.
#include "core/at.h"
#include "core/error.h"
#include "parallel/plan/simulate.h"

#include <unordered_set>

namespace mmt::plan {
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
