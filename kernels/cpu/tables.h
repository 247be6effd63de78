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
DropoutTable reference_dropout();
AttentionTable reference_attention();
/// f32 at the set's level; bf16 by products of its own where the set has them, else widened.
AttentionTable fast_attention(const CpuIsa& isa);

// f32 and bf16 at a level.
GemmTable cpu_gemm(Isa level);
LinearTable cpu_linear(Isa level);
NormTable cpu_norm(Isa level);
ActivationTable cpu_activation(Isa level);
RotaryTable cpu_rotary(Isa level);
EmbeddingTable cpu_embedding(Isa level);
ElementwiseTable cpu_elementwise(Isa level);
GatherTable cpu_gather(Isa level);
CrossEntropyTable cpu_cross_entropy(Isa level);
AdamwTable cpu_adamw(Isa level);
ReduceTable cpu_reduce(Isa level);
ConvTable cpu_conv(Isa level);
DropoutTable cpu_dropout(Isa level);

}  // namespace mmt::cpu
