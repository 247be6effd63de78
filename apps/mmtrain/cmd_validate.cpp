// `mmtrain validate`: everything that can be wrong before a run, without ranks, GPUs or training.
#include "apps/mmtrain/commands.h"
#include "apps/mmtrain/dataset.h"
#include "apps/mmtrain/model.h"
#include "apps/mmtrain/signals.h"
#include "core/log.h"
#include "parallel/plan/step.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <iostream>
#include <map>

namespace mmt::app {
namespace {

struct SetCheck {
  std::string name;
  std::int64_t samples = 0, usable = 0;
  std::vector<std::int64_t> faults;
  std::vector<std::string> messages;  ///< of the first bad samples
};

constexpr int kShown = 10;

/// Decodes every medium of the usable samples; adds what fails to the check.
void decode_all(const data::DatasetIndex& index, const data::Preparation& preparation, SetCheck& check) {
  std::vector<float> values;
  for (const std::int64_t i : index.usable()) {
    if (stop_requested()) return;
    const std::string where = index.records().where(i);
    try {
      const data::Record record = index.records().read(i);
      for (const data::Item& item : index.entry(i).items) {
        values.resize(static_cast<std::size_t>(item.shape.input_rows) *
                      static_cast<std::size_t>(item.shape.input_cols));
        preparation.encoders[static_cast<std::size_t>(item.encoder)].load_item(
            record.media[static_cast<std::size_t>(item.media)], where, item.shape, item.part, values);
      }
    } catch (const DataError& e) {
      --check.usable;
      ++check.faults[static_cast<std::size_t>(e.fault())];
      if (check.messages.size() < kShown) check.messages.push_back(e.what());
    }
  }
}

SetCheck check_set(const Config& c, const SetConfig& set, const Preparer& preparer, bool decode) {
  data::IndexOptions options;
  options.threads = static_cast<int>(std::max<std::int64_t>(c.data.workers, 2));
  options.write = false;
  options.stop = &stop_requested();
  const data::DatasetIndex index = data::DatasetIndex::build(set_spec(c, set), preparer.preparation(), options);
  SetCheck check{set.name, index.size(), static_cast<std::int64_t>(index.usable().size()), index.faults(), {}};
  for (std::int64_t i = 0; i < index.indexed() && check.messages.size() < kShown; ++i) {
    if (index.entry(i).fault) check.messages.push_back(index.explain(i, preparer.preparation()));
  }
  if (decode) decode_all(index, preparer.preparation(), check);
  return check;
}

}  // namespace

int run_validate(Job& job, const Arguments& a) {
  if (a.json) log::set_level(log::Level::warning);
  Config c = job.read(a.config, a.overrides, Job::Needs::nothing);
  if (job.rank() != 0) return kDone;  // one rank looks; what it throws ends all
  const Preparer preparer(c);
  set_vocabulary(c, preparer.tokenizer());
  const Model model = build_model(c);
  std::vector<SetCheck> checks;
  std::int64_t bad = 0, empty = 0;
  for (const auto* sets : {&c.data.sets, &c.eval.sets}) {
    for (const SetConfig& set : *sets) {
      checks.push_back(check_set(c, set, preparer, a.decode));
      bad += checks.back().samples - checks.back().usable;
      empty += checks.back().usable == 0 ? 1 : 0;
      if (stop_requested()) return kRequeue;
    }
  }
  const bool strict = c.data.bad_samples == DataConfig::Bad::error;
  const bool good = empty == 0 && (bad == 0 || !strict);
  if (a.json) {
    nlohmann::json out;
    out["valid"] = good;
    for (const SetCheck& check : checks) {
      nlohmann::json faults = nlohmann::json::object();
      for (std::size_t f = 0; f < check.faults.size(); ++f) {
        if (check.faults[f] > 0) faults[std::string(name_of(static_cast<DataFault>(f)))] = check.faults[f];
      }
      out["sets"].push_back({{"name", check.name},
                             {"samples", check.samples},
                             {"usable", check.usable},
                             {"faults", faults},
                             {"messages", check.messages}});
    }
    std::cout << out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  } else {
    log::info("{}: the configuration is valid; {}", a.config, describe(model));
    for (const SetCheck& check : checks) {
      log::info("{}: {} samples, {} usable", check.name, check.samples, check.usable);
      for (const std::string& m : check.messages) log::info("  {}", m);
      if (check.samples - check.usable > static_cast<std::int64_t>(check.messages.size())) {
        log::info("  and {} more", check.samples - check.usable - static_cast<std::int64_t>(check.messages.size()));
      }
    }
  }
  if (good) return kDone;
  if (!a.json)
    log::error("{}", empty > 0 ? "a data set has no usable sample" : "bad samples, and data.bad_samples is error");
  return kFailed;
}

}  // namespace mmt::app
