// The op tables of the CPU backends: what kernels/backend.cpp puts into a KernelTable.
#pragma once

#include "kernels/backend.h"

namespace mmt::cpu {

GemmTable reference_gemm();
LinearTable reference_linear();
NormTable reference_norm();
ActivationTable reference_activation();
RotaryTable reference_rotary();
EmbeddingTable reference_embedding();
ElementwiseTable reference_elementwise();
GatherTable reference_gather();
ConvTable reference_conv();
CrossEntropyTable reference_cross_entropy();
AdamwTable reference_adamw();
ReduceTable reference_reduce();
AttentionTable reference_attention();
AttentionTable fast_attention(Isa level);

}  // namespace mmt::cpu
