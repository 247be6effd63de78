// Exact mode: with a block for each sample, a call for each item and integer sums of gradients, neither the number of
// lanes nor the pipeline, the schedule or the order of the samples changes a bit.
#include "tests/engine/layout_table.h"

#include <catch2/catch.hpp>

using namespace mmt;
using namespace mmt::test;

namespace {

/// Every sample of these batches has at most one picture or clip, and two do not fit into a block. Without clipping:
/// the norm is a sum over ranks.
TableModel exact_model(const std::string& batch, const std::string& pattern_name) {
  TableModel model = table_model(batch);
  pattern(pattern_name).apply(model.config);
  model.config.train.max_grad_norm = 0.0;
  model.options.exact = true;
  return model;
}

std::vector<Grid> exact_grids() {
  const std::string two = "eyes 0-3, ears 0 | ears 1, llm 0-3";
  const std::string four = "eyes 0-1 | eyes 2-3 | ears 0-1, llm 0 | llm 1-3";
  return {
      {"dp 2", {mesh(1, 2, 1)}},
      {"dp 4", {mesh(1, 4, 1)}},
      {"pp 2 gpipe", {mesh(1, 1, 2, 0, two)}, "gpipe"},
      {"dp 2 pp 2", {mesh(1, 2, 2, 0, two)}},
      {"dp 4 pp 2 zero-bubble", {mesh(1, 4, 2, 0, two)}, "zero-bubble"},
      {"dp 2 pp 4 list", {mesh(1, 2, 4, 0, four)}, "list"},
      {"dp 2 interleaved",
       {mesh(1, 2, 2, 0, "eyes 0-1 | eyes 2-3, ears 0 | ears 1, llm 0-1 | llm 2-3")},
       "interleaved",
       2},
      {"own ranks dp 2", {mesh(1, 2, 1), mesh(1, 2, 1, 2), mesh(1, 2, 2, 4, "llm 0-1 | llm 2-3")}},
  };
}

}  // namespace

TEST_CASE("exact mode: lanes, pipelines and schedules do not change a bit", "[table]") {
  for (const char* name : {"all", "projectors only"}) {
    TableModel model = exact_model("alternating 0", name);
    const Outcome one = train(model, one_rank());
    for (const Grid& grid : exact_grids()) {
      INFO(name << ": " << grid.name);
      CHECK(differs_in_bits(one, train(model, grid)) == "");
    }
  }
}

TEST_CASE("exact mode: the order of the samples does not change a bit") {
  TableModel model = exact_model("alternating 2", "all");
  const Outcome one = train(model, one_rank());
  std::ranges::reverse(model.batch.samples);
  std::ranges::reverse(model.batch.metas);
  std::ranges::reverse(model.batch.loaded);
  for (const Grid& grid : {one_rank(), exact_grids()[1]}) {
    INFO(grid.name);
    CHECK(differs_in_bits(one, train(model, grid)) == "");
  }
}

TEST_CASE("exact mode computes the gradients of plain sums, whose bits depend on the lanes") {
  TableModel model = exact_model("alternating 0", "all");
  const Outcome exact = train(model, one_rank());
  model.options.exact = false;
  const Outcome plain = train(model, one_rank());
  CHECK(differs(plain, exact) == "");
  CHECK(differs_in_bits(plain, train(model, {"dp 2", {mesh(1, 2, 1)}})) != "");
}
