// `mmtrain import`: what training would start from, as a checkpoint.
#include "apps/mmtrain/commands.h"
#include "apps/mmtrain/inference.h"
#include "core/log.h"
#include "kernels/cpu/isa.h"
#include "parallel/run/optimizer.h"

#include <filesystem>

namespace mmt::app {

int run_import(Job& job, const Arguments& a) {
  const Config config = job.read(a.config, a.overrides, Job::Needs::nothing);
  in_agreement(job.world(), [&] {
    if (job.rank() != 0) return;
    check_new_folder(a.out);
    std::error_code error;
    std::filesystem::create_directories(a.out, error);
    if (error) throw ConfigError(fmt::format("--out {}: {}", a.out, error.message()));
  });
  const Inference start = load_start(job, config);
  run::TrainingState state;
  state.seed = config.run.seed;
  state.config = start.config.resolved;
  state.instruction_set = name_of(cpu_isa());
  run::CheckpointWriter writer(job.world(), {.folder = a.out});
  writer.save(run::saved_parts(start.model->placed(), start.model->uses, nullptr), state);
  writer.finish();
  log::info("written: {}; train from it with `init: {{checkpoint: ...}}`", *run::find_checkpoint(job.world(), a.out));
  return kDone;
}

}  // namespace mmt::app
