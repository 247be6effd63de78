#include "parallel/comm/world.h"

#include <algorithm>
#include <cstring>

namespace mmt::comm {

bool AbortFlag::raise(int from_rank, std::string_view text) noexcept {
  int none = 0;
  if (!state.compare_exchange_strong(none, 1)) return false;
  rank = from_rank;
  const std::size_t n = std::min(text.size(), kMaxCause - 1);
  std::memcpy(cause, text.data(), n);
  cause[n] = '\0';
  state.store(2, std::memory_order_release);
  return true;
}

void AbortFlag::throw_error() const { throw PeerError(fmt::format("rank {} failed: {}", rank, cause)); }

}  // namespace mmt::comm
