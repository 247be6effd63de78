#define MMT_EMULATED_TILES
#include "tests/kernels/attention_emulated.h"

#include "kernels/cpu/attention_product_amx.h"

#include "kernels/cpu/attention_bf16_own.h"

namespace mmt::test {

namespace unit = cpu::attention::MMT_SIMD_NAMESPACE;

const cpu::AttentionBf16& attention_bf16_emulated() {
  static constexpr cpu::AttentionBf16 table = {
      unit::forward_item_bf16, unit::forward_own_bf16, unit::backward_item_bf16,     unit::backward_own_bf16,
      unit::pack_words,        unit::pack_transposed,  cpu::attention_tiles_portable};
  return table;
}

void set_tile_fault(TileFault fault) { unit::emulated_tiles().fault = static_cast<unit::EmulatedTiles::Fault>(fault); }

TileUse take_tile_use() {
  unit::EmulatedTiles& t = unit::emulated_tiles();
  const TileUse use{t.dots, t.refused};
  t.dots = 0;
  t.refused = false;
  return use;
}

}  // namespace mmt::test
