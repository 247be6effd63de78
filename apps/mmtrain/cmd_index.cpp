#include "apps/mmtrain/commands.h"
#include "apps/mmtrain/dataset.h"
#include "apps/mmtrain/signals.h"
#include "core/log.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <iostream>

namespace mmt::app {
namespace {

struct SetSummary {
  std::int64_t samples = 0, usable = 0, reused = 0, rows = 0, supervised = 0, items = 0;
  std::int64_t longest = 0;
  std::vector<std::int64_t> faults;
};

SetSummary summarize(const data::DatasetIndex& index) {
  SetSummary s;
  s.samples = index.size();
  s.usable = static_cast<std::int64_t>(index.usable().size());
  s.reused = index.reused();
  s.faults = index.faults();
  for (const std::int64_t i : index.usable()) {
    const data::IndexEntry e = index.entry(i);
    s.rows += e.tokens;
    s.supervised += e.supervised;
    s.items += static_cast<std::int64_t>(e.items.size());
    s.longest = std::max<std::int64_t>(s.longest, e.tokens);
  }
  return s;
}

nlohmann::json to_json(const SetConfig& set, const SetSummary& s, const std::string& path) {
  nlohmann::json faults = nlohmann::json::object();
  for (std::size_t f = 0; f < s.faults.size(); ++f) {
    if (s.faults[f] > 0) faults[std::string(name_of(static_cast<DataFault>(f)))] = s.faults[f];
  }
  return {{"name", set.name},           {"path", set.path}, {"index", path},    {"samples", s.samples},
          {"usable", s.usable},         {"rows", s.rows},   {"items", s.items}, {"longest", s.longest},
          {"supervised", s.supervised}, {"faults", faults}};
}

}  // namespace

int run_index(Job& job, const Arguments& a) {
  if (a.json) log::set_level(log::Level::warning);
  Config config = job.read(a.config, a.overrides, Job::Needs::nothing);
  config.data.bad_samples = DataConfig::Bad::skip;  // indexing reports what is bad, training decides
  std::unique_ptr<Preparer> preparer;
  in_agreement(job.world(), [&] { preparer = std::make_unique<Preparer>(config); });
  nlohmann::json out = nlohmann::json::array();
  for (const auto* sets : {&config.data.sets, &config.eval.sets}) {
    const std::vector<data::DatasetIndex> indexes =
        open_indexes(config, *sets, *preparer, job.world(), &stop_requested(), false);
    for (std::size_t i = 0; i < indexes.size(); ++i) {
      const SetSummary s = summarize(indexes[i]);
      log::info("{}: {} samples ({} usable, {} known before), {} rows, longest {}, {} media items: {}", (*sets)[i].name,
                s.samples, s.usable, s.reused, s.rows, s.longest, s.items, indexes[i].index_path().string());
      out.push_back(to_json((*sets)[i], s, indexes[i].index_path().string()));
    }
  }
  if (a.json && job.rank() == 0) std::cout << out.dump(2) << "\n";
  return kDone;
}

}  // namespace mmt::app
