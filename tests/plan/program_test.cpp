#include "parallel/plan/program.h"
#include "core/error.h"
#include "parallel/plan/mesh.h"

#include <catch2/catch.hpp>

#include <set>

using namespace mmt;
using namespace mmt::plan;

TEST_CASE("actions and programs are read back as they are written") {
  for (const char* text : {"2F0", "1W3", "1I3", "0B12", "1R2", "1SEND3@e2", "2SEND3@-e1", "0RECV0@e0", "2RED:b4",
                           "2TIE:b1", "0OPT", "0LOAD7", "1F0+1"}) {
    REQUIRE(to_string(parse_action(text)) == text);
  }
  const std::string program = "rank 3: 0F0 0SEND0@e0 1RECV0@-e0 0B0 0RED:b0 0OPT";
  REQUIRE(to_string(parse_program(program)) == program);
}

TEST_CASE("text that is no action is refused with the text") {
  for (const char* text :
       {"", "F0", "2G0", "2F", "2F-1", "1SEND3", "1SEND3@2", "2RED4", "2F0+", "2F0x", "99999999999F0"}) {
    INFO(text);
    REQUIRE_THROWS_WITH(parse_action(text), Catch::Matchers::Contains("is not an action"));
  }
  REQUIRE_THROWS_AS(parse_program("0F0"), std::invalid_argument);
}

TEST_CASE("mesh coordinates count tp first and name each rank once") {
  std::vector<int> ranks;
  for (int r = 0; r < 24; ++r) ranks.push_back(100 - r);
  const Mesh mesh(2, 3, 2, 2, ranks);
  std::set<int> seen;
  for (int pp = 0; pp < 2; ++pp) {
    for (int dp = 0; dp < 2; ++dp) {
      for (int cp = 0; cp < 3; ++cp) {
        for (int tp = 0; tp < 2; ++tp) {
          const Coord coord{{tp, cp, dp, pp}};
          const int rank = mesh.rank_at(coord);
          REQUIRE(rank == ranks[static_cast<std::size_t>(tp + 2 * (cp + 3 * (dp + 2 * pp)))]);
          REQUIRE(mesh.coord_of(rank) == coord);
          seen.insert(rank);
        }
      }
    }
  }
  REQUIRE(seen.size() == 24);
  const Axis tp[] = {Axis::tp};
  REQUIRE(mesh.group(100, tp) == std::vector<int>{100, 99});
  const Axis data[] = {Axis::cp, Axis::dp};
  REQUIRE(mesh.group(100, data) == std::vector<int>{100, 98, 96, 94, 92, 90});
}

TEST_CASE("a mesh that does not fit its ranks is refused with the numbers") {
  using Catch::Matchers::Contains;
  REQUIRE_THROWS_WITH(Mesh(2, 1, 2, 1, {0, 1, 2}), Contains("tp 2 x cp 1 x dp 2 x pp 1 = 4") && Contains("3 ranks"));
  REQUIRE_THROWS_WITH(Mesh(1, 1, 2, 1, {4, 4}), Contains("rank 4 stands twice"));
  REQUIRE_THROWS_WITH(Mesh(0, 1, 1, 1, {}), Contains("1 or more"));
}
