#include "apps/mmtrain/commands.h"
#include "apps/mmtrain/trainer.h"

namespace mmt::app {

int run_train(Job& job, const Arguments& a) {
  job.report();
  const Config config = job.read(a.config, a.overrides);
  return Trainer(config, job).run();
}

}  // namespace mmt::app
