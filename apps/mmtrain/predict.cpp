#include "apps/mmtrain/predict.h"

#include "apps/mmtrain/memory.h"
#include "apps/mmtrain/stage_setup.h"
#include "core/at.h"
#include "parallel/run/param_bytes.h"

#include <algorithm>

namespace mmt::app {

std::int64_t most_memory(const std::vector<RankMemory>& ranks) {
  std::int64_t most = 0;
  for (const RankMemory& m : ranks) most = std::max(most, m.total());
  return most;
}

Predictor::Predictor(const Config& config, const Model& model, const RowCaps& caps, const Machine& machine,
                     const Stream& stream)
    : config_(config),
      model_(model),
      caps_(caps),
      machine_(machine),
      stream_(stream),
      infos_(layer_infos(config, model, caps, stream)) {}

std::span<const plan::LayerInfo> Predictor::units(int stage) const {
  const plan::UnitSpan& span = model_.layout.stages()[at(stage)].units;
  return std::span(infos_[at(span.module)]).subspan(at(span.first), at(span.last - span.first));
}

plan::Ns Predictor::reduction_of(int stage) const {
  const std::int64_t lanes = model_.layout.lanes();
  std::int64_t bytes = 0;
  for (const plan::LayerInfo& info : units(stage)) bytes += info.memory.gradients;
  if (lanes == 1 || bytes == 0) return 0;
  const int first = model_.layout.ranks_of(stage, 0).front();
  const int last = model_.layout.ranks_of(stage, static_cast<int>(lanes) - 1).front();
  // Reduce-scatter and all-gather: every rank sends and receives so much.
  return link_among(first, last).time(2 * (lanes - 1) * (bytes / lanes));
}

const plan::Link& Predictor::link_among(int first, int last) const {
  const int node = machine_.ranks_per_node;
  return node == 0 || first / node == last / node ? machine_.intra : machine_.inter;
}

plan::LayerTime Predictor::collectives_of(int stage, const run::UnitPlan& unit, const plan::BlockSize& size) const {
  const std::vector<int> ranks = model_.layout.ranks_of(stage, model_.lane);
  const auto tp = static_cast<std::int64_t>(ranks.size());
  if (tp == 1) return {};
  const plan::Link& link = link_among(ranks.front(), ranks.back());
  const auto time = [&](run::Phase phase) {
    plan::Ns sum = 0;
    for (const run::UnitPlan::Collective& c : unit.collectives(phase, run::Purpose::train, size)) {
      // What each rank sends and receives of the whole tensor.
      const std::int64_t parts = c.op == run::InnerEvent::Op::all_reduce ? 2 * (tp - 1) : tp - 1;
      sum += link.time(c.bytes * parts / tp);
    }
    return sum;
  };
  return {time(run::Phase::forward), time(run::Phase::backward_input), time(run::Phase::backward_weight),
          time(run::Phase::recompute)};
}

plan::Ns Predictor::update_of(int place) const {
  std::int64_t moments = 0;
  for (std::size_t s = 0; s < model_.stages.size(); ++s) {
    if (model_.layout.stages()[s].place != place) continue;
    for (const plan::LayerInfo& info : units(static_cast<int>(s))) moments += info.memory.optimizer;
  }
  // AdamW reads weight, both moments and gradient and writes all but the last: seven numbers for two.
  return moments == 0 ? 0 : machine_.local.time(moments * 7 / 2);
}

std::vector<plan::StageTimes> Predictor::times(const BlockSizes& sizes) const {
  std::vector<plan::StageTimes> times;
  for (std::size_t s = 0; s < model_.stages.size(); ++s) {
    const auto stage = static_cast<int>(s);
    plan::StageTimes& t = times.emplace_back();
    for (const plan::BlockSize& size : sizes[model_.module_of(stage)]) {
      plan::LayerTime& block = t.blocks.emplace_back();
      for (std::size_t u = 0; u < model_.stages[s].units.size(); ++u) {
        const plan::LayerInfo& info = units(stage)[u];
        plan::LayerTime inner = collectives_of(stage, model_.stages[s].units[u]->plan(), size);
        if (!info.recompute) inner.recompute = 0;
        block += machine_.costs.time_of(info, size);
        block += inner;
      }
    }
    t.reduce = reduction_of(stage) / std::max(1, model_.end.num_buckets(stage));
    t.optimize = update_of(model_.layout.stages()[s].place);
  }
  return times;
}

plan::SimulateOptions Predictor::options(const plan::StageGraph& graph, std::span<const plan::Program> programs) const {
  plan::SimulateOptions o;
  o.transfers = machine_.transfers(model_.layout.num_ranks());
  for (const plan::Edge& edge : graph.edges) {
    const plan::LayerInfo& last = units(edge.producer).back();
    o.transfers.row_bytes.push_back(last.out_bytes({.rows = 1, .supervised = 0, .source = 0, .out = 0, .tiles = 0}) +
                                    last.out_bytes({.rows = 0, .supervised = 0, .source = 0, .out = 1, .tiles = 0}));
  }
  const plan::Wiring wiring(graph);
  for (const plan::StageInfo& stage : graph.stages) {
    if (stage.ranks.size() > 1) o.groups.push_back({stage.id, stage.ranks, true, true});
    run::StageSetup setup = stage_setup(model_, caps_, stage.id);
    for (const plan::Program& p : programs) {
      if (std::ranges::find(stage.ranks, p.rank) == stage.ranks.end()) continue;
      setup.live = plan::live_blocks(wiring, p, stage.id);
      break;
    }
    const run::StageMemory m = run::stage_memory(setup, stream_);
    o.block_bytes.push_back(
        {.kept = m.kept, .held = m.held, .stash = m.stash, .restored = m.restored, .ports = m.ports, .work = m.work});
  }
  for (const plan::Program& p : programs) {
    auto& fixed = o.fixed_bytes;
    if (fixed.size() <= at(p.rank)) fixed.resize(at(p.rank) + 1, 0);
    for (const int s : model_.layout.stages_on(p.rank))
      fixed[at(p.rank)] += run::param_bytes(model_.stages[at(s)], stream_, state_shards(model_, s)).total();
  }
  return o;
}

plan::Timeline Predictor::timeline(const plan::StageGraph& graph, std::span<const plan::Program> programs,
                                   const BlockSizes& sizes) const {
  return plan::simulate(graph, programs, plan::cost_of_stages(programs, times(sizes)), options(graph, programs));
}

std::vector<RankMemory> Predictor::memory(int num_blocks) const {
  std::vector<RankMemory> list;
  for (const auto& [rank, alive] : most_alive(model_, caps_)) list.push_back(memory(rank, alive, num_blocks));
  return list;
}

RankMemory Predictor::memory(int rank, const std::vector<plan::LiveBlocks>& alive, int num_blocks) const {
  RankMemory memory;
  std::int64_t work = 0;
  for (const int s : model_.layout.stages_on(rank)) {
    const run::ParamBytes params = run::param_bytes(model_.stages[at(s)], stream_, state_shards(model_, s));
    memory.parameters += params.compute + params.packed;
    memory.gradients += params.gradients;
    memory.optimizer += params.moments + params.master;
    run::StageSetup setup = stage_setup(model_, caps_, s);
    setup.live = alive[at(s)];
    run::StageMemory stage = run::stage_memory(setup, stream_);
    work = std::max(work, stage.work);
    stage.work = 0;
    memory.activations += stage.total(setup.live);
    memory.rows += num_blocks * rows_capacity(config_, model_, caps_, s).bytes();
  }
  memory.activations += work;
  return memory;
}

}  // namespace mmt::app
