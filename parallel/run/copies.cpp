#include "parallel/run/buckets.h"
#include "parallel/run/store_params.h"

namespace mmt::run {

namespace {

/// Consecutive tp ranks that hold the same box; 1: each has its own.
int tp_copies(const ParamSpec& spec, int tp) {
  if (tp == 1) return 1;
  for (const auto* list : {&spec.partial_over, &spec.replica_over}) {
    for (const AxisGroup& g : *list) {
      if (g.axis == Axis::tp) return g.size == 0 ? tp : g.size;
    }
  }
  MMT_CHECK(spec.box.shape != spec.shape, "{} is whole on each of {} tensor-parallel ranks and does not say so",
            canonical_name(spec), tp);
  return 1;
}

}  // namespace

Copies copies_of(const ParameterStore& store, const ParamState& param, const plan::Coord& degrees,
                 const plan::Coord& coord) {
  const int group = tp_copies(*param.spec, degrees[Axis::tp]);
  Copies copies{coord[Axis::tp] % group, group};
  if (store.splits_over_data(param)) return copies;
  const int lane = coord[Axis::cp] + degrees[Axis::cp] * coord[Axis::dp];
  copies.index += group * lane;
  copies.count *= degrees[Axis::cp] * degrees[Axis::dp];
  return copies;
}

void check_copies(ParameterStore& store, const StoreComms& comms, const Stream& stream) {
  const auto params = store.params();
  for (std::size_t i = 0; i < params.size();) {
    const int unit = params[i].unit;
    store.gather(unit);
    std::vector<Replica> over_data, over_tp;
    for (; i < params.size() && params[i].unit == unit; ++i) {
      const ParamState& p = params[i];
      if (!p.spec->trainable) continue;
      const std::string name = canonical_name(*p.spec);
      const Tensor whole = store.unit(unit).weight(p.id).reshape({num_owned(*p.spec)});
      over_data.push_back({name, store.splits_over_data(p) ? whole : p.master});
      const int group = comms.tp == nullptr ? 1 : tp_copies(*p.spec, comms.tp->size());
      if (group > 1) over_tp.push_back({name, p.master, group});
    }
    if (comms.data != nullptr && !over_data.empty()) check_replicas(*comms.data, over_data, stream);
    if (comms.tp != nullptr && !over_tp.empty()) check_replicas(*comms.tp, over_tp, stream);
    store.release(unit);
  }
}

}  // namespace mmt::run
