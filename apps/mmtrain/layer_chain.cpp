#include "apps/mmtrain/layer_chain.h"

#include <algorithm>

namespace mmt::app {

std::vector<plan::ModuleLayers> module_layers(const std::vector<std::vector<plan::LayerInfo>>& infos,
                                              const Workload& workload, const Machine& machine) {
  std::vector<plan::ModuleLayers> modules;
  for (std::size_t m = 0; m < infos.size(); ++m) {
    plan::ModuleLayers& module = modules.emplace_back();
    module.name = infos[m].front().module;
    for (const plan::LayerInfo& info : infos[m]) {
      const plan::PlannedLayer mean = planned(info, machine.costs, workload.block[m]);
      plan::PlannedLayer layer = planned(info, machine.costs, cap_of(workload.caps, m));
      layer.time = mean.time;
      layer.out_bytes = mean.out_bytes;
      layer.grad_bytes = mean.grad_bytes;
      // The update reads and writes seven numbers for each pair of moments (predict.cpp).
      if (info.memory.optimizer > 0) layer.step = machine.local.time(info.memory.optimizer * 7 / 2);
      module.layers.push_back(std::move(layer));
    }
  }
  return modules;
}

std::vector<std::vector<plan::UnitSpan>> runs_of(const plan::Cut& cut, const std::vector<plan::UnitSpan>& units) {
  std::vector<std::vector<plan::UnitSpan>> runs;
  auto module = units.begin();
  int first = 0;  // of these units, in the chain
  const auto count = [&] { return module->last - module->first; };
  for (const plan::PlaceCost& place : cut.places) {
    auto& run = runs.emplace_back();
    for (int at = place.first; at < place.first + place.count;) {
      while (at >= first + count()) {
        first += count();
        ++module;
      }
      const int end = std::min(place.first + place.count, first + count());
      const plan::UnitSpan part{module->module, module->first + at - first, module->first + end - first};
      const auto before = std::ranges::find_if(
          run, [&](const plan::UnitSpan& s) { return s.module == part.module && s.last == part.first; });
      if (before != run.end())
        before->last = part.last;
      else
        run.push_back(part);
      at = end;
    }
  }
  return runs;
}

std::vector<plan::Link> place_links(const plan::Mesh& mesh, const Machine& machine) {
  const int places = mesh.degree(plan::Axis::pp);
  std::vector<plan::Link> links;
  const auto node = [&](int place) {
    plan::Coord at;
    at[plan::Axis::pp] = place;
    return machine.ranks_per_node == 0 ? 0 : mesh.rank_at(at) / machine.ranks_per_node;
  };
  for (int behind = 0; behind + 1 < places; ++behind) {
    const int place = places - 1 - behind;
    links.push_back(node(place) == node(place - 1) ? machine.intra : machine.inter);
  }
  if (links.empty()) links.push_back(machine.intra);
  return links;
}

}  // namespace mmt::app
