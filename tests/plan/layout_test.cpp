// Layouts by hand: which stages there are, where they run, and what crosses between them.
#include "parallel/plan/layout.h"
#include "core/error.h"
#include "tests/support/message_of.h"

#include <catch2/catch.hpp>

using namespace mmt;
using namespace mmt::plan;

namespace {

/// eyes: stem, two blocks, exit, projector; llm: embedding, two blocks, head.
constexpr int kEyes = 5, kLlm = 4;

/// The encoder on rank 0, the LLM on ranks 1 and 2; the projector runs on the LLM's first place.
LayoutSpec projector_at_reader() {
  LayoutSpec spec;
  spec.modules = {{"eyes", kEyes}, {"llm", kLlm}};
  spec.meshes = {Mesh(1, 1, 1, 1, {0}), Mesh(1, 1, 1, 2, {1, 2})};
  spec.runs = {{{{0, 0, 4}}}, {{{0, 4, 5}, {1, 0, 2}}, {{1, 2, 4}}}};
  return spec;
}

std::string message_of(const LayoutSpec& spec) {
  return test::message_of<ConfigError>([&] { Layout layout{LayoutSpec(spec)}; });
}

}  // namespace

TEST_CASE("a projector on the ranks of its reader is a stage of its module there") {
  const Layout layout(projector_at_reader());
  REQUIRE(layout.stages().size() == 4);
  CHECK(layout.stages()[0].units == UnitSpan{0, 0, 4});
  CHECK(layout.stages()[1].units == UnitSpan{0, 4, 5});
  CHECK(layout.stages()[2].units == UnitSpan{1, 0, 2});
  CHECK(layout.stages_of_module(0) == std::vector<int>{0, 1});
  CHECK(layout.mesh_index(0) == 0);
  CHECK(layout.mesh_index(1) == 1);
  CHECK(layout.stages_on(0) == std::vector<int>{0});
  CHECK(layout.stages_on(1) == std::vector<int>{1, 2});
  CHECK(layout.stages_on(2) == std::vector<int>{3});
}

TEST_CASE("rows that a tower's exit has selected are all that crosses to a projector elsewhere") {
  const Layout layout(projector_at_reader());
  // A frozen tower: nothing returns to it; the projector trains, so its reader returns gradients to it.
  const std::vector<StageTraits> traits = {{.selects = true},
                                           {.needs_backward = true, .trains = true, .selects = true},
                                           {.needs_backward = true},
                                           {.needs_backward = true}};
  const std::vector<std::vector<BlockSize>> sizes = {{{.rows = 10, .supervised = 0, .source = 8, .out = 8, .tiles = 0}},
                                                     {{.rows = 40, .supervised = 15, .source = 0, .out = 40}}};
  const StageGraph graph = lane_graph(layout, 0, traits, sizes, true);
  REQUIRE(graph.edges.size() == 3);
  const auto rows_of = [&](std::size_t edge) {
    std::int64_t rows = 0;
    for (const auto& segment : graph.routes[edge][0].segments) rows += segment.count;
    return rows;
  };
  CHECK((graph.edges[0].producer == 1 && graph.edges[0].consumer == 2 && graph.edges[0].needs_grad));
  CHECK(rows_of(0) == 8);
  CHECK((graph.edges[1].producer == 0 && graph.edges[1].consumer == 1 && !graph.edges[1].needs_grad));
  CHECK(rows_of(1) == 8);  // not the 10 rows inside the tower
  CHECK((graph.edges[2].producer == 2 && graph.edges[2].consumer == 3 && graph.edges[2].needs_grad));
  CHECK(rows_of(2) == 40);
}

TEST_CASE("layouts that leave units out, hold them twice or out of order are refused with the numbers") {
  LayoutSpec spec = projector_at_reader();
  spec.runs[1][0].erase(spec.runs[1][0].begin());
  CHECK(message_of(spec) == "eyes: the stages hold 4 of 5 units");
  spec = projector_at_reader();
  spec.runs[0][0][0].last = 5;
  CHECK(message_of(spec) == "eyes: stage 0 has units [4, 5), expected to begin at 5");
  spec = projector_at_reader();
  std::swap(spec.runs[1][0][1], spec.runs[1][1][0]);
  CHECK(message_of(spec) == "llm: stage 0 has units [2, 4), expected to begin at 2");
  spec = projector_at_reader();
  spec.runs[1].pop_back();
  CHECK(message_of(spec) == "1 stages for 2 places of the pipeline");
  spec = projector_at_reader();
  spec.meshes[0] = Mesh(1, 1, 1, 1, {1});
  CHECK(message_of(spec) == "rank 1 belongs to two modules' own ranks: they must be disjoint");
}
