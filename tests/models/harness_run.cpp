#include "kernels/backend.h"
#include "tests/models/harness.h"

#include "kernels/backend.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

namespace mmt::test {

RunOptions reference_options() {
  RunOptions o;
  o.stream = reference_stream();
  return o;
}

DType dtype_of_stage(const run::Stage& stage) {
  const run::UnitPlan& plan = stage.units.front()->plan();
  return plan.has_output() ? plan.output.dtype : plan.inputs.front().dtype;
}

namespace {

using run::Life;
using run::Phase;

run::RowsCapacity capacity_of(const BlockData& data, const run::Stage& stage) {
  run::RowsCapacity c;
  c.master = master_of(dtype_of_stage(stage));
  c.size = data.plan.size;
  c.num_positions = data.plan.num_positions;
  c.num_masks = static_cast<int>(data.plan.masks.size());
  c.items = std::max<std::int64_t>(1, static_cast<std::int64_t>(data.plan.items.size()));
  c.rotary_pairs = stage.rotary ? stage.rotary->pairs() : 0;
  c.source_cols = data.source_cols;
  c.port_rows = data.port_rows;
  return c;
}

using Shared = std::shared_ptr<OwnedTensor>;

Shared make(DType dtype, std::int64_t rows, std::int64_t cols) {
  return std::make_shared<OwnedTensor>(dtype, std::initializer_list<std::int64_t>{rows, cols});
}

}  // namespace

struct StageRun::UnitState {
  std::vector<Shared> in, d_in, tensors;
  Shared out, d_out;
  run::Saved saved;
};

StageRun::StageRun(const run::Stage& stage, Params& params, const BlockData& data, const RunOptions& options)
    : stage_(stage), params_(params), data_(data), options_(options), memory_(capacity_of(data, stage)) {
  std::vector<int> edges;
  for (std::size_t k = 0; k < data.plan.ports.size(); ++k) edges.push_back(data.plan.ports[k].edge);
  memory_.reset(data.plan, edges, stage, options.stream);
  for (std::size_t s = 0; s < data.ids.size(); ++s) memory_.set_sample(s, data.ids[s], data.labels[s], data.weights[s]);
  if (data.source_cols > 0) set_values(rows().source, data.source);
  for (std::size_t u = 0; u < stage.units.size(); ++u) units_.push_back(std::make_shared<UnitState>());
}

std::int64_t StageRun::rows_of(run::RowCount count, std::size_t port) const {
  if (count.parts > 1) return rows_of(count.of, port) / count.parts;
  const plan::BlockSize& s = data_.plan.size;
  switch (count) {
    case run::RowCount::one: return 1;
    case run::RowCount::rows: return s.rows;
    case run::RowCount::supervised: return s.supervised;
    case run::RowCount::source: return s.source;
    case run::RowCount::out: return s.out;
    case run::RowCount::port: return data_.port_rows[port];
  }
  return 0;
}

Arena StageRun::scratch_for(std::size_t u, Phase phase) const {
  const std::int64_t keys = options_.cache == nullptr ? -1 : options_.cache[u].keys.rows();
  return Arena(
      "scratch of " + stage_.units[u]->plan().name,
      static_cast<std::size_t>(stage_.units[u]->plan().scratch_bytes(options_.stream, phase, data_.plan.size, keys)));
}

run::Ctx StageRun::ctx(std::size_t u, Phase, Arena& scratch) {
  run::Ctx c;
  c.stream = options_.stream;
  c.rows = &memory_.rows();
  c.params = options_.store != nullptr ? &options_.store->unit(static_cast<int>(u)) : &params_.unit(u);
  c.scratch = &scratch;
  c.comms = options_.comms;
  c.mode = options_.mode;
  c.seed = options_.seed;
  c.step = options_.step;
  c.loss_scale = options_.loss_scale;
  if (options_.cache != nullptr) c.cache = &options_.cache[u];
  c.cache_rows = options_.cache_rows;
  c.logits = options_.logits;
  return c;
}

void StageRun::spoil(std::size_t u, const std::string& name, const Tensor& t) const {
  if (static_cast<int>(u) != options_.spoil_unit || name != options_.spoil || !t.defined()) return;
  std::memset(t.data, 0xFF, static_cast<std::size_t>(t.bytes()));
}

// What selective recompute does not store: as the executor has it.
static bool drops(const run::UnitPlan& plan, const run::TensorSpec& spec) {
  return spec.cheap && (spec.life == Life::kept || spec.life == Life::held) && plan.has_output();
}

void StageRun::forward(const std::vector<Values>& in) {
  std::size_t next_port = 0;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    UnitState& state = *units_[u];
    const run::UnitPlan& plan = stage_.units[u]->plan();
    std::vector<Tensor> inputs;
    for (std::size_t p = 0; p < plan.inputs.size(); ++p) {
      const run::PortPlan& port = plan.inputs[p];
      Shared t;
      if (u > 0 && port.name == "x") {
        t = units_[u - 1]->out;
        units_[u - 1]->out = nullptr;
      } else {
        t = make(port.dtype, rows_of(port.count, next_port), port.cols);
        set_values(*t, in.at(next_port++));
      }
      inputs.push_back(*t);
      state.in.push_back(t);
    }
    for (const run::TensorSpec& spec : plan.tensors) {
      Shared t;
      if (spec.life != Life::stash) t = make(spec.dtype, rows_of(spec.count, 0), spec.cols);
      state.tensors.push_back(t);
      state.saved.tensors.push_back(t ? t->view() : Tensor{});
    }
    if (plan.has_output()) state.out = make(plan.output.dtype, rows_of(plan.output.count, 0), plan.output.cols);
    {
      Arena scratch = scratch_for(u, Phase::forward);
      run::Ctx c = ctx(u, Phase::forward, scratch);
      stage_.units[u]->forward(c, inputs, state.out ? state.out->view() : Tensor{}, state.saved);
      MMT_CHECK(scratch.mark() == 0, "{}: scratch was not given back", plan.name);
    }
    // What the plan does not keep is gone; under recompute nothing but the inputs is left.
    for (std::size_t p = 0; p < plan.inputs.size(); ++p) {
      const bool keep = plan.needs_backward() && (options_.recompute || plan.inputs[p].keep != Life::scratch);
      if (keep) spoil(u, "in " + plan.inputs[p].name, inputs[p]);
      state.saved.in.push_back(keep ? inputs[p] : Tensor{});
      if (!keep) state.in[p] = nullptr;
    }
    for (std::size_t t = 0; t < plan.tensors.size(); ++t) {
      const run::TensorSpec& spec = plan.tensors[t];
      const bool keep = !options_.recompute && spec.life != Life::scratch && !(options_.selective && drops(plan, spec));
      if (keep) {
        spoil(u, plan.tensors[t].name, state.saved.tensors[t]);
        continue;
      }
      state.tensors[t] = nullptr;
      state.saved.tensors[t] = {};
    }
    if (options_.mode == run::Mode::eval) {
      state.tensors.clear();
      state.saved = {};
    }
  }
  if (units_.back()->out) out_ = values_of(*units_.back()->out);
  if (data_.plan.size.supervised >= 0 && !stage_.units.back()->plan().has_output()) {
    loss_ = values_of(rows().loss);
    const auto span = rows().predicted.span<std::int32_t>();
    predicted_.assign(span.begin(), span.end());
  }
  units_.back()->out = nullptr;
}

