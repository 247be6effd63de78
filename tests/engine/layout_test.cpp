// The release gate: every layout computes the loss and the gradients of one rank.
#include "apps/mmtrain/layout.h"
#include "apps/mmtrain/engine.h"
#include "kernels/backend.h"
#include "parallel/comm/self.h"
#include "parallel/comm/threads.h"
#include "parallel/run/checkpoint_pieces.h"
#include "parallel/run/optimized.h"

#include "tests/support/made_step.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <map>
#include <mutex>

using namespace mmt;
using namespace mmt::test;

namespace {

constexpr std::int64_t kPictureRows = 4;          // (28 / 14)^2 patches
constexpr std::int64_t kPatchCols = 3 * 14 * 14;  // colours of a patch
constexpr std::int64_t kVocabulary = 61;
constexpr int kSteps = 3;
const std::vector<plan::BlockSize> kSizes = {{.rows = 10, .supervised = 0, .source = 8, .out = 8, .tiles = 0},
                                             {.rows = 40, .supervised = 15, .source = 0, .out = 40, .tiles = 0}};

app::Config tiny_config() {
  app::Config c = made_config({64, 48, 4, 4, 4}, 28, {64, 48, 4, 4, 2}, kVocabulary);
  c.train.tokens_per_microbatch = 48;
  return c;
}

void freeze(app::Config& c, const std::string& pattern) {
  app::TrainableRule none;
  none.all = false;
  if (pattern == "all") return;
  if (pattern == "frozen encoder" || pattern == "projector only") c.encoders[0].trainable = none;
  if (pattern == "projector only" || pattern == "frozen llm") c.llm.trainable = none;
  if (pattern == "upper llm") {
    c.encoders[0].trainable = c.encoders[0].projector_trainable = none;
    c.llm.trainable.frozen = {"embed_tokens", "layers.0.", "layers.1."};
  }
}

struct Grid {
  std::string name;
  std::vector<app::MeshConfig> meshes;  // one: `all`
  std::string policy = "1f1b";
  int chunks = 1;
  bool zero = false;
};

app::MeshConfig mesh(int tp, int dp, int pp, std::vector<std::int32_t> ranks,
                     std::vector<std::vector<app::MeshConfig::Part>> stages = {}) {
  app::MeshConfig m;
  m.tp = tp;
  m.dp = dp;
  m.pp = pp;
  m.ranks = std::move(ranks);
  m.stages = std::move(stages);
  return m;
}

std::vector<std::int32_t> ranks(int first, int count) {
  std::vector<std::int32_t> list;
  for (int i = 0; i < count; ++i) list.push_back(first + i);
  return list;
}

void place(app::Config& c, const Grid& grid) {
  c.parallel.meshes = grid.meshes;
  c.parallel.mesh_of = grid.meshes.size() == 1 ? std::vector<int>{0, 0} : std::vector<int>{0, 1};
  c.parallel.policy = grid.policy;
  c.parallel.chunks = grid.chunks;
  c.parallel.zero.assign(2, grid.zero);
}

/// What a run of a few steps computed.
struct Outcome {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<float>> first_grads, grads;  // whole, of the first and the last step
};

MadeBatch batch_of() {
  return make_batch({{20, true, 7}, {9, false, 4}, {30, true, 12}, {17, false, 9}, {12, true, 3}, {25, false, 11}},
                    {kPictureRows, kPatchCols}, kVocabulary);
}

app::RowCaps caps() {
  app::RowCaps c;
  c.llm = {.rows = 48, .supervised = 48, .source = 0, .out = 48, .tiles = 0};
  c.encoders.push_back({.rows = 64, .supervised = 0, .source = 64, .out = 64, .tiles = 0});
  c.encoder_items.push_back(16);
  c.blocks = 8;
  return c;
}

/// One rank's part of the run; rank-local gradients are put into `out` at their places under `lock`.
void run_rank(const app::Config& config, comm::Communicator& world, Outcome& out, std::mutex& lock) {
  const Stream stream = cpu_stream();
  app::Model model = app::build_model(config, app::make_layout(config, kSizes).layout, world.rank());
  make_stores(model, world, stream);
  initialize_model(model, 1, stream);
  const app::PlanContext context{&config, &model, nullptr, true};
  app::Engine engine(config, world, model, caps(), stream);
  std::vector<run::OptimizedParam> params = run::optimized_params(model.placed(), model.uses);
  for (run::OptimizedParam& p : params) p.weight_decay = 0.0;
  run::Optimizer optimizer(std::move(params), {.max_grad_norm = config.train.max_grad_norm}, &world, stream);
  const MadeBatch batch = batch_of();
  for (int step = 0; step < kSteps; ++step) {
    const auto planned = app::plan_step(context, batch.metas, step, batch.samples);
    std::vector<data::LoadedSample> own;
    for (const std::int32_t i : planned->own) own.push_back(batch.loaded[static_cast<std::size_t>(i)]);
    run::Optimizer::Result result;
    const auto results = engine.run(*planned, own, 1.0 / planned->weight, true, [&] {
      // The gradients before clipping.
      if (step == 0 || step + 1 == kSteps) {
        const std::lock_guard guard(lock);
        for (const run::PlacedParam& p : model.params(true)) {
          if (!p.first_use || p.copies.index != 0) continue;
          const run::ParamSpec& spec = *p.state->spec;
          std::vector<float>& whole = (step == 0 ? out.first_grads : out.grads)[p.name];
          whole.resize(static_cast<std::size_t>(run::num_elements(spec.shape)), NAN);
          run::put_range(spec.shape, {spec.box.offset, spec.box.shape}, p.state->owned_first,
                         p.state->grad.span<float>(), whole);
        }
      }
      result = optimizer.step(1e-3, [](const std::string&) { return true; });
    });
    for (const int s : model.own) model.stores[static_cast<std::size_t>(s)]->weights_changed();
    double loss = 0.0;
    for (const app::SampleResult& r : results) loss += r.loss / planned->weight;
    world.all_reduce(Tensor(&loss, DType::f64, {1}), comm::ReduceOp::sum);
    if (world.rank() != 0) continue;
    out.losses.push_back(loss);
    out.norms.push_back(result.grad_norm);
  }
}

Outcome run_grid(const app::Config& config, int num_ranks) {
  Outcome out;
  std::mutex lock;
  comm::ThreadOptions options;
  options.seed = 7;
  comm::run_threads(
      num_ranks, [&](comm::Communicator& world) { run_rank(config, world, out, lock); }, options);
  return out;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  return std::sqrt(sum);
}
double norm(const std::vector<float>& a) {
  double sum = 0.0;
  for (const float x : a) sum += static_cast<double>(x) * static_cast<double>(x);
  return std::sqrt(sum);
}

/// || a - b || beyond share * max(|| a ||, floor), by name; the first one.
std::string first_difference(const std::map<std::string, std::vector<float>>& one,
                             const std::map<std::string, std::vector<float>>& other, double share, double floor) {
  if (other.size() != one.size()) return "the set of gradients";
  for (const auto& [name, grad] : one) {
    const auto found = other.find(name);
    if (found == other.end() || found->second.size() != grad.size()) return name;
    if (!(distance(grad, found->second) <= share * std::max(norm(grad), floor))) return name;
  }
  return "";
}

/// Names the first difference. Gradients of the first step differ by the order of f32 sums alone: 1e-5 of their norm,
/// where parameters whose true gradient is zero (key biases) carry rounding of the size of the others', hence the floor
/// of a hundredth of the whole norm. Those of the third step come after two adaptive updates, which turn rounding of
/// small gradients into differences of weights of the order of rate * rounding / gradient: the bound is wider, a wrong
/// factor or a lost row is larger by orders.
std::string differs(const Outcome& one, const Outcome& other) {
  for (std::size_t i = 0; i < kSteps; ++i) {
    if (std::abs(other.losses.at(i) - one.losses[i]) > 2e-5 * one.losses[i])
      return fmt::format("the loss of step {}", i);
    if (std::abs(other.norms.at(i) - one.norms[i]) > 2e-4 * one.norms[i]) return fmt::format("the norm of step {}", i);
  }
  const std::string first = first_difference(one.first_grads, other.first_grads, 1e-5, 1e-2 * one.norms.front());
  return first.empty() ? first_difference(one.grads, other.grads, 1e-3, 1e-3 * one.norms.back()) : first;
}
void compare(const Outcome& one, const Outcome& other) { CHECK(differs(one, other) == ""); }

using Stages = std::vector<std::vector<app::MeshConfig::Part>>;
const Stages kTwo = {{{"eyes", "embed-projector"}, {"llm", "embed-0"}}, {{"llm", "1-head"}}};
const Stages kTwoEarly = {{{"eyes", "0-1"}}, {{"eyes", "2-3"}, {"llm", "0-3"}}};
const Stages kThree = {{{"eyes", "0-3"}}, {{"llm", "embed-1"}}, {{"llm", "2-head"}}};
const Stages kFour = {{{"eyes", "0-1"}},
                      {{"eyes", "2-3"}, {"llm", "embed"}},
                      {{"llm", "0-2"}},
                      {
                          {"llm", "3"},
                      }};
const Stages kChunks = {{{"eyes", "0-1"}}, {{"eyes", "2-3"}}, {{"llm", "0-1"}}, {{"llm", "2-3"}}};

std::vector<Grid> grids() {
  std::vector<Grid> list;
  list.push_back({"dp 2", {mesh(1, 2, 1, ranks(0, 2))}});
  list.push_back({"dp 2 zero 1", {mesh(1, 2, 1, ranks(0, 2))}, "1f1b", 1, true});
  for (const char* policy : {"gpipe", "1f1b", "zero-bubble", "list"}) {
    list.push_back({fmt::format("pp 2 {}", policy), {mesh(1, 1, 2, ranks(0, 2), kTwo)}, policy});
    list.push_back(
        {fmt::format("pp 2 inside the encoder {}", policy), {mesh(1, 1, 2, ranks(0, 2), kTwoEarly)}, policy});
    list.push_back({fmt::format("pp 3 {}", policy), {mesh(1, 1, 3, ranks(0, 3), kThree)}, policy});
    list.push_back({fmt::format("pp 4 {}", policy), {mesh(1, 1, 4, ranks(0, 4), kFour)}, policy});
  }
  list.push_back({"interleaved", {mesh(1, 1, 2, ranks(0, 2), kChunks)}, "interleaved", 2});
  list.push_back({"dp 2 pp 2", {mesh(1, 2, 2, ranks(0, 4), kTwo)}});
  list.push_back({"dp 2 pp 2 zero 1", {mesh(1, 2, 2, ranks(0, 4), kTwo)}, "1f1b", 1, true});
  list.push_back({"dp 2 pp 4", {mesh(1, 2, 4, ranks(0, 8), kFour)}});
  list.push_back({"pp 3 auto", {mesh(1, 1, 3, ranks(0, 3))}});
  list.push_back({"interleaved auto", {mesh(1, 1, 2, ranks(0, 2))}, "interleaved", 2});
  list.push_back({"own ranks auto", {mesh(1, 1, 2, ranks(0, 2)), mesh(1, 1, 2, ranks(2, 2))}});
  list.push_back({"own ranks", {mesh(1, 1, 1, ranks(0, 1)), mesh(1, 1, 1, ranks(1, 1))}});
  list.push_back({"own ranks llm pp 2",
                  {mesh(1, 1, 1, ranks(0, 1)), mesh(1, 1, 2, ranks(1, 2), {{{"llm", "0-1"}}, {{"llm", "2-3"}}})}});
  list.push_back({"own ranks both pp 2 dp 2",
                  {mesh(1, 2, 2, ranks(0, 4), {{{"eyes", "0-1"}}, {{"eyes", "2-3"}}}),
                   mesh(1, 2, 2, ranks(4, 4), {{{"llm", "0-1"}}, {{"llm", "2-3"}}})}});
  list.push_back({"tp 2", {mesh(2, 1, 1, ranks(0, 2))}});
  list.push_back({"tp 4", {mesh(4, 1, 1, ranks(0, 4))}});
  list.push_back({"tp 2 pp 2", {mesh(2, 1, 2, ranks(0, 4), kTwo)}});
  list.push_back({"tp 2 dp 2", {mesh(2, 2, 1, ranks(0, 4))}});
  list.push_back({"tp 2 dp 2 pp 2 zero 1", {mesh(2, 2, 2, ranks(0, 8), kTwo)}, "zero-bubble", 1, true});
  list.push_back({"own ranks tp 1 and 2", {mesh(1, 1, 1, ranks(0, 1)), mesh(2, 1, 1, ranks(1, 2))}});
  list.push_back({"own ranks tp 2 and 1", {mesh(2, 1, 1, ranks(0, 2)), mesh(1, 1, 1, ranks(2, 1))}});
  return list;
}

int count_ranks(const Grid& grid) {
  std::size_t n = 0;
  for (const app::MeshConfig& m : grid.meshes) n += m.ranks.size();
  return static_cast<int>(n);
}

/// Every grid under one frozen pattern against one rank.
void check_pattern(const char* pattern) {
  app::Config config = tiny_config();
  freeze(config, pattern);
  place(config, {"one rank", {mesh(1, 1, 1, ranks(0, 1))}});
  const Outcome one = run_grid(config, 1);
  for (const Grid& grid : grids()) {
    INFO(pattern << ": " << grid.name);
    place(config, grid);
    compare(one, run_grid(config, count_ranks(grid)));
  }
}

}  // namespace

TEST_CASE("layouts equal one rank: all trainable") { check_pattern("all"); }
TEST_CASE("layouts equal one rank: frozen encoder") { check_pattern("frozen encoder"); }
TEST_CASE("layouts equal one rank: projector only") { check_pattern("projector only"); }
TEST_CASE("layouts equal one rank: frozen LLM") { check_pattern("frozen llm"); }
TEST_CASE("layouts equal one rank: upper layers of the LLM") { check_pattern("upper llm"); }

TEST_CASE("a comparison of layouts notices one gradient that is too large and a loss that is not the same") {
  app::Config config = tiny_config();
  place(config, {"one rank", {mesh(1, 1, 1, ranks(0, 1))}});
  const Outcome one = run_grid(config, 1);
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
  wrong.norms[0] *= 1.001;
  CHECK(differs(one, wrong) == "the norm of step 0");
}
