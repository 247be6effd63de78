#include "kernels/cpu/isa.h"

#include "core/error.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cpuid.h>

#include <cstdlib>

namespace mmt {
namespace {

constexpr std::string_view kNames[] = {"portable", "avx2", "avx512", "avx512bf16", "amx"};

// AMX tiles are off until the process asks the operating system for them (Linux, arch_prctl ARCH_REQ_XCOMP_PERM).
bool request_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if ((d & kAmxBf16) == 0 || (d & kAmxTile) == 0) return false;
#ifdef SYS_arch_prctl
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

int rank_of(const CpuIsa& isa) {
  if (isa.amx) return 4;
  if (isa.avx512bf16) return 3;
  return static_cast<int>(isa.level);
}

}  // namespace

std::string_view name_of(Isa level) { return kNames[static_cast<int>(level)]; }

std::string name_of(const CpuIsa& isa) { return std::string(kNames[rank_of(isa)]); }

CpuIsa detect_isa() {
  __builtin_cpu_init();
  CpuIsa isa;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) isa.level = Isa::avx2;
  if (isa.level == Isa::avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    isa.level = Isa::avx512;
  isa.avx512bf16 = isa.level == Isa::avx512 && __builtin_cpu_supports("avx512bf16");
  isa.amx = isa.avx512bf16 && request_amx();
  return isa;
}

CpuIsa parse_isa(std::string_view name) {
  const CpuIsa machine = detect_isa();
  for (int rank = 0; rank < 5; ++rank) {
    if (name != kNames[rank]) continue;
    if (rank > rank_of(machine))
      throw ConfigError(fmt::format("MMTRAIN_ISA={}: this machine has {} only; unset the variable or ask for less",
                                    name, name_of(machine)));
    return {static_cast<Isa>(rank < 2 ? rank : 2), rank >= 3, rank >= 4};
  }
  throw ConfigError(
      fmt::format("MMTRAIN_ISA={}: unknown; one of portable, avx2, avx512, avx512bf16, amx, or unset it", name));
}

const CpuIsa& cpu_isa() {
  static const CpuIsa isa = [] {
    const char* forced = std::getenv("MMTRAIN_ISA");
    return forced && *forced ? parse_isa(forced) : detect_isa();
  }();
  return isa;
}

bool isa_available(Isa level) { return level <= cpu_isa().level; }

}  // namespace mmt
