// What happens before the first step: cutting a large model into stages, and checking and simulating a long program.
#include "bench/bench.h"

#include "parallel/plan/layout.h"
#include "parallel/plan/partition_modules.h"
#include "parallel/plan/passes.h"
#include "parallel/plan/schedule.h"
#include "parallel/plan/simulate.h"
#include "parallel/plan/verify.h"

#include <numeric>

namespace mmt::bench {
namespace {

using namespace plan;

std::vector<PlannedLayer> layers(int count, LayerTime time, bool backward) {
  PlannedLayer layer;
  layer.time = time;
  layer.backward = layer.trains = backward;
  layer.fixed_bytes = 1 << 20;
  layer.kept = backward ? 1 << 16 : 0;
  layer.out_bytes = 1 << 12;
  layer.grad_bytes = backward ? 1 << 12 : 0;
  return std::vector<PlannedLayer>(static_cast<std::size_t>(count), layer);
}

/// 120 layers: two frozen towers with projectors that may run on either side, and an LLM.
void measure_partition(Bench& bench, const std::string& name) {
  std::vector<ModuleLayers> modules(3);
  modules[0] = {.name = "eyes",
                .layers = layers(40, {.forward = 900}, false),
                .projector = layers(1, {90, 0, 90, 0}, true),
                .side = ProjectorSide::either};
  modules[1] = {.name = "ears",
                .layers = layers(31, {.forward = 500}, false),
                .projector = layers(1, {50, 0, 50, 0}, true),
                .side = ProjectorSide::either};
  modules[2] = {.name = "llm", .layers = layers(47, {2000, 2000, 0, 2000}, true)};
  CutOptions options;
  options.memory = 64 << 20;
  options.links = {{false, 10, 10'000}, {false, 30, 1'000}};
  const Seconds seconds = bench.time([&] {
    partition_modules(modules, 64, options, 4);
    cut_chain(joined_chain(modules), 64, options);
  });
  bench.rate(name, "plans/s", 1.0, seconds, "wanted", 10.0);
}

/// A chain of 64 stages that all train, a rank each, and 256 blocks under 1f1b.
void measure_program(Bench& bench, const std::vector<std::string>& names) {
  constexpr int kStages = 64, kBlocks = 256;
  LayoutSpec spec;
  spec.modules = {{"llm", kStages}};
  std::vector<int> places(kStages);
  std::iota(places.begin(), places.end(), 0);
  spec.meshes = {Mesh(1, 1, 1, kStages, places)};
  spec.runs.emplace_back();
  for (int s = 0; s < kStages; ++s) spec.runs.back().push_back({{0, s, s + 1}});
  const std::vector<StageTraits> traits(kStages, {.needs_backward = true, .trains = true});
  BlockSize size;
  size.rows = size.out = 8;
  StageGraph graph = lane_graph(plan::Layout(spec), 0, traits, {std::vector<BlockSize>(kBlocks, size)}, true);
  const std::vector<Program> programs = make_programs(graph, generate(shape_of(graph, places), {}), {.end = {}});
  bench.rate(names[0], "programs/s", 1.0, bench.time([&] { verify(graph, programs); }), "wanted", 1.0);
  const StageTimes times{.blocks = {{100, 100, 100, 0}}};
  const ActionCost cost = cost_of_stages(programs, std::vector<StageTimes>(kStages, times));
  SimulateOptions options;
  options.transfers.intra = {.overlapped = true, .latency = 3, .bytes_per_us = 1000};
  options.transfers.row_bytes.assign(kStages - 1, 4);
  bench.rate(names[1], "programs/s", 1.0, bench.time([&] { simulate(graph, programs, cost, options); }), "wanted", 1.0);
}

}  // namespace

void add_planning(Cases& cases) {
  const std::string partition = "plan/partition/120layers/64places";
  cases.push_back({{partition}, [=](Bench& bench) { measure_partition(bench, partition); }});
  const std::vector<std::string> names = {"plan/verify/64stages/256blocks", "plan/simulate/64stages/256blocks"};
  cases.push_back({names, [=](Bench& bench) { measure_program(bench, names); }});
}

}  // namespace mmt::bench
