// A frozen base with adapters: what exists of it, and what a step changes.
#include "apps/mmtrain/engine.h"
#include "apps/mmtrain/layout.h"
#include "kernels/backend.h"
#include "parallel/comm/threads.h"
#include "parallel/run/optimized.h"

#include "tests/support/made_step.h"

#include <catch2/catch.hpp>

#include <map>
#include <mutex>

using namespace mmt;
using namespace mmt::test;

namespace {

const std::vector<plan::BlockSize> kSizes = {{.rows = 10, .supervised = 0, .source = 8, .out = 8, .tiles = 0},
                                             {.rows = 40, .supervised = 15, .source = 0, .out = 40, .tiles = 0}};
constexpr std::int64_t kSmallVocabulary = 61;

app::Config lora_config(DType precision, MediumShape* picture = nullptr) {
  app::Config c = made_config({64, 48, 2, 4, 2}, kSmallVocabulary);
  const MediumShape shape = add_eyes(c, {64, 48, 2, 4, 4}, 28);
  if (picture != nullptr) *picture = shape;
  c.train.tokens_per_microbatch = 48;
  c.train.precision = precision;
  c.encoders[0].trainable.all = c.encoders[0].projector_trainable.all = false;
  c.llm.lora = app::LoraConfig{.on = {"q_proj", "v_proj"}, .rank = 4, .alpha = 8, .dropout = 0.1};
  c.llm.trainable.adapters_only = true;
  return c;
}

bool of_adapter(const std::string& name) { return name.find(".lora_") != std::string::npos; }

std::vector<char> bytes_of(const Tensor& t) {
  const char* data = static_cast<const char*>(t.data);
  return {data, data + t.bytes()};
}

/// Runs two steps on one of two ranks; what is not as it should be.
std::vector<std::string> complaints_of(const app::Config& c, const MadeBatch& batch, comm::Communicator& world) {
  std::vector<std::string> list;
  const auto expect = [&](bool good, const std::string& what) {
    if (!good) list.push_back(fmt::format("rank {}: {}", world.rank(), what));
  };
  const Stream stream = cpu_stream();
  app::Model model = app::build_model(c, app::make_layout(c, kSizes).layout, world.rank());
  make_stores(model, world, stream);
  initialize_model(model, 1, stream);
  // Two layers, four tensors each: A (4, 64) twice, B of q (64, 4), B of v (32, 4).
  const std::int64_t trained = 2 * (2 * 4 * 64 + 64 * 4 + 32 * 4);
  std::int64_t gradients = 0, masters = 0;
  std::map<std::string, std::vector<char>> before;
  for (const run::PlacedParam& p : model.params(false)) {
    const run::ParamState& s = *p.state;
    gradients += s.grad.defined() ? s.grad.numel() : 0;
    if (of_adapter(p.name)) masters += s.master.numel();
    if (!of_adapter(p.name)) {
      expect(!s.grad.defined(), p.name + " has a gradient");
      expect(s.master.data == s.compute.data && s.compute.dtype == c.train.precision, p.name + " has a master");
    }
    before[p.name] = bytes_of(of_adapter(p.name) ? s.master : s.compute);
  }
  expect(gradients == (c.parallel.zero[1] ? trained / 2 : trained), fmt::format("{} gradients", gradients));
  expect(masters == (c.parallel.zero[1] ? trained / 2 : trained), fmt::format("{} master weights", masters));
  std::vector<run::OptimizedParam> params = run::optimized_params(model.placed(), model.uses);
  expect(params.size() == 8, fmt::format("{} parameters with moments", params.size()));
  run::Optimizer optimizer(std::move(params), {.max_grad_norm = 1.0}, &world, stream);

  const app::PlanContext context{&c, &model, nullptr, true};
  const auto planned = app::plan_step(context, batch.metas, 0, batch.samples);
  app::Engine engine(c, world, model, caps_of(*planned), stream);
  std::vector<data::LoadedSample> own;
  for (const std::int32_t i : planned->own) own.push_back(batch.loaded[static_cast<std::size_t>(i)]);
  for (int step = 0; step < 2; ++step) {
    engine.run(*planned, own, 1.0 / planned->weight, true,
               [&] { optimizer.step(1e-2, [](const std::string&) { return true; }); });
    for (const int s : model.own) model.stores[static_cast<std::size_t>(s)]->weights_changed();
  }
  for (const run::PlacedParam& p : model.params(false)) {
    // Of an adapter what this rank owns: under ZeRO-1 the next step gathers the rest.
    const run::ParamState& s = *p.state;
    if (of_adapter(p.name) && s.master.numel() == 0) continue;
    const bool same = bytes_of(of_adapter(p.name) ? s.master : s.compute) == before.at(p.name);
    expect(same == !of_adapter(p.name), p.name + (same ? " did not change" : " changed"));
  }
  return list;
}

}  // namespace

