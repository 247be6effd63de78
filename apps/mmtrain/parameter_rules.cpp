#include "apps/mmtrain/parameter_rules.h"

#include "core/data/text/regex.h"

#include <fmt/ranges.h>

#include <cmath>
#include <map>
#include <set>
#include <vector>

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

std::string module_of(const std::string& name) { return name.substr(0, name.find('/')); }

/// "q_proj" of "llm/model.layers.0.self_attn.q_proj".
std::string last_part(const std::string& name) { return name.substr(name.find_last_of("./") + 1); }

}  // namespace

bool is_adapter(const std::string& name) {
  return name.find(".lora_A.") != std::string::npos || name.find(".lora_B.") != std::string::npos;
}

struct TrainableRules::Rules {
  struct Module {
    bool all = true;
    bool listed = false;  // `trainable` is a list of patterns
    bool adapters_only = false;
    std::vector<Pattern> trainable, frozen;
  };
  std::map<std::string, Module> modules;

  void add(const std::string& module, const TrainableRule& rule, const std::string& key) {
    Module& m = modules[module];
    m.all = rule.all;
    m.adapters_only = rule.adapters_only;
    m.listed = rule.trainable.has_value();
    if (m.listed) m.trainable = compile(*rule.trainable, key + ".trainable");
    m.frozen = compile(rule.frozen, key + ".frozen");
  }
};

namespace {

/// Calls add(name, its rule, key) for every module and projector.
template <class Rules, class Encoder, class Llm, class Rule>
void add_all(Rules& rules, const Config& c, Rule Encoder::*own, Rule Encoder::*projector, Rule Llm::*llm) {
  for (const EncoderConfig& e : c.encoders) {
    const std::string key = "modules." + e.spec.name;
    rules.add(e.spec.name, e.*own, key);
    rules.add(e.spec.name + ".projector", e.*projector, key + ".projector");
  }
  rules.add(c.llm.spec.name, c.llm.*llm, "modules." + c.llm.spec.name);
}

}  // namespace

TrainableRules::TrainableRules(const Config& c) : rules_(std::make_unique<Rules>()) {
  add_all(*rules_, c, &EncoderConfig::trainable, &EncoderConfig::projector_trainable, &LlmConfig::trainable);
}
TrainableRules::~TrainableRules() = default;

bool TrainableRules::trains(const std::string& name) const {
  const auto found = rules_->modules.find(module_of(name));
  MMT_CHECK(found != rules_->modules.end(), "no rule for {}", name);
  const Rules::Module& m = found->second;
  const bool frozen = any_match(m.frozen, name);
  const bool chosen = any_match(m.trainable, name);
  if (chosen) return true;
  return !m.listed && m.all && !frozen && (!m.adapters_only || is_adapter(name));
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

struct AdapterRules::Rules {
  struct Module {
    run::AdapterSpec spec;
    std::vector<Pattern> on;
    mutable std::set<std::string> layers;  ///< last parts of the names that were asked for
  };
  std::map<std::string, Module> modules;

  void add(const std::string& module, const std::optional<LoraConfig>& lora, const std::string& key) {
    if (!lora) return;
    const double rank = static_cast<double>(lora->rank);
    modules[module] = {{lora->rank, lora->alpha / (lora->rslora ? std::sqrt(rank) : rank), lora->dropout},
                       compile(lora->on, key + ".lora.on"),
                       {}};
  }
};

AdapterRules::AdapterRules(const Config& c) : rules_(std::make_unique<Rules>()) {
  add_all(*rules_, c, &EncoderConfig::lora, &EncoderConfig::projector_lora, &LlmConfig::lora);
}
AdapterRules::~AdapterRules() = default;

std::optional<run::AdapterSpec> AdapterRules::find(const std::string& linear) const {
  const auto found = rules_->modules.find(module_of(linear));
  if (found == rules_->modules.end()) return std::nullopt;
  found->second.layers.insert(last_part(linear));
  if (!any_match(found->second.on, linear)) return std::nullopt;
  return found->second.spec;
}

void AdapterRules::finish() const {
  std::string text;
  for (const auto& [name, module] : rules_->modules) {
    for (const Pattern& p : module.on) {
      if (p.used) continue;
      text += fmt::format("{}{}: \"{}\" matches no linear layer of {} that can have an adapter: those end in {}",
                          text.empty() ? "" : "\n", p.key, p.text, name, fmt::join(module.layers, ", "));
    }
  }
  if (!text.empty()) throw ConfigError(text);
}

}  // namespace mmt::app
