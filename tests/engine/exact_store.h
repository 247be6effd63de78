// Exact mode: a store whose gradients do not depend on the order of sums.
#pragma once

#include "parallel/run/store.h"

namespace mmt::test {

/// Wraps a store without its reductions: each block's gradients are rounded to int64 multiples of 2^-40 and added as
/// integers over blocks and data lanes. 2^23 on either side is the largest sum; an f32 gradient of 2^-16 or more is not
/// rounded. `data`: as for the wrapped store; null: one lane.
std::unique_ptr<run::ParameterStore> make_exact_store(std::unique_ptr<run::ParameterStore> store,
                                                      comm::Communicator* data);

}  // namespace mmt::test
