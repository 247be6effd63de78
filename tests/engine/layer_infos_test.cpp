// What planning believes that layers take, against what stores, optimizer and executor take.
#include "apps/mmtrain/layer_infos.h"

#include "apps/mmtrain/engine.h"
#include "apps/mmtrain/layout.h"
#include "apps/mmtrain/memory.h"
#include "apps/mmtrain/predict.h"
#include "kernels/backend.h"
#include "parallel/comm/self.h"
#include "parallel/comm/threads.h"
#include "parallel/plan/partition.h"
#include "parallel/run/checkpoint_pieces.h"
#include "parallel/run/param_bytes.h"

#include "tests/support/made_step.h"

#include <catch2/catch.hpp>

#include <mutex>
#include <numeric>
#include <set>

using namespace mmt;
using namespace mmt::test;

namespace {

// What rounding up and guard zones may cost a tensor.
const std::int64_t kSlack = static_cast<std::int64_t>(Arena::footprint(1));

struct Case {
  std::string pattern = "all";
  DType precision = DType::f32;
  int tp = 1, dp = 1;
  bool zero = false;
};

app::Config config_of(const Case& k) {
  app::Config c = made_config({64, 48, 3, 4, 2}, 61);
  add_eyes(c, {64, 48, 3, 4, 4}, 28);
  c.train.tokens_per_microbatch = 48;
  c.train.precision = k.precision;
  app::TrainableRule none;
  none.all = false;
  if (k.pattern == "projector only") c.encoders[0].trainable = c.llm.trainable = none;
  if (k.pattern == "upper llm") {
    c.encoders[0].trainable = c.encoders[0].projector_trainable = none;
    c.llm.trainable.frozen = {"embed_tokens", "layers.0."};
  }
  if (k.pattern == "adapters") {
    c.encoders[0].trainable = c.encoders[0].projector_trainable = none;
    c.llm.lora = app::LoraConfig{.on = {"_proj"}, .rank = 4, .alpha = 8, .dropout = 0.1};
    c.llm.trainable.adapters_only = true;
  }
  app::MeshConfig mesh;
  mesh.tp = k.tp;
  mesh.dp = k.dp;
  mesh.ranks.resize(static_cast<std::size_t>(k.tp * k.dp));
  std::iota(mesh.ranks.begin(), mesh.ranks.end(), 0);
  c.parallel.meshes = {mesh};
  c.parallel.mesh_of = {0, 0};
  c.parallel.zero.assign(2, k.zero);
  return c;
}

app::RowCaps caps() {
  app::RowCaps c;
  c.llm = {.rows = 48, .supervised = 48, .source = 0, .out = 48, .tiles = 0};
  c.encoders.push_back({.rows = 60, .supervised = 0, .source = 48, .out = 48, .tiles = 0});
  c.encoder_items.push_back(12);
  c.blocks = 4;
  return c;
}

/// Sums over the units of a module, for its largest block.
struct Sums {
  std::int64_t kept = 0, held = 0, stash = 0, work = 0, fixed = 0;
  std::int64_t tensors = 0;  ///< whose rounding counts
};

Sums sums_of(const std::vector<plan::LayerInfo>& infos, const run::Stage& stage, const plan::BlockSize& cap) {
  Sums s;
  for (std::size_t u = 0; u < infos.size(); ++u) {
    const plan::LayerInfo& info = infos[u];
    const plan::PlannedLayer p = planned(info, plan::CostModel({1, 1, 1}), cap);
    s.kept += p.kept;
    s.held += p.held;
    s.stash += p.stash;
    s.work = std::max(s.work, p.work + p.stash);
    s.fixed += p.fixed_bytes;
    s.tensors +=
        static_cast<std::int64_t>(stage.units[u]->plan().tensors.size() + stage.units[u]->plan().inputs.size()) + 1;
  }
  return s;
}

/// Bytes of the arena of that name.
std::int64_t arena(const app::Engine& engine, const std::string& name) {
  for (const auto& a : engine.arenas()) {
    if (a.name == name) return a.capacity;
  }
  return 0;
}

/// What weights, gradients and moments really take.
std::int64_t state_bytes(app::Model& model, int stage) {
  std::int64_t bytes = 0;
  run::ParameterStore& store = *model.stores[static_cast<std::size_t>(stage)];
  const bool split = model.zero[model.module_of(stage)];
  for (const run::ParamState& p : store.params()) {
    const std::int64_t whole = run::num_elements(p.spec->box.shape);
    bytes += whole * size_of(p.spec->dtype);
    if (!p.spec->trainable) continue;
    const std::int64_t width = size_of(master_of(p.spec->dtype));
    MMT_CHECK(split || p.owned_count == whole, "{} is split", p.spec->name);
    bytes += whole * width + 2 * p.owned_count * width;
    if (p.master.data != p.compute.data) bytes += p.master.bytes();
  }
  return bytes + store.packed_bytes();
}

}  // namespace

