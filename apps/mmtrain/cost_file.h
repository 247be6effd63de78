// The cost file: what layers and transfers were measured to take on a machine. `mmtrain profile` writes it, planning
// reads it.
#pragma once

#include "parallel/plan/timing.h"

#include <string>
#include <vector>

namespace mmt::app {

struct CostFile {
  plan::CostRates rates;                    ///< for kinds of layers without measurements
  std::vector<plan::MeasuredLayer> layers;  ///< no two of one kind and the same FLOPs
  plan::Link local;                         ///< a copy within a rank
  plan::Link intra;                         ///< between ranks of one node
  std::string machine;                      ///< where it was measured: the processor's name
  std::string isa, dtype;                   ///< what the layers computed with
  int threads = 1;                          ///< of each rank
};

/// Throws ConfigError that names the file and the key: what is no JSON of this form, unknown, missing and repeated
/// keys, values out of range, repeated measurements.
CostFile read_cost_file(const std::string& path);
/// JSON as read_cost_file takes it, in one piece: a crash leaves the old file or the new one.
void write_cost_file(const std::string& path, const CostFile& costs);

}  // namespace mmt::app
