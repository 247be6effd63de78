#include "parallel/run/optimized.h"

#include <map>
#include <set>

namespace mmt::run {

std::vector<PlacedParam> placed_params(std::span<const PlacedStore> stores, std::span<const StageUses> uses,
                                       bool trainable_only) {
  std::map<std::string, int> first_stage;
  for (std::size_t s = 0; s < uses.size(); ++s) {
    for (const StageUses::Use& use : uses[s].params) first_stage.emplace(use.name, static_cast<int>(s));
  }
  if (uses.empty()) {
    for (const PlacedStore& placed : stores) {
      for (const ParamState& p : placed.store->params()) first_stage.emplace(canonical_name(*p.spec), placed.stage);
    }
  }
  std::vector<PlacedParam> list;
  for (const PlacedStore& placed : stores) {
    std::set<std::string> seen;
    for (ParamState& p : placed.store->params()) {
      const std::string name = canonical_name(*p.spec);
      if ((trainable_only && !p.spec->trainable) || !seen.insert(name).second) continue;
      list.push_back(
          {&p, name, copies_of(*placed.store, p, placed.degrees, placed.coord), first_stage.at(name) == placed.stage});
    }
  }
  return list;
}

std::vector<OptimizedParam> optimized_params(std::span<const PlacedStore> stores, std::span<const StageUses> uses) {
  std::vector<OptimizedParam> list;
  for (const PlacedParam& p : placed_params(stores, uses, true)) {
    OptimizedParam o;
    o.name = p.name;
    o.module = p.state->spec->module.substr(0, p.state->spec->module.find('.'));
    o.master = p.state->master;
    o.compute = p.state->compute;
    o.grad = p.state->grad;
    o.weight_decay = p.state->spec->decay ? 1.0 : 0.0;
    o.replica = p.first_use ? p.copies.index : 0;
    o.num_replicas = p.first_use ? p.copies.count : 0;
    list.push_back(std::move(o));
  }
  return list;
}

std::vector<SavedPart> saved_parts(std::span<const PlacedStore> stores, std::span<const StageUses> uses,
                                   const Optimizer* optimizer) {
  std::vector<SavedPart> parts;
  const auto add = [&](const PlacedParam& p, const std::string& kind, const Tensor& data) {
    SavedPart part;
    part.name = kind + p.name;
    part.shape = p.state->spec->shape;
    part.box = {p.state->spec->box.offset, p.state->spec->box.shape};
    part.first = p.state->owned_first;
    part.count = p.state->owned_count;
    part.data = data;
    part.is_owner = p.first_use && p.copies.index == 0;
    part.frozen = !p.state->spec->trainable;
    parts.push_back(std::move(part));
  };
  for (const PlacedParam& p : placed_params(stores, uses, false)) add(p, "model/", p.state->master);
  if (optimizer == nullptr) return parts;
  const std::vector<PlacedParam> trained = placed_params(stores, uses, true);
  MMT_CHECK(optimizer->params().size() == trained.size(), "an optimizer of {} parameters, the stores have {}",
            optimizer->params().size(), trained.size());
  for (std::size_t i = 0; i < trained.size(); ++i) {
    MMT_CHECK(optimizer->params()[i].name == trained[i].name, "the optimizer's parameter {} is {}, not {}", i,
              optimizer->params()[i].name, trained[i].name);
    add(trained[i], "optimizer/first_moment/", optimizer->first_moment(i));
    add(trained[i], "optimizer/second_moment/", optimizer->second_moment(i));
  }
  return parts;
}

}  // namespace mmt::run
