#include "tests/models/harness.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace mmt::test {

Values values_of(const Tensor& t) {
  Values v;
  v.reserve(static_cast<std::size_t>(t.numel()));
  if (t.numel() == 0) return v;
  visit_float(t.dtype, [&]<class T>() {
    for (std::int64_t r = 0; r < t.rows(); ++r)
      for (std::int64_t c = 0; c < t.cols(); ++c) v.push_back(static_cast<double>(t.row<T>(r)[c]));
  });
  return v;
}

void set_values(const Tensor& t, const Values& v) {
  MMT_CHECK(static_cast<std::int64_t>(v.size()) == t.numel(), "{} values for {}", v.size(), t.describe());
  if (v.empty()) return;
  visit_float(t.dtype, [&]<class T>() {
    for (std::size_t i = 0; i < v.size(); ++i) t.as<T>()[i] = T(v[i]);
  });
}

Values random_values(std::int64_t n, unsigned seed, double scale) {
  std::mt19937 rng(seed);
  std::normal_distribution<double> normal(0.0, scale);
  Values v(static_cast<std::size_t>(n));
  for (double& x : v) x = static_cast<double>(static_cast<float>(normal(rng)));
  return v;
}

double dot(const Values& a, const Values& b) {
  MMT_CHECK(a.size() == b.size(), "{} and {} values", a.size(), b.size());
  double s = 0;
  for (std::size_t i = 0; i < a.size(); ++i) s += a[i] * b[i];
  return s;
}

double norm2(const Values& a) { return std::sqrt(dot(a, a)); }

