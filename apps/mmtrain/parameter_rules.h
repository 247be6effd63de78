// What the patterns of the modules say about parameters and linear layers: which train, which have an adapter.
#pragma once

#include "apps/mmtrain/config.h"

#include <memory>
#include <optional>
#include <string>

namespace mmt::app {

/// Whether a parameter trains, from the rules of all modules. Throws ConfigError for a pattern that is wrong or that
/// matches nothing (call `finish` once all parameters were asked for).
class TrainableRules {
 public:
  explicit TrainableRules(const Config& config);
  ~TrainableRules();
  bool trains(const std::string& name) const;  ///< "<module>/<parameter>"
  void finish() const;

 private:
  struct Rules;
  std::unique_ptr<Rules> rules_;
};

/// Which linear layers have a low-rank adapter. Throws as TrainableRules does.
class AdapterRules {
 public:
  explicit AdapterRules(const Config& config);
  ~AdapterRules();
  std::optional<run::AdapterSpec> find(const std::string& linear) const;  ///< "<module>/<layer>"
  void finish() const;

 private:
  struct Rules;
  std::unique_ptr<Rules> rules_;
};

/// Whether a parameter belongs to an adapter.
bool is_adapter(const std::string& name);

}  // namespace mmt::app
