#include "kernels/cpu/attention_own.h"

namespace mmt::cpu {
const AttentionTiles& attention_tiles_avx512() { return attention::avx512::kTiles; }
}  // namespace mmt::cpu
