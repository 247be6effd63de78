// The one definition of a reduction over ranks on the host.
#pragma once

#include "parallel/comm/communicator.h"

namespace mmt::comm {

/// destinations[j][i] = reduction over r, in order, of sources[r][i], for i < count and every j. A destination may be a
/// source. f32, f64 and integers are combined in their own type (integers wrap), bf16 in f32 with one rounding at the
/// end. max and min return NaN when any source is NaN.
void reduce_in_rank_order(ReduceOp op, DType dtype, std::span<const void* const> sources,
                          std::span<void* const> destinations, std::int64_t count);

/// What a reduction is kept in while ranks are still to come: f32 for bf16, else the dtype itself.
DType accumulator_of(DType dtype);
/// acc[i] = reduction of carry[i] (accumulators of the ranks before; null: there are none) and, in order,
/// sources[r][i]. acc may be carry.
void reduce_onward(ReduceOp op, DType dtype, const void* carry, std::span<const void* const> sources, void* acc,
                   std::int64_t count);
/// out[i] of dtype = acc[i], rounded once.
void round_accumulators(DType dtype, const void* acc, void* out, std::int64_t count);

}  // namespace mmt::comm