TEST_CASE("only adapters have gradients, masters of their own and moments, and only they change") {
  for (const DType precision : {DType::f32, DType::bf16}) {
    for (const bool zero : {false, true}) {
      INFO(name_of(precision) << (zero ? " zero 1" : ""));
      MediumShape picture;
      app::Config c = lora_config(precision, &picture);
      const MadeBatch batch =
          make_batch({{20, true, 7}, {9, false, 4}, {30, true, 12}, {17, false, 9}}, kSmallVocabulary, picture);
      app::MeshConfig mesh;
      mesh.dp = 2;
      mesh.ranks = {0, 1};
      c.parallel.meshes = {mesh};
      c.parallel.mesh_of = {0, 0};
      c.parallel.zero.assign(2, zero);
      std::mutex lock;
      std::vector<std::string> all;
      comm::run_threads(2, [&](comm::Communicator& world) {
        const std::vector<std::string> own = complaints_of(c, batch, world);
        const std::lock_guard guard(lock);
        all.insert(all.end(), own.begin(), own.end());
      });
      CHECK(all == std::vector<std::string>{});
    }
  }
}

TEST_CASE("an adapter that matches nothing and one on a layer that has none are refused with the layers there are") {
  app::Config c = lora_config(DType::f32);
  c.llm.lora->on = {"q_proj", "query_key_value"};
  CHECK_THROWS_WITH(app::build_model(c),
                    Catch::Contains("modules.llm.lora.on") && Catch::Contains("\"query_key_value\"") &&
                        Catch::Contains("down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"));
  c.llm.lora->on = {"lm_head"};
  CHECK_THROWS_WITH(app::build_model(c), Catch::Contains("\"lm_head\" matches no linear layer of llm"));
  // A convolution is no linear layer.
  c.llm.lora.reset();
  c.encoders[0].lora = app::LoraConfig{.on = {"patch_embedding"}, .rank = 4, .alpha = 4};
  CHECK_THROWS_WITH(app::build_model(c), Catch::Contains("modules.eyes.lora.on") && Catch::Contains("fc1"));
}

TEST_CASE("what trains beside adapters follows the module's patterns") {
  const auto names = [](const app::Config& c) {
    std::vector<std::string> list;
    const app::Model model = app::build_model(c);
    for (const run::Stage& stage : model.stages)
      for (const run::ParamSpec& p : models::parameters_of(stage))
        if (p.trainable) list.push_back(canonical_name(p));
    return list;
  };
  app::Config c = lora_config(DType::f32);
  CHECK(names(c).size() == 8);
  for (const std::string& name : names(c)) CHECK(of_adapter(name));
  c.llm.trainable.trainable = {"lora_", "model.norm"};
  CHECK(names(c).size() == 9);
  c.llm.trainable.trainable.reset();
  c.llm.trainable.frozen = {"layers.0.*lora_"};
  CHECK(names(c).size() == 4);
  c.llm.trainable.frozen.clear();
  c.llm.trainable.adapters_only = false;  // `trainable: true`
  CHECK(names(c).size() == 8 + 2 + 1 + 2 * 9);
  c = lora_config(DType::f32);
  c.encoders[0].projector_lora = app::LoraConfig{.on = {"."}, .rank = 2, .alpha = 2};
  c.encoders[0].projector_trainable = {};
  c.encoders[0].projector_trainable.adapters_only = true;
  CHECK(names(c).size() == 8 + 4);
}