double StageRun::objective() const {
  // Not through Rows: from the data that went in.
  double sum = 0;
  std::size_t at = 0;
  for (std::size_t s = 0; s < data_.labels.size(); ++s)
    for (std::size_t i = 1; i < data_.labels[s].size(); ++i)
      if (data_.labels[s][i] >= 0) sum += static_cast<double>(data_.weights[s][i]) * loss_[at++] * options_.loss_scale;
  return sum;
}

void StageRun::backward(const Values& d_out) {
  d_in_.assign(stage_.ports().size(), {});
  const run::UnitPlan& last = stage_.units.back()->plan();
  if (last.has_output()) {
    units_.back()->d_out = make(last.output.dtype, rows_of(last.output.count, 0), last.output.cols);
    set_values(*units_.back()->d_out, d_out);
  }
  for (std::size_t u = units_.size(); u-- > 0;) {
    backward_unit_input(u);
    if (!options_.delayed_weights) backward_unit_weight(u);
  }
  if (options_.delayed_weights)
    for (std::size_t u = 0; u < units_.size(); ++u) backward_unit_weight(u);
}

void StageRun::backward_unit_input(std::size_t u) {
  UnitState& state = *units_[u];
  const run::UnitPlan& plan = stage_.units[u]->plan();
  if (!plan.needs_backward()) return;
  bool again = options_.recompute;
  for (const run::TensorSpec& spec : plan.tensors) again = again || (options_.selective && drops(plan, spec));
  if (again) {
    for (std::size_t t = 0; t < plan.tensors.size(); ++t) {
      const run::TensorSpec& spec = plan.tensors[t];
      if (spec.life == Life::stash) continue;
      if (!options_.recompute && spec.life != Life::scratch && !drops(plan, spec)) continue;
      state.tensors[t] = make(plan.tensors[t].dtype, rows_of(plan.tensors[t].count, 0), plan.tensors[t].cols);
      state.saved.tensors[t] = *state.tensors[t];
    }
    Arena scratch = scratch_for(u, Phase::recompute);
    run::Ctx c = ctx(u, Phase::recompute, scratch);
    if (options_.recompute)
      stage_.units[u]->recompute(c, state.saved);
    else
      stage_.units[u]->recompute_cheap(c, state.saved);
    for (std::size_t t = 0; t < plan.tensors.size(); ++t) {
      if (plan.tensors[t].life != Life::scratch) continue;
      state.tensors[t] = nullptr;
      state.saved.tensors[t] = {};
    }
  }
  for (std::size_t t = 0; t < plan.tensors.size(); ++t) {
    if (plan.tensors[t].life != Life::stash) continue;
    state.tensors[t] = make(plan.tensors[t].dtype, rows_of(plan.tensors[t].count, 0), plan.tensors[t].cols);
    state.saved.tensors[t] = *state.tensors[t];
  }
  std::vector<Tensor> d_in;
  std::size_t port = 0;
  const auto ports = stage_.ports();
  for (std::size_t p = 0; p < plan.inputs.size(); ++p) {
    const bool inner = u > 0 && plan.inputs[p].name == "x";
    while (!inner && (ports[port].unit != static_cast<int>(u) || ports[port].port != static_cast<int>(p))) ++port;
    Shared t;
    if (plan.inputs[p].needs_grad)
      t = make(plan.inputs[p].dtype, rows_of(plan.inputs[p].count, port), plan.inputs[p].cols);
    state.d_in.push_back(t);
    d_in.push_back(t ? t->view() : Tensor{});
  }
  state.saved.d_out = state.d_out ? state.d_out->view() : Tensor{};
  {
    Arena scratch = scratch_for(u, Phase::backward_input);
    run::Ctx c = ctx(u, Phase::backward_input, scratch);
    stage_.units[u]->backward_input(c, state.saved.d_out, d_in, state.saved);
    MMT_CHECK(scratch.mark() == 0, "{}: scratch was not given back", plan.name);
  }
  port = 0;
  for (std::size_t p = 0; p < plan.inputs.size(); ++p) {
    if (u > 0 && plan.inputs[p].name == "x") {
      units_[u - 1]->d_out = state.d_in[p];
    } else {
      while (ports[port].unit != static_cast<int>(u) || ports[port].port != static_cast<int>(p)) ++port;
      if (state.d_in[p]) d_in_[port] = values_of(*state.d_in[p]);
    }
  }
  state.d_in.clear();
  // BI is over: kept tensors die, and the gradient of the output unless BW reads it.
  for (std::size_t t = 0; t < plan.tensors.size(); ++t) {
    if (plan.tensors[t].life != Life::kept) continue;
    state.tensors[t] = nullptr;
    state.saved.tensors[t] = {};
  }
  for (std::size_t p = 0; p < plan.inputs.size(); ++p) {
    if (plan.inputs[p].keep == Life::held) continue;
    state.saved.in[p] = {};
    state.in[p] = nullptr;
  }
  if (plan.output.keep_grad != Life::stash) {
    state.d_out = nullptr;
    state.saved.d_out = {};
  }
  for (std::size_t t = 0; t < plan.tensors.size(); ++t)
    if (plan.tensors[t].life == Life::stash) spoil(u, plan.tensors[t].name, state.saved.tensors[t]);
  spoil(u, "d_out", state.saved.d_out);
}

void StageRun::backward_unit_weight(std::size_t u) {
  UnitState& state = *units_[u];
  const run::UnitPlan& plan = stage_.units[u]->plan();
  if (!plan.trains()) return;
  Arena scratch = scratch_for(u, Phase::backward_weight);
  run::Ctx c = ctx(u, Phase::backward_weight, scratch);
  stage_.units[u]->backward_weight(c, state.saved);
  state = UnitState{};
}

}  // namespace mmt::test
