#include "apps/mmtrain/layer_infos.h"

#include "apps/mmtrain/memory.h"
#include "parallel/run/executor.h"
#include "parallel/run/param_bytes.h"

#include <algorithm>

namespace mmt::app {
namespace {

using run::Life;
using run::Phase;

/// "layer", "embed", "head", "exit", "projector".
std::string part_of(const std::string& unit) {
  const std::size_t dot = unit.rfind('.');
  const std::string last = unit.substr(dot + 1);
  return last.find_first_not_of("0123456789") == std::string::npos ? "layer" : last;
}

std::string kind_of(const std::string& family, const run::UnitPlan& unit, int tp, DType dtype) {
  std::int64_t weights = 0, trainable = 0;
  for (const run::ParamSpec& p : unit.params) {
    std::int64_t n = 1;
    for (const std::int64_t d : p.shape) n *= d;
    weights += n;
    trainable += p.trainable ? n : 0;
  }
  std::string kind = fmt::format("{} {}, {} weights", family, part_of(unit.name), weights);
  // All or none of them: the FLOPs tell. Some: what a FLOP of BW takes depends on which.
  if (trainable > 0 && trainable < weights) kind += fmt::format(" ({} trainable)", trainable);
  if (tp > 1) kind += fmt::format(", tp {}", tp);
  return fmt::format("{}, {}", kind, name_of(dtype));
}

plan::Linear port_bytes(const run::PortPlan& port) {
  return port.count == run::RowCount::port ? plan::Linear{} : run::arena_bytes(port.dtype, port.count, port.cols);
}

plan::LayerMemory memory_of(const run::UnitPlan& unit, run::Recompute recompute, const plan::BlockSize& cap, int shards,
                            const Stream& stream) {
  plan::LayerMemory m;
  const run::ParamBytes params = run::param_bytes(unit, stream, shards);
  m.parameters = params.compute + params.packed;
  m.gradients = params.gradients;
  m.optimizer = params.moments;
  m.master = params.master;

  plan::Linear again;  // made again by selective recompute
  for (const run::TensorSpec& t : unit.tensors) {
    const plan::Linear bytes = run::arena_bytes(t.dtype, t.count, t.cols);
    const bool cheap = recompute == run::Recompute::selective && t.cheap;
    if (t.life == Life::kept) (cheap ? again : m.kept) += bytes;
    if (t.life == Life::held) (cheap ? again : m.held) += bytes;
    // Until BW, what BI restored of it.
    if (t.life == Life::held && recompute != run::Recompute::none && (cheap || recompute == run::Recompute::full))
      m.stash += bytes;
    if (t.life == Life::stash) m.stash += bytes;
  }
  for (const run::PortPlan& port : unit.inputs) {
    if (port.name != "x") continue;  // what an edge fills stands in its buffer
    m.input = port_bytes(port);
    if (port.keep == Life::kept) m.kept += m.input;
    if (port.keep == Life::held) m.held += m.input;
  }
  if (unit.has_output() && unit.output.keep_grad == Life::stash) m.stash += port_bytes(unit.output);

  const auto call = [&](Phase phase) {
    return unit.bytes(Life::scratch, cap) + unit.scratch_bytes(stream, phase, cap);
  };
  const std::int64_t tensors = unit.bytes(Life::kept, cap) + unit.bytes(Life::held, cap);
  // Evaluation keeps nothing: the forward takes all tensors for the call. `full` adds them by itself.
  std::int64_t most = call(Phase::forward) + (recompute == run::Recompute::full ? 0 : tensors);
  if (unit.needs_backward()) {
    std::int64_t back = std::max(call(Phase::backward_input), call(Phase::backward_weight));
    if (recompute != run::Recompute::none) back = std::max(back, call(Phase::recompute));
    most = std::max(most, back + again(cap));
  }
  m.scratch.constant = most + (unit.has_output() ? 2 * port_bytes(unit.output)(cap) : 0);
  return m;
}

}  // namespace

const plan::BlockSize& cap_of(const RowCaps& caps, std::size_t module) {
  return module < caps.encoders.size() ? caps.encoders[module] : caps.llm;
}

plan::Layout uncut_layout(const Config& c) {
  plan::LayoutSpec spec;
  const std::size_t modules = c.encoders.size() + 1;
  for (std::size_t m = 0; m < modules; ++m) spec.modules.push_back({module_name(c, m), whole_module(c, m).last});
  for (std::size_t k = 0; k < c.parallel.meshes.size(); ++k) {
    const MeshConfig& mesh = c.parallel.meshes[k];
    auto count = std::ptrdiff_t{mesh.tp} * mesh.cp * mesh.dp;
    count = std::min(count, std::ssize(mesh.ranks));  // a default mesh has no ranks yet
    std::vector<int> ranks(mesh.ranks.begin(), mesh.ranks.begin() + count);
    if (ranks.empty()) ranks = {0};
    spec.meshes.push_back(plan::Mesh(mesh.tp, mesh.cp, mesh.dp, 1, std::move(ranks)));
    auto& run = spec.runs.emplace_back().emplace_back();
    for (std::size_t m = 0; m < modules; ++m) {
      const plan::UnitSpan units = c.parallel.mesh_of.empty() ? whole_module(c, m) : units_on(c, m, k);
      if (units.first < units.last) run.push_back(units);
    }
  }
  return plan::Layout(std::move(spec));
}

std::vector<std::vector<plan::LayerInfo>> layer_infos(const Config& c, const Model& model, const RowCaps& caps,
                                                      const Stream& stream, std::optional<run::Recompute> everywhere) {
  std::vector<std::vector<plan::LayerInfo>> infos(model.num_modules());
  for (std::size_t s = 0; s < model.stages.size(); ++s) {
    const auto stage = static_cast<int>(s);
    const std::size_t module = model.module_of(stage);
    const std::string& family = module < c.encoders.size() ? c.encoders[module].spec.kind : c.llm.spec.kind;
    const int tp = model.layout.mesh_of(stage).degree(plan::Axis::tp);
    for (std::size_t u = 0; u < model.stages[s].units.size(); ++u) {
      const run::UnitPlan& plan = model.stages[s].units[u]->plan();
      const run::Recompute mode = run::effective(plan, everywhere.value_or(model.recompute[s][u]));
      plan::LayerInfo& info = infos[module].emplace_back();
      info.module = model.layout.modules()[module].name;
      info.name = plan.name;
      info.kind = kind_of(family, plan, tp, c.train.precision);
      info.cost = plan.cost;
      info.memory = memory_of(plan, mode, cap_of(caps, module), state_shards(model, stage), stream);
      info.backward = plan.needs_backward();
      info.trains = plan.trains();
      info.recompute = mode == run::Recompute::full;
      if (plan.has_output()) {
        info.out_bytes = port_bytes(plan.output);
        info.out_bytes.constant = 0;  // a message has no alignment
      }
    }
  }
  return infos;
}

}  // namespace mmt::app
