#include "kernels/backend.h"

#include "kernels/cpu/onednn.h"
#include "kernels/cpu/tables.h"

#include "core/error.h"

#include <array>

namespace mmt {
namespace {

KernelTable make_reference() {
  KernelTable t;
  t.name = "reference";
  t.gemm = cpu::reference_gemm();
  t.linear = cpu::reference_linear();
  t.norm = cpu::reference_norm();
  t.activation = cpu::reference_activation();
  t.rotary = cpu::reference_rotary();
  t.embedding = cpu::reference_embedding();
  t.elementwise = cpu::reference_elementwise();
  t.gather = cpu::reference_gather();
  t.conv = cpu::reference_conv();
  t.cross_entropy = cpu::reference_cross_entropy();
  t.adamw = cpu::reference_adamw();
  t.reduce = cpu::reference_reduce();
  t.attention = cpu::reference_attention();
  t.dropout = cpu::reference_dropout();
  return t;
}

KernelTable make_cpu(Isa level) {
  KernelTable t;
  t.name = name_of(level).data();
  const bool best = level == cpu_isa().level;  // what lies between the levels belongs to the process's own
  t.attention = cpu::fast_attention(best ? cpu_isa() : CpuIsa{.level = level});
  t.gemm = cpu::cpu_gemm(level);
  t.linear = cpu::cpu_linear(level);
  t.norm = cpu::cpu_norm(level);
  t.activation = cpu::cpu_activation(level);
  t.rotary = cpu::cpu_rotary(level);
  t.embedding = cpu::cpu_embedding(level);
  t.elementwise = cpu::cpu_elementwise(level);
  t.gather = cpu::cpu_gather(level);
  t.cross_entropy = cpu::cpu_cross_entropy(level);
  t.adamw = cpu::cpu_adamw(level);
  t.reduce = cpu::cpu_reduce(level);
  t.conv = cpu::cpu_conv(level);
  t.dropout = cpu::cpu_dropout(level);
  return t;
}

}  // namespace

const KernelTable& reference_kernels() {
  static const KernelTable table = make_reference();
  return table;
}

const KernelTable& cpu_kernels(Isa level) {
  static const std::array<KernelTable, kIsas.size()> tables = {make_cpu(kIsas[0]), make_cpu(kIsas[1]),
                                                               make_cpu(kIsas[2])};
  MMT_CHECK(isa_available(level), "kernels of level {} in a process that runs {}", name_of(level), name_of(cpu_isa()));
  return tables[static_cast<std::size_t>(level)];
}

const KernelTable& cpu_kernels() {
  static const KernelTable& table = cpu_kernels(cpu_isa().level);
  return table;
}

std::vector<std::pair<std::string, std::string>> describe_cpu_kernels() {
  const CpuIsa& isa = cpu_isa();
  return {{"matrix products",
           fmt::format("oneDNN {}, bf16 {}", cpu::onednn::version(), isa.avx512bf16 ? "native" : "widened to f32")},
          {"attention in bf16", isa.amx          ? "AMX tiles"
                                : isa.avx512bf16 ? "pairs (vdpbf16ps)"
                                                 : "widened to f32"}};
}

Stream cpu_stream() { return {.device = {}, .kernels = &cpu_kernels(), .handle = nullptr}; }
Stream reference_stream() { return {.device = {}, .kernels = &reference_kernels(), .handle = nullptr}; }

}  // namespace mmt
