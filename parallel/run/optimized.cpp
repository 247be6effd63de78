#include "parallel/run/optimized.h"

#include <map>

namespace mmt::run {

std::vector<OptimizedParam> optimized_params(std::span<const PlacedStore> stores, std::span<const TieGroup> ties) {
  std::map<std::pair<const ParameterStore*, std::size_t>, bool> counts;  // of tied uses
  for (const TieGroup& tie : ties) {
    for (std::size_t u = 0; u < tie.uses.size(); ++u) {
      counts[{tie.uses[u].store, tie.uses[u].param}] = u == 0 && tie.first_is_here;
    }
  }
  std::vector<OptimizedParam> list;
  for (const PlacedStore& placed : stores) {
    std::map<std::string, std::size_t> seen;  // uses within a stage share their weights
    const auto params = placed.store->params();
    for (std::size_t i = 0; i < params.size(); ++i) {
      const ParamState& p = params[i];
      const std::string name = canonical_name(*p.spec);
      if (!p.spec->trainable || !seen.emplace(name, i).second) continue;
      OptimizedParam o;
      o.name = name;
      o.module = p.spec->module.substr(0, p.spec->module.find('.'));
      o.master = p.master;
      o.compute = p.compute;
      o.grad = p.grad;
      o.weight_decay = p.spec->decay ? 1.0 : 0.0;
      const Copies copies = copies_of(*placed.store, p, placed.degrees, placed.coord);
      const auto tied = counts.find({placed.store, i});
      const bool counted = tied == counts.end() || tied->second;
      o.replica = counted ? copies.index : 0;
      o.num_replicas = counted ? copies.count : 0;
      list.push_back(std::move(o));
    }
  }
  return list;
}

}  // namespace mmt::run
