// What must not change a bit: the schedule, the cut, recompute, ZeRO-1.
#include "tests/engine/layout_table.h"

#include <catch2/catch.hpp>

#include <cmath>

using namespace mmt;
using namespace mmt::test;

namespace {

/// Clipping multiplies by a function of the norm, whose sum over ranks is in another order: without it, weights after
/// updates have the same bits, too.
TableModel unclipped(const std::string& name, const std::string& pattern_name) {
  TableModel model = table_model(name);
  model.config.train.max_grad_norm = 0.0;
  model.options.steps = 2;
  pattern(pattern_name).apply(model.config);
  return model;
}

struct Pipeline {
  int places;
  const char* stages;
};
constexpr Pipeline kPipelines[] = {
    {1, ""},
    {2, "eyes 0-3, ears 0 | ears 1, llm 0-3"},
    {3, "eyes 0-2 | eyes 3, ears 0-1, llm embed-0 | llm 1-3"},
    {4, "eyes 0-1 | eyes 2-3 | ears 0-1, llm 0 | llm 1-3"},
};
constexpr Pipeline kChunked[] = {
    {2, "eyes 0-1 | eyes 2-3, ears 0 | ears 1, llm 0-1 | llm 2-3"},
    {3, "eyes 0 | eyes 1-3 | ears 0 | ears 1, llm 0 | llm 1 | llm 2-3"},
    {4, "eyes 0 | eyes 1-2 | eyes 3 | ears 0 | ears 1, llm embed | llm 0 | llm 1-2 | llm 3"},
};

std::vector<Grid> pipelines() {
  std::vector<Grid> grids;
  for (const Pipeline& p : kPipelines) {
    for (const char* policy : {"gpipe", "1f1b", "zero-bubble", "list"})
      grids.push_back({fmt::format("pp {} {}", p.places, policy), {mesh(1, 1, p.places, 0, p.stages)}, policy});
    grids.push_back({fmt::format("pp {} zero-bubble h2", p.places),
                     {mesh(1, 1, p.places, 0, p.stages)},
                     "zero-bubble",
                     1,
                     false,
                     true});
  }
  for (const Pipeline& p : kChunked) {
    grids.push_back(
        {fmt::format("pp {} interleaved", p.places), {mesh(1, 1, p.places, 0, p.stages)}, "interleaved", 2});
  }
  return grids;
}

/// The grid once more for each of two lanes.
Grid over_two_lanes(Grid grid) {
  app::MeshConfig& m = grid.meshes.front();
  m.dp = 2;
  const auto n = static_cast<std::int32_t>(m.ranks.size());
  for (std::int32_t r = n; r < 2 * n; ++r) m.ranks.push_back(r);
  return grid;
}

}  // namespace

TEST_CASE("every pipeline schedule has the bits of plain accumulation", "[table]") {
  for (const char* name : {"all", "frozen encoders", "projectors only"}) {
    TableModel model = unclipped("both", name);
    const Outcome one = train(model, one_rank());
    for (const Grid& grid : pipelines()) {
      INFO(name << ": " << grid.name);
      CHECK(differs_in_bits(one, train(model, grid)) == "");
    }
  }
}

TEST_CASE("pipelines of two lanes have the bits of two lanes", "[table]") {
  TableModel model = unclipped("alternating 1", "all");
  const Outcome two = train(model, {"dp 2", {mesh(1, 2, 1)}});
  for (const Grid& grid : pipelines()) {
    if (grid.name.starts_with("pp 1")) continue;
    INFO(grid.name);
    CHECK(differs_in_bits(two, train(model, over_two_lanes(grid))) == "");
  }
}

TEST_CASE("ZeRO-1 has the bits of whole optimizer states", "[table]") {
  for (const char* name : {"all", "projectors only"}) {
    TableModel model = unclipped("both", name);
    for (Grid grid :
         {Grid{"dp 2", {mesh(1, 2, 1)}}, Grid{"dp 4", {mesh(1, 4, 1)}},
          Grid{"dp 2 pp 2", {mesh(1, 2, 2, 0, kPipelines[1].stages)}}, Grid{"tp 2 dp 2", {mesh(2, 2, 1)}}}) {
      INFO(name << ": " << grid.name);
      const Outcome whole = train(model, grid);
      grid.zero = true;
      CHECK(differs_in_bits(whole, train(model, grid)) == "");
    }
  }
}

TEST_CASE("recompute has the bits of none in every layout", "[table]") {
  using run::Recompute;
  const std::vector<Grid> grids = {one_rank(),
                                   {"dp 2 pp 2", {mesh(1, 2, 2, 0, kPipelines[1].stages)}},
                                   {"pp 4 zero-bubble", {mesh(1, 1, 4, 0, kPipelines[3].stages)}, "zero-bubble"},
                                   {"interleaved", {mesh(1, 1, 2, 0, kChunked[0].stages)}, "interleaved", 2},
                                   {"tp 2 pp 2", {mesh(2, 1, 2, 0, kPipelines[1].stages)}, "list"},
                                   {"own ranks", {mesh(1, 1, 1), mesh(1, 1, 1, 1), mesh(2, 1, 1, 2)}, "gpipe"}};
  const std::vector<std::vector<Recompute>> choices = {
      {Recompute::full, Recompute::full, Recompute::full},
      {Recompute::selective, Recompute::selective, Recompute::selective},
      {Recompute::full, Recompute::none, Recompute::selective}};
  for (const char* name : {"all", "projectors only"}) {
    TableModel model = unclipped("both", name);
    for (const Grid& grid : grids) {
      model.config.train.recompute.clear();
      const Outcome kept = train(model, grid);
      for (const auto& choice : choices) {
        INFO(name << ": " << grid.name << ", choice " << &choice - choices.data());
        model.config.train.recompute = choice;
        CHECK(differs_in_bits(kept, train(model, grid)) == "");
      }
    }
  }
}

TEST_CASE("a comparison of bits notices one bit of a gradient, of a weight and of a loss") {
  TableModel model = unclipped("vision", "all");
  const Outcome one = train(model, one_rank());
  CHECK(differs_in_bits(one, train(model, one_rank())) == "");
  Outcome wrong = one;
  float& g = wrong.grads.at("llm/model.norm.weight")[3];
  g = std::nextafter(g, 2.0F * g);
  CHECK(differs_in_bits(one, wrong) == "gradients of the last step: llm/model.norm.weight");
  wrong = one;
  float& w = wrong.weights.at("llm/model.norm.weight")[3];
  w = std::nextafter(w, 2.0F * w);
  CHECK(differs_in_bits(one, wrong) == "weights: llm/model.norm.weight");
  wrong = one;
  wrong.losses[1] = std::nextafter(wrong.losses[1], 0.0);
  CHECK(differs_in_bits(one, wrong) == "the losses");
}
