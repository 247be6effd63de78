#include "kernels/cpu/attention_own.h"

namespace mmt::cpu {
const AttentionTiles& attention_tiles_portable() { return attention::portable::kTiles; }
}  // namespace mmt::cpu
