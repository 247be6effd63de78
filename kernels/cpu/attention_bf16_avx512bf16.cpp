#include "kernels/cpu/attention_product_dot.h"

#include "kernels/cpu/attention_bf16_own.h"

namespace mmt::cpu {
const AttentionBf16& attention_bf16_dot() {
  namespace unit = attention::MMT_SIMD_NAMESPACE;
  static constexpr AttentionBf16 table = {unit::forward_item_bf16, unit::forward_own_bf16, unit::backward_item_bf16,
                                          unit::backward_own_bf16, unit::pack_words,       unit::pack_transposed,
                                          attention_tiles_avx512};
  return table;
}
}  // namespace mmt::cpu
