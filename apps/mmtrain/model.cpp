#include "apps/mmtrain/model.h"

#include "core/data/regex.h"
#include "kernels/elementwise.h"

#include <algorithm>
#include <map>
#include <set>

namespace mmt::app {
namespace {

struct Pattern {
  std::string text, key;
  data::Regex regex;
  mutable bool used = false;
};

std::vector<Pattern> compile(const std::vector<std::string>& patterns, const std::string& key) {
  std::vector<Pattern> list;
  for (const std::string& p : patterns)
    list.push_back({p, key, data::Regex(p, fmt::format("{}: pattern \"{}\"", key, p))});
  return list;
}

bool any_match(const std::vector<Pattern>& patterns, const std::string& name) {
  bool found = false;
  for (const Pattern& p : patterns) {
    if (!p.regex.next(name, 0).found) continue;
    p.used = true;
    found = true;
  }
  return found;
}

}  // namespace

struct TrainableRules::Rules {
  struct Module {
    bool all = true;
    bool listed = false;  // `trainable` is a list of patterns
    std::vector<Pattern> trainable, frozen;
  };
  std::map<std::string, Module> modules;

  void add(const std::string& module, const TrainableRule& rule, const std::string& key) {
    Module& m = modules[module];
    m.all = rule.all;
    m.listed = rule.trainable.has_value();
    if (m.listed) m.trainable = compile(*rule.trainable, key + ".trainable");
    m.frozen = compile(rule.frozen, key + ".frozen");
  }
};

TrainableRules::TrainableRules(const Config& c) : rules_(std::make_unique<Rules>()) {
  for (const EncoderConfig& e : c.encoders) {
    const std::string key = "modules." + e.spec.name;
    rules_->add(e.spec.name, e.trainable, key);
    rules_->add(e.spec.name + ".projector", e.projector_trainable, key + ".projector");
  }
  rules_->add(c.llm.spec.name, c.llm.trainable, "modules." + c.llm.spec.name);
}
TrainableRules::~TrainableRules() = default;

bool TrainableRules::trains(const std::string& name) const {
  const auto found = rules_->modules.find(name.substr(0, name.find('/')));
  MMT_CHECK(found != rules_->modules.end(), "no rule for {}", name);
  const Rules::Module& m = found->second;
  const bool frozen = any_match(m.frozen, name);
  const bool chosen = any_match(m.trainable, name);
  if (chosen) return true;
  return !m.listed && m.all && !frozen;
}

void TrainableRules::finish() const {
  std::string text;
  for (const auto& [name, module] : rules_->modules) {
    for (const auto* list : {&module.trainable, &module.frozen}) {
      for (const Pattern& p : *list) {
        if (!p.used)
          text += fmt::format("{}{}: \"{}\" matches no parameter of {}", text.empty() ? "" : "\n", p.key, p.text, name);
      }
    }
  }
  if (!text.empty()) throw ConfigError(text);
}

std::vector<run::ParamState*> Model::owned_params(bool trainable_only) {
  std::vector<run::ParamState*> list;
  std::set<std::string> seen;
  for (const auto& store : stores) {
    for (run::ParamState& p : store->params()) {
      if (trainable_only && !p.spec->trainable) continue;
      if (seen.insert(canonical_name(*p.spec)).second) list.push_back(&p);
    }
  }
  return list;
}

namespace {

std::vector<run::TieGroup> find_ties(Model& model) {
  std::map<std::string, run::TieGroup> uses;
  for (const auto& store : model.stores) {
    const auto params = store->params();
    for (std::size_t i = 0; i < params.size(); ++i) {
      if (!params[i].spec->trainable) continue;
      run::TieGroup& group = uses[canonical_name(*params[i].spec)];
      group.name = canonical_name(*params[i].spec);
      group.uses.push_back({store.get(), i});
    }
  }
  std::vector<run::TieGroup> ties;
  for (auto& [name, group] : uses) {
    if (group.uses.size() > 1) ties.push_back(std::move(group));
  }
  return ties;
}

}  // namespace

Model build_model(const Config& c) {
  const TrainableRules rules(c);
  models::UnitPlanner::Setting setting;
  setting.dtype = c.train.precision;
  setting.trainable = [&](const std::string& name) { return rules.trains(name); };
  Model m;
  std::vector<models::EmbeddingPort> ports;
  for (const EncoderConfig& e : c.encoders) {
    m.stages.push_back(models::build_encoder(e.spec, c.llm.spec.hidden, setting));
    const run::Stage& stage = m.stages.back();
    ports.push_back({e.spec.name, models::output_needs_grad(stage)});
    const bool drops_class = e.spec.modality == "image" && e.spec.class_token && e.spec.select == "patch";
    m.encoder_rows.push_back({e.spec.name, drops_class ? 1 : 0});
    m.modules.encoders.push_back({e.spec.name, stage.needs_backward(), stage.trains()});
  }
  m.stages.push_back(models::build_llm(c.llm.spec, ports, setting));
  m.llm_windows = m.llm().windows;
  m.modules.llm_needs_backward = m.llm().needs_backward();
  m.modules.llm_trains = m.llm().trains();
  rules.finish();
  return m;
}

void make_stores(Model& m, comm::Communicator* data, const Stream& stream) {
  for (const run::Stage& stage : m.stages) {
    m.stores.push_back(run::make_replicated_store(stage, data, stream));
    m.modules.buckets.push_back(m.stores.back()->num_buckets());
  }
  m.ties = find_ties(m);
  m.modules.ties = static_cast<int>(m.ties.size());
}

void refresh_compute(run::ParameterStore& store, const Stream& stream) {
  for (run::ParamState& p : store.params()) {
    if (p.compute.data != p.master.data) ops::copy(stream, p.compute, p.master);
  }
  store.weights_loaded();
}

void initialize_model(Model& model, std::uint64_t seed, const Stream& stream) {
  for (const auto& store : model.stores) {
    for (run::ParamState& p : store->params()) run::initialize(*p.spec, seed, p.owned_first, p.master);
    refresh_compute(*store, stream);
  }
}

std::vector<run::OptimizedParam> optimized_params(Model& model) {
  std::vector<run::OptimizedParam> params;
  for (run::ParamState* p : model.owned_params(true)) {
    run::OptimizedParam o;
    o.name = canonical_name(*p->spec);
    o.module = p->spec->module.substr(0, p->spec->module.find('.'));
    o.master = p->master;
    o.compute = p->compute;
    o.grad = p->grad;
    o.weight_decay = p->spec->decay ? 1.0 : 0.0;
    params.push_back(std::move(o));
  }
  return params;
}

std::string describe(const Model& model) {
  std::string text;
  for (const run::Stage& stage : model.stages) {
    const models::ParamCount count = models::count_parameters(stage);
    text += fmt::format("{}{}: {:.2f} M parameters, {:.2f} M trainable", text.empty() ? "" : "; ", stage.module,
                        1e-6 * static_cast<double>(count.total), 1e-6 * static_cast<double>(count.trainable));
  }
  return text;
}

}  // namespace mmt::app
