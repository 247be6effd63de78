#include "kernels/cpu/attention_own.h"

namespace mmt::cpu {
const AttentionTiles& attention_tiles_avx2() { return attention::avx2::kTiles; }
}  // namespace mmt::cpu
