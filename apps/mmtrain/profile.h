// Measures what planning goes by: every kind of layer of the configuration at several sizes, and copies.
#pragma once

#include "apps/mmtrain/cost_file.h"
#include "apps/mmtrain/dataset.h"

#include <cstdint>
#include <string>
#include <vector>

namespace mmt::app {

struct ProfiledLayer {
  std::string module;
  std::int64_t rows = 0;  ///< of the module's layers
  plan::MeasuredLayer measured;
};

struct Profile {
  CostFile costs;
  std::vector<ProfiledLayer> layers;  ///< by module, kind and size; with what several modules have in common
};

/// Collective; all ranks of `world` measure at once, each module's tp ranks together. `sets`: samples of each data set,
/// a full microbatch of each; a module is measured at a quarter, a half and all of the first set that has rows for it.
/// Throws ConfigError when the ranks do not make whole tp groups.
Profile make_profile(const Config& config, const std::vector<std::vector<plan::SampleMeta>>& sets, const RowCaps& caps,
                     comm::Communicator& world, const Stream& stream);

/// Copies of `bytes` and of a few: `local` within the rank, `intra` between neighbours, all pairs at once (of one rank:
/// two copies). Collective; averages over the ranks.
struct CopyLinks {
  plan::Link local, intra;
};
CopyLinks measure_links(std::int64_t bytes, comm::Communicator& world, const Stream& stream);

}  // namespace mmt::app
