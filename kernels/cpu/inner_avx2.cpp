#define MMT_VEC_NS avx2
#define MMT_VEC_WIDTH 8
#include "kernels/cpu/inner_table.h"

namespace mmt::cpu {

const InnerKernels& inner_avx2() { return avx2::kKernels; }

}  // namespace mmt::cpu
