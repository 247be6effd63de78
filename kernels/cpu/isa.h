// Which instruction set the CPU backend runs on: chosen once at start from what the machine has, or forced by the
// environment variable MMTRAIN_ISA (portable | avx2 | avx512 | avx512bf16 | amx), which also caps the matrix library.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace mmt {

/// The level for which a translation unit is compiled.
enum class Isa : std::uint8_t { portable, avx2, avx512 };
inline constexpr std::array<Isa, 3> kIsas = {Isa::portable, Isa::avx2, Isa::avx512};

struct CpuIsa {
  Isa level = Isa::portable;
  bool avx512bf16 = false;  ///< vdpbf16ps; only with level avx512
  bool amx = false;         ///< bf16 tiles, granted by the kernel; only with avx512bf16

  friend bool operator==(const CpuIsa&, const CpuIsa&) = default;
};

std::string_view name_of(Isa level);
/// What `mmtrain env` prints and a checkpoint records: "avx512bf16".
std::string name_of(const CpuIsa& isa);

/// All that this machine (and its operating system) can run.
CpuIsa detect_isa();
/// The set that `name` asks for. Throws ConfigError when the name is unknown or the machine lacks it.
CpuIsa parse_isa(std::string_view name);
/// What the fast kernels of this process use: MMTRAIN_ISA or else everything. Throws as parse_isa does.
const CpuIsa& cpu_isa();
/// Whether units of this level run in this process.
bool isa_available(Isa level);

}  // namespace mmt
