// A backend is a table of plain functions, one struct of function pointers per op header. A Stream names the table that
// runs its ops; the functions of namespace mmt::ops check their arguments and call through it.
#pragma once

#include "kernels/activation.h"
#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/conv.h"
#include "kernels/cpu/isa.h"
#include "kernels/cross_entropy.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/gather.h"
#include "kernels/gemm.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/reduce.h"
#include "kernels/rotary.h"

#include "core/stream.h"

#include <string>
#include <utility>
#include <vector>

namespace mmt {

struct KernelTable {
  const char* name = "";
  GemmTable gemm;
  LinearTable linear;
  NormTable norm;
  ActivationTable activation;
  RotaryTable rotary;
  EmbeddingTable embedding;
  ElementwiseTable elementwise;
  GatherTable gather;
  ConvTable conv;
  CrossEntropyTable cross_entropy;
  AdamwTable adamw;
  AttentionTable attention;
  ReduceTable reduce;
  DropoutTable dropout;
};

/// Scalar code with double accumulation for f32, bf16 and f64: the oracle, and what f64 gradient checks run on.
const KernelTable& reference_kernels();
/// The fast CPU backend: f32 and bf16 at the process's instruction set (cpu_isa); f64 goes through the reference.
const KernelTable& cpu_kernels();
/// The same at a lower level, for tests that compare levels; throws std::logic_error when it is not available.
const KernelTable& cpu_kernels(Isa level);

/// What this process's CPU kernels are made of, for `mmtrain env`: ("matrix products", "oneDNN 2.6.3, bf16 native").
std::vector<std::pair<std::string, std::string>> describe_cpu_kernels();

Stream cpu_stream();
Stream reference_stream();

}  // namespace mmt
