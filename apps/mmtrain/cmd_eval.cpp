#include "apps/mmtrain/commands.h"
#include "apps/mmtrain/inference.h"
#include "apps/mmtrain/signals.h"
#include "core/log.h"

#include <nlohmann/json.hpp>

#include <iostream>

namespace mmt::app {

int run_eval(Job& job, const Arguments& a) {
  if (a.json) log::set_level(log::Level::warning);  // standard output holds the result alone
  job.report();
  const Config config = job.read(a.config, a.overrides, Job::Needs::nothing);
  if (config.eval.sets.empty()) throw Agreed(kUsage, fmt::format("{}: there are no eval.sets", a.config));
  Inference inference = load_inference(job, config, a.checkpoint);
  const std::vector<data::DatasetIndex> indexes =
      open_indexes(inference.config, config.eval.sets, *inference.preparer, job.world(), &stop_requested(), false);
  std::vector<const data::DatasetIndex*> views;
  for (const data::DatasetIndex& index : indexes) views.push_back(&index);
  Engine engine(inference.config, job.world(), *inference.model, row_caps(inference.config, views), inference.stream);
  const std::vector<EvalResult> results =
      evaluate(inference.config, job, *inference.model, engine, *inference.preparer, indexes, stop_requested());
  if (results.size() < indexes.size()) throw Agreed(kRequeue, "stopped before the end of the evaluation");
  if (job.rank() != 0) return kDone;
  if (!a.json) {
    std::cout << fmt::format("{:<32} {:>8} {:>8} {:>9} {:>9} {:>9}\n", "set", "samples", "failed", "loss", "tokens",
                             "answers");
    for (const EvalResult& r : results) {
      std::cout << fmt::format("{:<32} {:>8} {:>8} {:>9.4f} {:>8.2f}% {:>8.2f}%\n", r.set, r.samples, r.failed, r.loss,
                               100 * r.token_accuracy(), 100 * r.answer_accuracy());
    }
    return kDone;
  }
  nlohmann::json out;
  out["checkpoint"] = inference.checkpoint;
  out["step"] = inference.step;
  out["sets"] = nlohmann::json::array();
  for (const EvalResult& r : results) {
    out["sets"].push_back({{"name", r.set},
                           {"samples", r.samples},
                           {"failed", r.failed},
                           {"loss", r.loss},
                           {"tokens", r.tokens},
                           {"token_accuracy", r.token_accuracy()},
                           {"answers", r.answers},
                           {"answer_accuracy", r.answer_accuracy()}});
  }
  std::cout << out.dump(2) << "\n";
  return kDone;
}

}  // namespace mmt::app
