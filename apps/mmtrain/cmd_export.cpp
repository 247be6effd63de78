// `mmtrain export`: from a checkpoint to the folders of published models.
#include "apps/mmtrain/commands.h"
#include "apps/mmtrain/dataset.h"
#include "apps/mmtrain/export.h"
#include "apps/mmtrain/inference.h"
#include "core/log.h"

namespace mmt::app {
int run_export(Job& job, const Arguments& a) {
  Config c = job.read(a.config, a.overrides, Job::Needs::nothing);
  in_agreement(job.world(), [&] { set_vocabulary(c, Preparer(c).tokenizer()); });
  const std::string folder = resolve_checkpoint(job, a.checkpoint.empty() ? c.run.output_dir : a.checkpoint);
  const auto reader = open_checkpoint(job, folder);
  if (job.rank() == 0) warn_of_changes(reader->state().config, c.resolved);
  in_agreement(job.world(), [&] {
    if (job.rank() != 0) return;
    ExportOptions options;
    options.out = a.out;
    options.dtype = a.dtype;
    options.merge_adapters = a.lora != "separate";
    options.shard_bytes = a.shard_bytes;
    for (const std::string& written : export_model(c, *reader, options)) log::info("written: {}", written);
  });
  return kDone;
}

}  // namespace mmt::app
