#include "apps/mmtrain/model.h"

#include "apps/mmtrain/layout.h"
#include "apps/mmtrain/parameter_rules.h"
#include "apps/mmtrain/workload.h"
#include "kernels/elementwise.h"

#include <algorithm>
#include <set>

namespace mmt::app {
bool Model::runs_module(std::size_t module) const {
  return std::ranges::any_of(own, [&](int s) { return module_of(s) == module; });
}

bool Model::leads(int stage) const {
  return std::ranges::find(own, stage) != own.end() && coord(stage)[plan::Axis::tp] == 0;
}

comm::Communicator* Model::comm(int stage, plan::Axis axis) const {
  const MeshComms& c = comms[static_cast<std::size_t>(layout.mesh_index(stage))];
  return axis == plan::Axis::tp ? c.tp.get() : axis == plan::Axis::dp ? c.data.get() : nullptr;
}

std::vector<run::PlacedStore> Model::placed() const {
  std::vector<run::PlacedStore> list;
  for (const int s : own) {
    const plan::Mesh& mesh = layout.mesh_of(s);
    plan::Coord degrees;
    for (const plan::Axis axis : {plan::Axis::tp, plan::Axis::cp, plan::Axis::dp, plan::Axis::pp})
      degrees[axis] = mesh.degree(axis);
    list.push_back({s, stores[static_cast<std::size_t>(s)].get(), degrees, coord(s)});
  }
  return list;
}

std::vector<run::PlacedParam> Model::params(bool trainable_only) const {
  const std::vector<run::PlacedStore> stores_here = placed();
  return run::placed_params(stores_here, uses, trainable_only);
}

Model build_model(const Config& c) { return build_model(c, one_rank_layout(c), 0); }

Model build_model(const Config& c, plan::Layout layout, int rank) {
  const TrainableRules rules(c);
  const AdapterRules adapters(c);
  Model m;
  m.layout = std::move(layout);
  m.rank = rank;
  m.lane = m.layout.lane_of(rank);
  m.own = m.layout.stages_on(rank);
  m.schedule.policy = plan::parse_policy(c.parallel.policy).value_or(plan::Policy::one_f_one_b);
  m.schedule.memory = c.parallel.memory_h2 ? plan::ZeroBubbleMemory::h2 : plan::ZeroBubbleMemory::h1;
  m.zero.resize(m.num_modules());
  m.row_quantum.assign(m.num_modules(), 1);
  for (std::size_t k = 0; k < c.parallel.zero.size() && k < m.num_modules(); ++k) m.zero[k] = c.parallel.zero[k];
  std::vector<models::EmbeddingPort> ports;
  for (std::size_t s = 0; s < m.layout.stages().size(); ++s) {
    const plan::UnitSpan& units = m.layout.stages()[s].units;
    const plan::Mesh& mesh = m.layout.mesh_of(static_cast<int>(s));
    models::UnitPlanner::Setting setting;
    setting.dtype = c.train.precision;
    setting.trainable = [&](const std::string& name) { return rules.trains(name); };
    setting.adapter = [&](const std::string& linear) { return adapters.find(linear); };
    setting.degrees[plan::Axis::tp] = mesh.degree(plan::Axis::tp);
    if (mesh.contains(rank)) setting.coord[plan::Axis::tp] = mesh.coord_of(rank)[plan::Axis::tp];
    const models::UnitRange range{units.first, units.last};
    const auto module = static_cast<std::size_t>(units.module);
    if (mesh.degree(plan::Axis::tp) > 1) {
      setting.replicate_tp = c.parallel.cut_over(module) == 1;
      setting.sequence_parallel = c.parallel.shares_rows(module);
      // A projector may run in another mesh than the layers whose rows are shared.
      if (setting.sequence_parallel && units.first == 0) m.row_quantum[module] = mesh.degree(plan::Axis::tp);
    }
    if (module < c.encoders.size()) {
      const models::EncoderSpec& spec = c.encoders[module].spec;
      m.stages.push_back(models::build_encoder(spec, c.llm.spec.hidden, setting, range));
      if (units.last == m.layout.modules()[module].num_units)
        ports.push_back({spec.name, models::output_needs_grad(m.stages.back())});
    } else {
      m.stages.push_back(models::build_llm(c.llm.spec, ports, setting, range));
    }
    const run::Stage& stage = m.stages.back();
    m.traits.push_back({.needs_backward = stage.needs_backward(),
                        .trains = stage.trains(),
                        .selects = stage.units.back()->plan().output.count == run::RowCount::out});
    m.recompute.emplace_back(stage.units.size(), c.recompute_of(module));
    std::vector<int> ranks;
    for (int lane = 0; lane < m.layout.lanes(); ++lane) {
      for (const int r : m.layout.ranks_of(static_cast<int>(s), lane)) ranks.push_back(r);
    }
    m.uses.push_back(run::uses_of(stage, std::move(ranks)));
  }
  for (const EncoderConfig& e : c.encoders) m.encoder_rows.push_back(encoder_rows_of(e));
  m.llm_rows = llm_rows_of(c);
  adapters.finish();  // first: rules may name the parameters of adapters
  rules.finish();
  return m;
}

namespace {

/// One group of ranks of a mesh along one axis, made on all ranks of the world.
std::unique_ptr<comm::Communicator> split_axis(comm::Communicator& world, const plan::Mesh& mesh, plan::Axis axis,
                                               const std::string& name) {
  if (mesh.degree(axis) == 1) return nullptr;
  int color = -1, key = 0;
  if (mesh.contains(world.rank())) {
    plan::Coord at = mesh.coord_of(world.rank());
    key = at[axis];
    at[axis] = 0;
    color = mesh.rank_at(at);
  }
  return world.split(color, key, name);
}

}  // namespace

void make_stores(Model& m, comm::Communicator& world, const Stream& stream) {
  for (std::size_t k = 0; k < m.layout.meshes().size(); ++k) {
    const plan::Mesh& mesh = m.layout.meshes()[k];
    const std::string name = m.layout.meshes().size() == 1 ? "all" : m.layout.modules()[k].name;
    MeshComms comms;
    comms.tp = split_axis(world, mesh, plan::Axis::tp, name + ".tp");
    comms.data = split_axis(world, mesh, plan::Axis::dp, name + ".dp");
    m.comms.push_back(std::move(comms));
  }
  const std::vector<run::Tie> ties = run::find_ties(m.uses);
  run::StoreOptions options;
  for (const run::Tie& tie : ties) {
    if (tie.stages.size() > 1) options.tied.insert(tie.name);
    m.end.ties.push_back(tie.stages);
  }
  m.stores.resize(m.stages.size());
  std::vector<std::int64_t> buckets(m.stages.size(), 0);
  std::vector<run::ParameterStore*> views(m.stages.size(), nullptr);
  for (const int s : m.own) {
    const auto at = static_cast<std::size_t>(s);
    options.zero = m.zero[m.module_of(s)] ? 1 : 0;
    m.stores[at] = run::make_replicated_store(m.stages[at], {m.comm(s, plan::Axis::dp), m.comm(s, plan::Axis::tp)},
                                              stream, options);
    views[at] = m.stores[at].get();
    buckets[at] = m.stores[at]->num_buckets();
  }
  world.all_reduce(Tensor(buckets.data(), DType::i64, {static_cast<std::int64_t>(buckets.size())}),
                   comm::ReduceOp::max);
  m.end.buckets.assign(buckets.begin(), buckets.end());
  m.end.update = true;
  m.ties = run::make_ties(world, m.uses, views);
}

void refresh_compute(run::ParameterStore& store, const Stream& stream) {
  for (run::ParamState& p : store.params()) {
    if (p.compute.data != p.master.data) ops::copy(stream, p.compute, p.master);
  }
  store.weights_loaded();
}

void initialize_model(Model& model, std::uint64_t seed, const Stream& stream) {
  for (const int s : model.own) {
    run::ParameterStore& store = *model.stores[static_cast<std::size_t>(s)];
    for (run::ParamState& p : store.params()) run::initialize(*p.spec, seed, p.owned_first, p.master);
    refresh_compute(store, stream);
  }
}

namespace {

std::string amount(std::int64_t count) {
  const auto n = static_cast<double>(count);
  return count < 100000 ? fmt::format("{:.1f} k", 1e-3 * n) : fmt::format("{:.2f} M", 1e-6 * n);
}

}  // namespace

std::string describe(const Model& model) {
  std::string text;
  for (std::size_t m = 0; m < model.num_modules(); ++m) {
    models::ParamCount count;
    for (std::size_t s = 0; s < model.stages.size(); ++s) {
      if (model.module_of(static_cast<int>(s)) != m) continue;
      const models::ParamCount part = models::count_parameters(model.stages[s]);
      count.total += part.total;
      count.trainable += part.trainable;
      count.adapters += part.adapters;
    }
    text += fmt::format("{}{}: {} parameters, {} trainable", text.empty() ? "" : "; ", model.layout.modules()[m].name,
                        amount(count.total), amount(count.trainable));
    if (count.adapters > 0) text += fmt::format(" ({} adapters)", count.adapters);
  }
  return text;
}

}  // namespace mmt::app
