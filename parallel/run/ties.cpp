#include "parallel/run/ties.h"

#include "kernels/elementwise.h"
#include "parallel/run/buckets.h"

#include <algorithm>
#include <map>

namespace mmt::run {

StageUses uses_of(const Stage& stage, std::vector<int> ranks) {
  StageUses uses{std::move(ranks), {}};
  for (const auto& unit : stage.units) {
    for (const ParamSpec& spec : unit->plan().params) {
      uses.params.push_back({canonical_name(spec), spec.trainable});
    }
  }
  return uses;
}

std::vector<Tie> find_ties(std::span<const StageUses> stages) {
  std::map<std::string, std::pair<int, std::vector<int>>> by_name;  // number of uses, stages
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (const StageUses::Use& use : stages[s].params) {
      if (!use.trainable) continue;
      auto& [count, list] = by_name[use.name];
      ++count;
      if (list.empty() || list.back() != static_cast<int>(s)) list.push_back(static_cast<int>(s));
    }
  }
  std::vector<Tie> ties;
  for (auto& [name, uses] : by_name) {
    if (uses.first > 1) ties.push_back({name, std::move(uses.second)});
  }
  return ties;
}

Ties make_ties(comm::Communicator& world, std::span<const StageUses> stages, std::span<ParameterStore* const> stores) {
  MMT_CHECK(stages.size() == stores.size(), "{} stages and {} stores", stages.size(), stores.size());
  Ties ties;
  for (const Tie& tie : find_ties(stages)) {
    TieGroup group{tie.name, {}, nullptr};
    const std::vector<int>& first = stages[static_cast<std::size_t>(tie.stages.front())].ranks;
    // Which group of equal coordinates this rank is in, and as which use first.
    int color = -1, key = 0;
    bool several = false;
    for (std::size_t k = 0; k < tie.stages.size(); ++k) {
      const std::vector<int>& ranks = stages[static_cast<std::size_t>(tie.stages[k])].ranks;
      MMT_CHECK(ranks.size() == first.size(), "{}: stages {} and {} of one module run on {} and {} ranks", tie.name,
                tie.stages.front(), tie.stages[k], first.size(), ranks.size());
      several = several || ranks != first;
      const auto at = std::ranges::find(ranks, world.rank());
      if (at == ranks.end() || color >= 0) continue;
      color = static_cast<int>(at - ranks.begin());
      key = static_cast<int>(k);
    }
    if (several) {
      ties.comms.push_back(world.split(color, key, "tie of " + tie.name));
      group.comm = ties.comms.back().get();
    }
    for (const int s : tie.stages) {
      ParameterStore* store = stores[static_cast<std::size_t>(s)];
      if (store == nullptr) continue;
      const auto params = store->params();
      for (std::size_t i = 0; i < params.size(); ++i) {
        if (canonical_name(*params[i].spec) == tie.name) group.uses.push_back({store, i});
      }
    }
    MMT_CHECK(group.uses.empty() == (color < 0), "{}: rank {} has {} uses and is {} of the ranks of its stages",
              tie.name, world.rank(), group.uses.size(), color < 0 ? "none" : "one");
    ties.groups.push_back(std::move(group));
  }
  return ties;
}

void check_ties(std::span<const TieGroup> groups, const Stream& stream) {
  for (const TieGroup& group : groups) {
    if (group.comm == nullptr || group.uses.empty()) continue;
    const Replica use{group.name, group.uses[0].store->params()[group.uses[0].param].master};
    check_replicas(*group.comm, std::span(&use, 1), stream);
  }
}

void run_tie(const TieGroup& group, const Stream& stream) {
  MMT_CHECK(!group.uses.empty(), "tied parameter {} has no use here", group.name);
  const auto param = [&](std::size_t i) -> const ParamState& {
    return group.uses[i].store->params()[group.uses[i].param];
  };
  const auto grad = [&](std::size_t i) { return param(i).grad; };
  for (std::size_t i = 1; i < group.uses.size(); ++i) ops::add_in_place(stream, grad(0), grad(i));
  if (group.comm != nullptr) group.comm->all_reduce(grad(0), comm::ReduceOp::sum, stream);
  for (std::size_t i = 1; i < group.uses.size(); ++i) {
    // A use that shares its weights with the first is updated with it: nobody reads its gradient.
    if (param(i).master.data != param(0).master.data) ops::copy(stream, grad(i), grad(0));
  }
}

}  // namespace mmt::run
