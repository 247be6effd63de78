#include "apps/mmtrain/signals.h"
#include "apps/mmtrain/trainer.h"

#include <CLI/CLI.hpp>

int main(int argc, char** argv) {
  using namespace mmt::app;
  CLI::App app("Trainer for multimodal LLMs");
  std::string config;
  std::vector<std::string> sets;
  CLI::App* train = app.add_subcommand("train", "train a model");
  train->add_option("config", config)->required();
  train->add_option("--set", sets);
  app.require_subcommand(1);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? kDone : kUsage;
  }
  install_signal_handlers();
  return run_command(
      [&](Job& job) {
        job.report();
        return Trainer(job.read(config, sets), job).run();
      },
      &argc, &argv);
}
