// Whole training steps of a small model of pictures and text on the fast kernels.
#include "apps/mmtrain/engine.h"
#include "kernels/backend.h"
#include "parallel/comm/self.h"
#include "parallel/run/optimized.h"

#include "core/arena.h"
#include "tests/support/made_step.h"

#include <catch2/catch.hpp>

using namespace mmt;
using namespace mmt::test;

namespace {

constexpr MediumShape kPicture = {0, 16, 3 * 14 * 14, 16, 1};  // (56 / 14)^2 patches
constexpr std::int64_t kLargeVocabulary = 301;

app::Config small_config(DType dtype, std::int64_t rows, bool adapters) {
  app::Config c = made_config({64, 96, 2, 4, 2}, kLargeVocabulary);
  REQUIRE(add_eyes(c, {32, 64, 2, 2, 2}, 56).rows == kPicture.rows);
  c.train.precision = dtype;
  if (adapters) c.llm.lora = app::LoraConfig{.on = {"."}, .rank = 4, .alpha = 8, .dropout = 0.05};
  c.train.tokens_per_microbatch = rows;
  return c;
}

/// Half of each text is supervised.
MadeBatch batch_of(std::vector<MadeSample> samples) {
  for (MadeSample& s : samples) s.supervised = s.text / 2;
  return make_batch(samples, kLargeVocabulary, kPicture);
}

}  // namespace

TEST_CASE("steps after the first take no tensor memory and their loss falls") {
  for (const auto& [dtype, adapters] :
       {std::pair(DType::f32, false), std::pair(DType::bf16, false), std::pair(DType::bf16, true)}) {
    INFO(name_of(dtype) << (adapters ? " with adapters" : ""));
    const MadeBatch large = batch_of({{48, true, 0}, {200, true, 0}, {96, false, 0}, {130, true, 0}, {3, false, 0}});
    const MadeBatch small = batch_of({{31, true, 0}, {77, false, 0}});
    const app::Config config = small_config(dtype, large.rows, adapters);
    const Stream stream = cpu_stream();
    const auto world = comm::make_self();
    app::Model model = app::build_model(config);
    make_stores(model, *world, stream);
    initialize_model(model, 1, stream);
    const app::PlanContext context{&config, &model, nullptr, true};
    std::int64_t number = 0;
    const auto plan = [&](const MadeBatch& b) { return app::plan_step(context, b.metas, number++, b.samples); };
    app::Engine engine(config, *world, model, caps_of(*plan(large)), stream);
    std::vector<run::OptimizedParam> params = run::optimized_params(model.placed(), model.uses);
    for (run::OptimizedParam& p : params) p.weight_decay = 0.0;
    run::Optimizer optimizer(std::move(params), {.max_grad_norm = 1.0}, nullptr, stream);
    const auto step = [&](const MadeBatch& b) {
      const auto planned = plan(b);
      const auto results = engine.run(*planned, b.loaded, 1.0 / planned->weight, true, [&] {
        const auto r = optimizer.step(1e-3, [](const std::string&) { return true; });
        REQUIRE(r.finite);
      });
      for (const auto& store : model.stores) store->weights_changed();
      double loss = 0.0;
      for (const app::SampleResult& r : results) loss += r.loss / planned->weight;
      return loss;
    };
    const double first = step(large);
    const std::int64_t taken = heap_pieces_taken();
    REQUIRE(taken > 0);
    double last = first;
    for (int i = 0; i < 6; ++i) last = step(large);
    REQUIRE(heap_pieces_taken() == taken);
    step(small);
    REQUIRE(heap_pieces_taken() == taken);
    REQUIRE(last < first - 0.1);
    const OwnedTensor one_more(DType::f32, {3});
    REQUIRE(heap_pieces_taken() == taken + 1);
  }
}
