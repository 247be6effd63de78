#include "parallel/plan/cost.h"

namespace mmt::plan {

Linear& Linear::operator+=(const Linear& o) {
  constant += o.constant;
  per_row += o.per_row;
  per_supervised += o.per_supervised;
  per_source += o.per_source;
  per_out += o.per_out;
  per_tile += o.per_tile;
  return *this;
}

LayerCost& LayerCost::operator+=(const LayerCost& o) {
  forward += o.forward;
  backward_input += o.backward_input;
  backward_weight += o.backward_weight;
  return *this;
}

}  // namespace mmt::plan
