// The AMX unit of bf16 attention over emulated tiles (kernels/cpu/tiles_amx.h).
#pragma once

#include "kernels/cpu/attention_bf16.h"

#include <cstdint>

namespace mmt::test {

enum class TileFault : std::uint8_t { none, no_zeroing, swapped_pairs, short_sum };

const cpu::AttentionBf16& attention_bf16_emulated();
/// From now on the tiles of the calling thread have this fault.
void set_tile_fault(TileFault fault);
/// What the calling thread's tiles did since the last call: products, and whether a real processor had refused one.
struct TileUse {
  std::int64_t dots = 0;
  bool refused = false;
};
TileUse take_tile_use();

}  // namespace mmt::test
