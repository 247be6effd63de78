// Splitting a loop over the OpenMP threads: static, in equal shares. Callers see to it that a share's result does not
// depend on where it was cut.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace mmt::cpu {

/// Work below this many elements stays on the calling thread: starting the others costs about a microsecond.
inline constexpr std::int64_t kSerialElements = 16 * 1024;

/// f(first, count) over disjoint shares of [0, count), each a multiple of `grain` (but the last).
/// `elements` is the work of all. Never throws from f.
template <class F> void parallel_shares(std::int64_t count, std::int64_t grain, std::int64_t elements, F&& f) {
  if (count <= 0) return;
  const std::int64_t grains = (count + grain - 1) / grain;
  if (elements < kSerialElements || grains < 2 || omp_get_max_threads() == 1 || omp_in_parallel()) {
    f(std::int64_t{0}, count);
    return;
  }
#pragma omp parallel
  {
    const std::int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
    const std::int64_t first = grains * me / threads * grain;
    const std::int64_t end = std::min(count, grains * (me + 1) / threads * grain);
    if (first < end) f(first, end - first);
  }
}

}  // namespace mmt::cpu
