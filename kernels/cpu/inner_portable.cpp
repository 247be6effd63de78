#define MMT_VEC_NS portable
#define MMT_VEC_WIDTH 4
#include "kernels/cpu/inner_table.h"

namespace mmt::cpu {

const InnerKernels& inner_portable() { return portable::kKernels; }

}  // namespace mmt::cpu
