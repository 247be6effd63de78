#define MMT_VEC_NS bf16_avx512
#define MMT_VEC_WIDTH 16
#define MMT_VEC_BF16
#include "kernels/cpu/inner_table.h"

namespace mmt::cpu {

const InnerKernels& inner_bf16_avx512() { return bf16_avx512::kKernels; }

}  // namespace mmt::cpu
