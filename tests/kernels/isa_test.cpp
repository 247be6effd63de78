#include "kernels/cpu/isa.h"

#include "core/error.h"

#include <catch2/catch.hpp>

using namespace mmt;

TEST_CASE("an instruction set is named, ordered and refused when the machine lacks it") {
  REQUIRE(parse_isa("portable") == CpuIsa{Isa::portable, false, false});
  REQUIRE(name_of(parse_isa("portable")) == "portable");
  REQUIRE_THROWS_AS(parse_isa("avx9"), ConfigError);
  REQUIRE_THROWS_WITH(parse_isa("avx9"), Catch::Matchers::Contains("portable, avx2, avx512, avx512bf16, amx"));
  const CpuIsa machine = detect_isa();
  REQUIRE(parse_isa(name_of(machine)) == machine);
  if (!machine.amx)
    REQUIRE_THROWS_WITH(parse_isa("amx"), Catch::Matchers::Contains("this machine has " + name_of(machine)));
  REQUIRE(isa_available(Isa::portable));
}
