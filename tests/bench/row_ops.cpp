#include "bench/bench.h"

namespace mmt::bench {
void add_row_ops(Cases&) {}
}  // namespace mmt::bench
