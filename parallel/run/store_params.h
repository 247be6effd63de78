// What the parameter stores share: the list of a stage's parameters.
#pragma once

#include "parallel/run/store.h"

namespace mmt::run {

inline std::int64_t num_owned(const ParamSpec& spec) {
  std::int64_t n = 1;
  for (const std::int64_t d : spec.box.shape) n *= d;
  return n;
}

/// Parameters of a stage in the order of its units.
inline std::vector<ParamState> list_params(const Stage& stage) {
  std::vector<ParamState> params;
  for (std::size_t u = 0; u < stage.units.size(); ++u) {
    const auto& specs = stage.units[u]->plan().params;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      ParamState p;
      p.spec = &specs[i];
      p.unit = static_cast<int>(u);
      p.id = static_cast<int>(i);
      params.push_back(p);
    }
  }
  return params;
}

/// Places of a unit's parameters in the list.
inline std::vector<std::vector<std::size_t>> places_by_unit(const Stage& stage, const std::vector<ParamState>& params) {
  std::vector<std::vector<std::size_t>> places(stage.units.size());
  for (std::size_t i = 0; i < params.size(); ++i) places[static_cast<std::size_t>(params[i].unit)].push_back(i);
  return places;
}

inline Tensor shaped(const Tensor& flat, const ParamSpec& spec) {
  return Tensor(flat.data, flat.dtype, spec.box.shape, flat.device);
}

}  // namespace mmt::run
