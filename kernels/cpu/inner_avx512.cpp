#define MMT_VEC_NS avx512
#define MMT_VEC_WIDTH 16
#include "kernels/cpu/inner_table.h"

namespace mmt::cpu {

const InnerKernels& inner_avx512() { return avx512::kKernels; }

}  // namespace mmt::cpu
