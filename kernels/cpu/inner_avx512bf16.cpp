#define MMT_VEC_NS avx512bf16
#define MMT_VEC_WIDTH 16
#define MMT_VEC_BF16
#include "kernels/cpu/inner_table.h"

namespace mmt::cpu {

const InnerKernels& inner_avx512bf16() { return avx512bf16::kKernels; }

}  // namespace mmt::cpu