TEST_CASE("layers take in plans what arenas and stores take", "[layer_infos]") {
  const auto pattern = GENERATE(as<std::string>(), "all", "projector only", "upper llm", "adapters");
  const auto precision = GENERATE(DType::f32, DType::bf16);
  const bool recompute = GENERATE(false, true);
  app::Config config = config_of({.pattern = pattern, .precision = precision});
  config.train.recompute.assign(2, recompute ? run::Recompute::full : run::Recompute::none);
  INFO(pattern << " " << name_of(precision) << " recompute " << recompute);
  const Stream stream = cpu_stream();
  const auto world = comm::make_self();
  app::Model model = app::build_model(config, app::uncut_layout(config), 0);
  make_stores(model, *world, stream);
  app::initialize_model(model, 1, stream);
  const app::Engine engine(config, *world, model, caps(), stream);
  const auto infos = layer_infos(config, model, caps(), stream);
  std::int64_t work = 0;
  for (int m = 0; m < 2; ++m) {
    const run::Stage& stage = model.stages[static_cast<std::size_t>(m)];
    REQUIRE(infos[static_cast<std::size_t>(m)].size() == stage.units.size());
    const Sums s = sums_of(infos[static_cast<std::size_t>(m)], stage, app::cap_of(caps(), static_cast<std::size_t>(m)));
    const std::int64_t slack = s.tensors * kSlack;
    const auto name = [&](const char* part) { return fmt::format("{} of stage {}", part, m); };
    // Every tensor once: a missing or a doubled one is larger than all rounding together.
    if (!recompute) {
      CHECK(s.kept >= arena(engine, name("kept")));
      CHECK(s.held >= arena(engine, name("held")));
      CHECK(s.kept <= arena(engine, name("kept")) + slack);
      CHECK(s.held <= arena(engine, name("held")) + slack);
    } else {
      // Inputs alone, which a plan has in `held` whether BW reads them or not.
      const std::int64_t both = arena(engine, name("kept")) + arena(engine, name("held"));
      CHECK(s.kept + s.held >= both);
      CHECK(s.kept + s.held <= both + slack);
    }
    work = std::max(work, s.work);
    const std::int64_t state = state_bytes(model, m);
    CHECK(s.fixed >= state);
    CHECK(s.fixed <=
          state + 6 * kSlack * static_cast<std::int64_t>(model.stores[static_cast<std::size_t>(m)]->params().size()));
    CHECK(run::param_bytes(stage, stream).total() >= state);
    for (std::size_t u = 0; u < stage.units.size(); ++u) {
      const plan::LayerInfo& info = infos[static_cast<std::size_t>(m)][u];
      CHECK(info.backward == stage.units[u]->plan().needs_backward());
      CHECK(info.trains == stage.units[u]->plan().trains());
      if (!info.backward) CHECK(info.memory.gradients + info.memory.optimizer + info.memory.master == 0);
    }
  }
  CHECK(work >= arena(engine, "work"));
  CHECK(work <= 2 * arena(engine, "work"));
}