double max_difference(const Values& a, const Values& b) {
  MMT_CHECK(a.size() == b.size(), "{} and {} values", a.size(), b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

void add_random_values(NamedValues& values, const run::Stage& stage, unsigned seed) {
  for (const auto& unit : stage.units) {
    for (const run::ParamSpec& spec : unit->plan().params) {
      Values& v = values[canonical_name(spec)];
      if (!v.empty()) continue;
      std::int64_t n = 1;
      for (const std::int64_t d : spec.shape) n *= d;
      const bool ones = spec.init.kind == run::Init::Kind::ones, zeros = spec.init.kind == run::Init::Kind::zeros;
      const double scale =
          ones || zeros ? 0.2 : 0.8 / std::sqrt(static_cast<double>(spec.shape.size() > 1 ? n / spec.shape[0] : 4));
      v = random_values(n, seed + static_cast<unsigned>(std::hash<std::string>{}(canonical_name(spec))), scale);
      if (ones)
        for (double& x : v) x = static_cast<double>(static_cast<float>(x + 1.0));
    }
  }
}

// -------------------------------------------------------------------------------------------------------------- Params

struct Params::Unit final : run::UnitParameters {
  struct Param {
    const run::ParamSpec* spec = nullptr;
    OwnedTensor weight, grad;
    bool written = false;
  };
  std::vector<Param> params;

  Tensor weight(run::ParamId id) override { return params[static_cast<std::size_t>(id)].weight; }
  run::GradTarget grad(run::ParamId id) override {
    Param& p = params[static_cast<std::size_t>(id)];
    MMT_CHECK(p.spec->trainable, "the gradient of {}, which is frozen, was asked for", canonical_name(*p.spec));
    const run::GradTarget target{p.grad, p.written ? Accumulate::add : Accumulate::overwrite};
    p.written = true;
    return target;
  }
};

Params::Params(const run::Stage& stage, const NamedValues& values) : stage_(stage), values_(values) {
  for (const auto& unit : stage.units) {
    auto state = std::make_shared<Unit>();
    for (const run::ParamSpec& spec : unit->plan().params) {
      Unit::Param p;
      p.spec = &spec;
      p.weight = OwnedTensor(spec.dtype, std::span<const std::int64_t>(spec.box.shape));
      if (spec.trainable) p.grad = OwnedTensor(master_of(spec.dtype), std::span<const std::int64_t>(spec.box.shape));
      state->params.push_back(std::move(p));
    }
    units_.push_back(std::move(state));
  }
  load();
}

run::UnitParameters& Params::unit(std::size_t u) { return *units_[u]; }

void Params::load() {
  for (const auto& unit : units_) {
    for (const Unit::Param& p : unit->params) {
      const Values& global = values_.at(canonical_name(*p.spec));
      const run::Box& box = p.spec->box;
      const std::int64_t n = p.weight->numel();
      Values part(static_cast<std::size_t>(n));
      for (std::int64_t i = 0; i < n; ++i) {
        // Index within the box -> index within the global tensor.
        std::int64_t rest = i, at = 0, stride = 1;
        for (std::size_t d = box.shape.size(); d-- > 0;) {
          at += (rest % box.shape[d] + box.offset[d]) * stride;
          rest /= box.shape[d];
          stride *= p.spec->shape[d];
        }
        part[static_cast<std::size_t>(i)] = global[static_cast<std::size_t>(at)];
      }
      set_values(p.weight, part);
    }
  }
}

void Params::begin_step() {
  for (const auto& unit : units_) {
    for (Unit::Param& p : unit->params) {
      p.written = false;
      if (p.spec->trainable) poison(p.grad->data, static_cast<std::size_t>(p.grad->bytes()));
    }
  }
}

NamedValues Params::gradients() const {
  NamedValues all;
  for (const auto& unit : units_) {
    for (const Unit::Param& p : unit->params) {
      if (!p.spec->trainable) continue;
      MMT_CHECK(p.written, "no gradient of {} was written", canonical_name(*p.spec));
      const Values v = values_of(p.grad);
      Values& sum = all[canonical_name(*p.spec)];
      if (sum.empty()) {
        sum = v;
      } else {
        for (std::size_t i = 0; i < v.size(); ++i) sum[i] += v[i];
      }
    }
  }
  return all;
}

// ----------------------------------------------------------------------------------------------------------- BlockData

BlockData BlockData::text(const std::vector<std::vector<Piece>>& samples, int vocabulary, int num_ports,
                          std::vector<std::int32_t> windows, int num_positions, unsigned seed) {
  using namespace row_class;
  std::mt19937 rng(seed);
  const auto pick = [&](int n) { return static_cast<std::int32_t>(rng() % static_cast<unsigned>(n)); };
  BlockData b;
  plan::RowsPlan& p = b.plan;
  p.num_positions = num_positions;
  p.masks.resize(1);
  for (int k = 0; k < num_ports; ++k) p.ports.push_back({k, {}});
  std::int32_t row = 0;
  for (std::size_t s = 0; s < samples.size(); ++s) {
    plan::SamplePlan sample;
    sample.sample = static_cast<std::int64_t>(s);
    sample.rows.first = row;
    sample.supervised.first = static_cast<std::int64_t>(p.supervised_rows.size());
    std::vector<std::int32_t> ids, labels;
    std::int32_t place = 0;
    int group = 0;
    for (const Piece& piece : samples[s]) {
      if (piece.media > 0) ++group;
      for (int i = 0; i < piece.text + piece.media; ++i, ++row, ++place) {
        const bool media = piece.media > 0;
        ids.push_back(media ? -1 : pick(vocabulary));
        const bool label = !media && piece.supervised && place > 0;
        labels.push_back(label ? ids.back() : -100);
        if (label) p.supervised_rows.push_back(row - 1);
        p.masks[0].push(static_cast<std::int64_t>(s) + 1, media ? group : 0, kAll, media ? kImage : kText, place);
        for (int n = 0; n < num_positions; ++n) p.positions.push_back(n == 0 ? place : (media ? i % (n + 2) : place));
        if (media) p.ports[static_cast<std::size_t>(piece.port)].dst.push_back(row);
      }
    }
    sample.rows.count = row - sample.rows.first;
    sample.supervised.count = static_cast<std::int64_t>(p.supervised_rows.size()) - sample.supervised.first;
    p.samples.push_back(sample);
    std::vector<float> weights;
    for (std::size_t i = 0; i < ids.size(); ++i) weights.push_back(0.5F + static_cast<float>(pick(4)) * 0.25F);
    b.ids.push_back(std::move(ids));
    b.labels.push_back(std::move(labels));
    b.weights.push_back(std::move(weights));
  }
  p.masks.resize(windows.size(), p.masks[0]);
  for (std::size_t m = 0; m < windows.size(); ++m)
    p.tiles.push_back(make_tile_plan(query_side(p.masks[m]), key_side(p.masks[m]), windows[m]));
  for (const plan::PortRows& port : p.ports) b.port_rows.push_back(static_cast<std::int64_t>(port.dst.size()));
  p.size.rows = row;
  p.size.supervised = static_cast<std::int64_t>(p.supervised_rows.size());
  p.size.tiles = p.tiles[0].counts.tiles();
  return b;
}

namespace {

void finish_encoder(BlockData& b, unsigned seed) {
  plan::RowsPlan& p = b.plan;
  p.tiles.push_back(make_tile_plan(query_side(p.masks[0]), key_side(p.masks[0]), 0));
  p.size.rows = static_cast<std::int64_t>(p.masks[0].rows());
  p.size.out = static_cast<std::int64_t>(p.out_rows.size());
  p.size.tiles = p.tiles[0].counts.tiles();
  b.source = random_values(p.size.source * b.source_cols, seed);
}

void add_item(BlockData& b, std::int64_t source, std::int64_t rows, std::int64_t first_out) {
  plan::RowsPlan& p = b.plan;
  plan::ItemPlan item;
  item.sample = static_cast<std::int64_t>(p.items.size());
  item.source = {p.size.source, source};
  item.rows = {static_cast<std::int64_t>(p.masks[0].rows()), rows};
  item.out = {static_cast<std::int64_t>(p.out_rows.size()), rows - first_out};
  const std::int64_t number = item.sample + 1;
  for (std::int64_t i = 0; i < rows; ++i) {
    if (i >= first_out) p.out_rows.push_back(static_cast<std::int32_t>(item.rows.first + i));
    p.masks[0].push(number, number, 0, 0, static_cast<std::int32_t>(i));
    p.positions.push_back(static_cast<std::int32_t>(i));
  }
  p.size.source += source;
  p.items.push_back(item);
}

}  // namespace

BlockData BlockData::pictures(const std::vector<int>& patches, int patch_cols, bool class_token, bool full,
                              unsigned seed) {
  BlockData b;
  b.source_cols = patch_cols;
  b.plan.masks.resize(1);
  for (const int n : patches) add_item(b, n, n + (class_token ? 1 : 0), class_token && !full ? 1 : 0);
  finish_encoder(b, seed);
  return b;
}

BlockData BlockData::clips(const std::vector<int>& frames, int mels, unsigned seed) {
  BlockData b;
  b.source_cols = mels;
  b.plan.masks.resize(1);
  for (const int n : frames) add_item(b, n, (n + 1) / 2, 0);
  finish_encoder(b, seed);
  return b;
}

// ------------------------------------------------------------------------------------------------------------ StageRun

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
  c.params = &params_.unit(u);
  c.scratch = &scratch;
  c.comms = options_.comms;
  c.mode = options_.mode;
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
      const bool keep = !options_.recompute && plan.tensors[t].life != Life::scratch;
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
  if (options_.recompute) {
    for (std::size_t t = 0; t < plan.tensors.size(); ++t) {
      if (plan.tensors[t].life == Life::stash) continue;
      state.tensors[t] = make(plan.tensors[t].dtype, rows_of(plan.tensors[t].count, 0), plan.tensors[t].cols);
      state.saved.tensors[t] = *state.tensors[t];
    }
    Arena scratch = scratch_for(u, Phase::recompute);
    run::Ctx c = ctx(u, Phase::recompute, scratch);
    stage_.units[u]->recompute(c, state.saved);
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

// --------------------------------------------------------------------------------------------------------- comparisons

std::vector<std::string> saved_names(const run::UnitPlan& plan, Life life) {
  std::vector<std::string> names;
  for (const run::PortPlan& port : plan.inputs)
    if (port.keep == life) names.push_back("in " + port.name);
  for (const run::TensorSpec& t : plan.tensors)
    if (t.life == life) names.push_back(t.name);
  if (life == Life::stash && plan.output.keep_grad == Life::stash) names.push_back("d_out");
  return names;
}

Pass run_pass(const run::Stage& stage, const NamedValues& values, const BlockData& data, const RunOptions& options,
              const std::vector<Values>& in, const Values& d_out, bool backward) {
  Params params(stage, values);
  params.begin_step();
  StageRun run(stage, params, data, options);
  run.forward(in);
  Pass pass;
  pass.out = run.out();
  pass.loss = run.loss();
  if (!stage.units.back()->plan().has_output()) pass.objective = run.objective();
  if (!d_out.empty()) pass.objective = dot(pass.out, d_out);
  if (!backward) return pass;
  run.backward(d_out);
  for (std::size_t p = 0; p < stage.ports().size(); ++p) pass.d_in.push_back(run.d_in(p));
  pass.grads = params.gradients();
  return pass;
}

std::vector<std::string> gradcheck(const run::Stage& stage, NamedValues values, const BlockData& data,
                                   const RunOptions& options, std::vector<Values> in, const Values& d_out,
                                   const GradcheckOptions& check) {
  std::vector<std::string> complaints;
  const Pass pass = run_pass(stage, values, data, options, in, d_out);
  Params params(stage, values);
  const auto objective = [&] {
    params.load();
    StageRun run(stage, params, data, options);
    run.forward(in);
    return stage.units.back()->plan().has_output() ? dot(run.out(), d_out) : run.objective();
  };
  // (f(x+h) - f(x-h)) / 2h has an error of h^2 f''' / 6 and a rounding noise of about 1e-16 |f| / h. Richardson's
  // combination of h and 2h makes the first one h^4; at h = 1e-3 both stay below 1e-10 of the scale of these
  // objectives.
  const auto derivative = [&](Values& x, const Values& direction, double h) {
    const Values start = x;
    const auto at = [&](double step) {
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = start[i] + step * direction[i];
      const double f = objective();
      x = start;
      return f;
    };
    const double near = (at(h) - at(-h)) / (2 * h), far = (at(2 * h) - at(-2 * h)) / (4 * h);
    return (4 * near - far) / 3;
  };
  const auto compare = [&](const std::string& name, Values& x, const Values& g, unsigned seed) {
    if (x.size() != g.size()) {
      complaints.push_back(fmt::format("{}: {} gradients of {} values", name, g.size(), x.size()));
      return;
    }
    if (x.empty()) return;
    Values direction = random_values(static_cast<std::int64_t>(x.size()), seed);
    const double length = norm2(direction);
    for (double& d : direction) d /= length;
    const auto judge = [&](const std::string& what, double numeric, double analytic, double scale) {
      analytic *= check.scale_of_bug;
      // Relative to the gradient's own size; the second term is the noise of a difference quotient of `objective`.
      const double tolerance = 1e-7 * scale + 1e-11 * std::abs(pass.objective) + 1e-11;
      if (!(std::abs(numeric - analytic) <= tolerance))
        complaints.push_back(
            fmt::format("{} {}: difference quotient {:.12g}, gradient {:.12g}", name, what, numeric, analytic));
    };
    // A random unit direction sees about |g| / sqrt(n) of the gradient; single elements are judged by themselves.
    judge("along a direction", derivative(x, direction, 1e-3), dot(g, direction),
          norm2(g) / std::sqrt(static_cast<double>(x.size())));
    std::mt19937 rng(seed);
    for (int e = 0; e < check.elements; ++e) {
      const std::size_t i = rng() % x.size();
      Values unit(x.size(), 0.0);
      unit[i] = 1.0;
      judge(fmt::format("[{}]", i), derivative(x, unit, 1e-3), g[i],
            std::max(std::abs(g[i]), norm2(g) / std::sqrt(static_cast<double>(x.size()))));
    }
  };
  unsigned seed = 100;
  for (const auto& [name, g] : pass.grads) compare(name, values.at(name), g, ++seed);
  const auto ports = stage.ports();
  for (std::size_t p = 0; p < ports.size(); ++p) {
    const run::PortPlan& port =
        stage.units[static_cast<std::size_t>(ports[p].unit)]->plan().inputs[static_cast<std::size_t>(ports[p].port)];
    if (port.needs_grad) compare("input " + port.name, in[p], pass.d_in[p], ++seed);
  }
  return complaints;
}

std::string join(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  return all;
}

}  // namespace mmt::test
