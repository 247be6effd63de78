// The release gate: every layout computes the loss and the gradients of one rank.
#include "tests/engine/layout_table.h"

#include <catch2/catch.hpp>

using namespace mmt;
using namespace mmt::test;

namespace {

/// Every grid under one frozen pattern against one rank.
void check(const std::string& model_name, const std::string& pattern_name, const std::vector<Grid>& grids) {
  TableModel model = table_model(model_name);
  pattern(pattern_name).apply(model.config);
  const Outcome one = train(model, one_rank());
  for (const Grid& grid : grids) {
    INFO(model_name << ", " << pattern_name << ": " << grid.name);
    CHECK(differs(one, train(model, grid)) == "");
  }
}

std::vector<Grid> chosen(const std::vector<Grid>& grids, const std::vector<std::string>& names) {
  std::vector<Grid> list;
  for (const std::string& name : names) list.push_back(*std::ranges::find(grids, name, &Grid::name));
  return list;
}

/// Every second row, for patterns that a full run would tell little more of.
std::vector<Grid> half(const std::vector<Grid>& grids, std::size_t first) {
  std::vector<Grid> list;
  for (std::size_t i = first; i < grids.size(); i += 2) list.push_back(grids[i]);
  return list;
}

}  // namespace

// The large ones have the tag [table]; what runs under sanitizers is the sample.
TEST_CASE("layouts equal one rank: a sample of all rows") {
  check("both", "all", chosen(both_grids(), {"pp 3 list", "interleaved", "tp 2 pp 2", "dp 2 pp 2 zero 1"}));
  check("alternating 1", "frozen encoders",
        chosen(both_grids(), {"pp 4 zero-bubble", "own ranks, eyes pp 3, llm pp 2", "own ranks dp 2, zero-bubble"}));
}

TEST_CASE("layouts equal one rank: vision, all trainable", "[table]") { check("vision", "all", vision_grids()); }
TEST_CASE("layouts equal one rank: vision, frozen encoder", "[table]") {
  check("vision", "frozen encoders", half(vision_grids(), 0));
}
TEST_CASE("layouts equal one rank: vision, projector only", "[table]") {
  check("vision", "projectors only", vision_grids());
}
TEST_CASE("layouts equal one rank: vision, frozen LLM", "[table]") {
  check("vision", "frozen llm", half(vision_grids(), 1));
}
TEST_CASE("layouts equal one rank: vision, upper layers of the LLM", "[table]") {
  check("vision", "upper llm", half(vision_grids(), 0));
}

TEST_CASE("layouts equal one rank: vision, adapters with dropout", "[table]") {
  check("vision", "adapters", vision_grids());
}

TEST_CASE("layouts equal one rank: pictures of several sizes, merged patches, three positions a row", "[table]") {
  const auto grids =
      chosen(vision_grids(), {"dp 2 zero 1", "pp 2 inside the encoder zero-bubble", "pp 3 between exit and projector",
                              "interleaved auto", "tp 4", "own ranks tp 2 and 1, projector with the LLM",
                              "tp 2 pp 2 shared rows inside the encoder", "own ranks tp 4 shared rows and 2"});
  for (const char* name : {"all", "frozen encoders", "projectors only", "adapters"}) check("sizes", name, grids);
}

TEST_CASE("layouts equal one rank: pictures in tiles with newlines", "[table]") {
  const auto grids = chosen(
      vision_grids(), {"dp 2 zero 1", "pp 2 inside the encoder zero-bubble", "pp 3 between exit and projector",
                       "own ranks tp 2 and 1, projector with the LLM", "tp 2 pp 2 shared rows inside the encoder"});
  for (const char* name : {"all", "frozen encoders", "adapters"}) check("tiles", name, grids);
}

TEST_CASE("layouts equal one rank: audio", "[table]") {
  for (const char* name : {"all", "frozen encoders", "projectors only", "adapters"})
    check("audio", name, audio_grids());
}

TEST_CASE("layouts equal one rank: clips whose rows leave as means", "[table]") {
  for (const char* name : {"all", "frozen encoders", "projectors only", "adapters"})
    check("pooled", name, audio_grids());
}

TEST_CASE("layouts equal one rank: two encoders, all trainable", "[table]") { check("both", "all", both_grids()); }
TEST_CASE("layouts equal one rank: two encoders, frozen encoders", "[table]") {
  check("both", "frozen encoders", both_grids());
}
TEST_CASE("layouts equal one rank: two encoders, projectors only", "[table]") {
  check("both", "projectors only", both_grids());
}
TEST_CASE("layouts equal one rank: two encoders, adapters with dropout", "[table]") {
  check("both", "adapters", both_grids());
}
TEST_CASE("layouts equal one rank: two encoders, frozen LLM", "[table]") { check("both", "frozen llm", both_grids()); }

TEST_CASE("layouts equal one rank: two encoders, a batch of text", "[table]") {
  check("text", "all", both_grids());
  check("text", "projectors only", half(both_grids(), 0));
}

TEST_CASE("layouts equal one rank: blocks with a picture, a clip or neither, each first, in between and last",
          "[table]") {
  const auto grids = chosen(both_grids(), {"dp 2", "pp 3 list", "pp 4 zero-bubble", "interleaved", "tp 2 dp 2 pp 2",
                                           "own ranks, eyes pp 3, llm pp 2"});
  for (const char* batch : {"alternating 0", "alternating 1", "alternating 2"}) check(batch, "all", grids);
  check("alternating 1", "frozen encoders", grids);
}

TEST_CASE("a comparison of layouts notices adapters whose dropout draws other elements") {
  TableModel model = table_model("vision");
  pattern("adapters").apply(model.config);
  const Outcome one = train(model, one_rank());
  CHECK(one.first_grads.size() == 2 * (4 * 2 + 1 + 4 * 7));
  model.config.run.seed = 2;  // the weights do not follow it here
  CHECK(differs(one, train(model, one_rank())) == "the loss of step 0");
}

TEST_CASE("a comparison of layouts notices one gradient that is too large and a loss that is not the same") {
  TableModel model = table_model("vision");
  const Outcome one = train(model, one_rank());
  CHECK(differs(one, one).empty());
  Outcome wrong = one;
  for (float& g : wrong.first_grads.at("eyes.projector/linear_2.bias")) g *= 1.0001F;
  CHECK(differs(one, wrong) == "eyes.projector/linear_2.bias");
  wrong = one;
  for (float& g : wrong.grads.at("eyes.projector/linear_2.bias")) g *= 2.0F;
  CHECK(differs(one, wrong) == "eyes.projector/linear_2.bias");
  wrong = one;
  wrong.losses[1] *= 1.0001;
  CHECK(differs(one, wrong) == "the loss of step 1");
  wrong = one;
  wrong.flops += 1.0;
  CHECK(differs(one, wrong) == "the required FLOPs");
  wrong = one;
  wrong.norms[0] *= 1.001;
  CHECK(differs(one, wrong) == "the norm of step 0");
}
