// What parameters take on one rank, known before any store exists: by the rules of the replicated store and of the
// optimizer.
#pragma once

#include "parallel/run/stage.h"

#include <cstdint>

namespace mmt::run {

struct ParamBytes {
  std::int64_t compute = 0;    ///< as products read them
  std::int64_t packed = 0;     ///< frozen matrices once more, in the layout of the backend's products
  std::int64_t gradients = 0;  ///< master dtype; whole on every data lane
  std::int64_t master = 0;     ///< f32 copies of what trains and is computed with in bf16
  std::int64_t moments = 0;
  std::int64_t total() const { return compute + packed + gradients + master + moments; }
  ParamBytes& operator+=(const ParamBytes& o);
};

/// Of one parameter. `shards`: data lanes that share its master weights and moments (ZeRO-1); 1: every lane has all.
/// The largest lane's share; alignment is counted, which the gaps of a store's buckets may exceed by a cache line.
ParamBytes param_bytes(const ParamSpec& spec, const Stream& stream, int shards = 1);
/// Of all parameters of a unit, or of a stage, where further uses of a tied one have gradients alone.
ParamBytes param_bytes(const UnitPlan& unit, const Stream& stream, int shards = 1);
ParamBytes param_bytes(const Stage& stage, const Stream& stream, int shards = 1);

// What stores go by, too.

/// Of the master weights: what is frozen needs no more precision than what products read.
DType master_dtype(const ParamSpec& spec);
/// Of the second form that a store keeps of a frozen matrix for x w^T (yes) or dy w (no); 0: none.
std::int64_t packed_bytes(const ParamSpec& spec, Transpose transpose, const Stream& stream);

}  // namespace mmt::run