TEST_CASE("parts and shards of parameters take in plans what stores take", "[layer_infos]") {
  const auto k = GENERATE(Case{"all", DType::f32, 2, 1, false}, Case{"all", DType::bf16, 1, 2, true},
                          Case{"upper llm", DType::bf16, 2, 2, true}, Case{"projector only", DType::f32, 2, 2, false},
                          Case{"adapters", DType::bf16, 2, 2, false});
  const app::Config config = config_of(k);
  INFO(k.pattern << " " << name_of(k.precision) << " tp " << k.tp << " dp " << k.dp << " zero " << k.zero);
  const Stream stream = cpu_stream();
  std::mutex lock;
  std::vector<std::int64_t> most(2, 0), params(2, 0), planned(2, 0);
  comm::run_threads(k.tp * k.dp, [&](comm::Communicator& world) {
    app::Model model = app::build_model(config, app::uncut_layout(config), world.rank());
    make_stores(model, world, stream);
    app::initialize_model(model, 1, stream);
    const auto infos = layer_infos(config, model, caps(), stream);
    const std::lock_guard guard(lock);
    for (std::size_t m = 0; m < 2; ++m) {
      most[m] = std::max(most[m], state_bytes(model, static_cast<int>(m)));
      params[m] = static_cast<std::int64_t>(model.stores[m]->params().size());
      if (world.rank() != 0) continue;
      for (const plan::LayerInfo& info : infos[m]) planned[m] += info.memory.fixed();
    }
  });
  for (std::size_t m = 0; m < 2; ++m) {
    // An even share of each parameter stands for the share of a bucket that a lane really gets: beside rounding, one
    // lane may have the whole of a parameter whose neighbour is all another's.
    const double share = k.zero ? 0.15 : 0.0;
    CHECK(planned[m] >= static_cast<std::int64_t>((1.0 - share) * static_cast<double>(most[m])));
    CHECK(planned[m] <=
          static_cast<std::int64_t>((1.0 + share) * static_cast<double>(most[m])) + 6 * kSlack * params[m]);
  }
}

TEST_CASE("layers of one kind share measurements, others do not", "[layer_infos]") {
  const app::Config config = config_of({.pattern = "upper llm"});
  const app::Model model = app::build_model(config, app::uncut_layout(config), 0);
  const auto infos = layer_infos(config, model, caps(), cpu_stream());
  const auto& llm = infos[1];
  CHECK(llm[1].name == "llm.layers.0");
  CHECK(llm[1].kind == llm[2].kind);  // frozen and trained: FLOPs tell them apart
  CHECK_FALSE(llm[1].backward);
  CHECK(llm[2].trains);
  CHECK(llm[3].kind.starts_with("llama layer, "));
  std::set<std::string> kinds;
  for (const auto& module : infos) {
    for (const plan::LayerInfo& info : module) kinds.insert(info.kind);
  }
  CHECK(kinds.size() == 7);  // stem, layer, exit, projector; embedding, layer, head
  // The same family at another width is another kind.
  app::Config wide = config;
  wide.llm.spec.intermediate = 96;
  const app::Model other = app::build_model(wide, app::uncut_layout(wide), 0);
  CHECK(layer_infos(wide, other, caps(), cpu_stream())[1][1].kind != llm[1].kind);
}

TEST_CASE("what a plan says of every rank is what its engine takes, to the byte", "[layer_infos]") {
  const auto policy = GENERATE(as<std::string>(), "1f1b", "gpipe", "zero-bubble");
  const auto level = GENERATE(run::Recompute::none, run::Recompute::selective, run::Recompute::full);
  const auto pattern = GENERATE(as<std::string>(), "upper llm", "adapters");
  app::Config config = config_of({.pattern = pattern, .tp = 2});
  config.parallel.policy = policy;
  config.train.recompute.assign(2, level);
  app::MeshConfig& mesh = config.parallel.meshes[0];
  mesh.pp = 2;
  mesh.ranks = {0, 1, 2, 3};
  mesh.stages = {{{"eyes", "embed-projector"}, {"llm", "embed-0"}}, {{"llm", "1-head"}}};
  INFO(pattern << " " << policy << " recompute " << static_cast<int>(level));
  const app::Workload workload = app::workload_of({caps().encoders[0], caps().llm}, caps().blocks);
  const app::LayoutChoice choice = app::make_layout(config, workload, app::Machine());
  const Stream stream = cpu_stream();
  std::mutex lock;
  std::vector<std::int64_t> arenas(4, 0), planned(4, 0);
  comm::run_threads(4, [&](comm::Communicator& world) {
    app::Model model = app::build_model(config, choice.layout, world.rank());
    choice.apply(model);
    make_stores(model, world, stream);
    const app::Engine engine(config, world, model, caps(), stream);
    const std::lock_guard guard(lock);
    arenas[static_cast<std::size_t>(world.rank())] = engine.capacity_bytes();
  });
  app::Model model = app::build_model(config, choice.layout, 0);
  choice.apply(model);
  const app::RowCaps sizes = caps();
  const app::Machine machine;
  const app::Predictor predictor(config, model, sizes, machine, stream);
  const auto memory = predictor.memory(1);
  REQUIRE(memory.size() == 4);
  for (std::size_t r = 0; r < 4; ++r) planned[r] = memory[r].activations;
  CHECK(planned == arenas);
}
