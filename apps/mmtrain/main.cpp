#include "apps/mmtrain/commands.h"
#include "apps/mmtrain/signals.h"
#include "core/arena.h"

#include <CLI/CLI.hpp>

#include <cstdlib>
#include <string_view>

int main(int argc, char** argv) {
  using namespace mmt::app;
  CLI::App app(
      "Trainer for multimodal LLMs. `mpirun -np N mmtrain train CONFIG` trains on N ranks; every command also runs "
      "alone, on "
      "one rank.\nRelative paths in a config are relative to the config file. Exit codes: 0 done, 1 failed, 2 usage or "
      "configuration, 3 loss or gradient not finite, 4 out of memory, 5 another rank failed, 75 saved on request: "
      "start again.");
  app.require_subcommand(1);
  Arguments a;
  int (*command)(Job&, const Arguments&) = nullptr;
  const auto add = [&](const char* name, const char* text, int (*run)(Job&, const Arguments&), bool config) {
    CLI::App* sub = app.add_subcommand(name, text);
    if (config) {
      sub->add_option("config", a.config, "YAML file")->required();
      sub->add_option("--set", a.overrides, "replace a value: --set train.steps=10 (may be repeated)")
          ->type_name("KEY=VALUE")
          ->allow_extra_args(false);
    }
    sub->callback([&command, run] { command = run; });
    return sub;
  };
  const auto add_json = [&](CLI::App* sub) {
    sub->add_flag("--json", a.json, "write the result as JSON to standard output");
  };
  const auto add_checkpoint = [&](CLI::App* sub) {
    sub->add_option("--checkpoint", a.checkpoint, "a checkpoint folder (default: the newest of run.output_dir)");
  };

  const auto at_least_zero = [](const std::string& text) {
    return text.empty() || text.front() == '-' ? text + " is below 0" : std::string();
  };

  add("train", "train, from the newest checkpoint of run.output_dir where there is one", run_train, true);

  CLI::App* eval = add("eval", "evaluate a checkpoint on eval.sets", run_eval, true);
  add_checkpoint(eval);
  add_json(eval);

  CLI::App* generate = add("generate", "answer prompts, or the first samples of eval.sets", run_generate, true);
  add_checkpoint(generate);
  add_json(generate);
  generate->add_option("--prompt", a.prompt,
                       "a user turn; <image> and <audio> stand for the files given (default: in front)");
  generate->add_option("--image", a.images, "picture of the prompt (may be repeated)")->allow_extra_args(false);
  generate->add_option("--audio", a.audios, "sound of the prompt (may be repeated)")->allow_extra_args(false);
  generate->add_option("--video", a.videos, "video of the prompt, a file or a folder of frames (may be repeated)")
      ->allow_extra_args(false);
  generate
      ->add_option("--samples", a.samples,
                   "without --prompt: how many samples of each set (default: eval.generate, or 4)")
      ->check(at_least_zero);
  generate->add_option("--max-new-tokens", a.max_new_tokens, "default: eval.max_new_tokens")
      ->check(CLI::PositiveNumber);
  generate->add_option("--temperature", a.temperature, "0: greedy")->check(at_least_zero);
  generate->add_option("--top-p", a.top_p, "smallest set of tokens with this probability")
      ->check([](const std::string& text) {
        const double p = std::strtod(text.c_str(), nullptr);
        return p > 0.0 && p <= 1.0 ? std::string() : text + " is not above 0 and at most 1";
      });
  generate->add_option("--seed", a.seed, "of the draws (default: run.seed)")->check(at_least_zero);

  CLI::App* dump = add("dump", "run one training step and write its loss and gradients", run_dump, true);
  dump->add_option("--out", a.out, "HDF5 file to write")->required();
  dump->add_option("--step", a.step, "which step; those before it are made first")->check(CLI::PositiveNumber);
  dump->add_flag("--logits", a.logits, "also the logits of every sample");

  CLI::App* profile = add("profile", "measure layers and copies on this machine, for planning", run_profile, true);
  profile->add_option("--out", a.out, "cost file to write (default: costs.json)");

  CLI::App* index = add("index", "index the data sets ahead of a run", run_index, true);
  add_json(index);

  CLI::App* validate =
      add("validate", "check a config and the header of every sample; no MPI needed", run_validate, true);
  validate->add_flag("--decode", a.decode, "decode every picture and sound, too");
  add_json(validate);

  CLI::App* plan = add("plan", "what the layout means for every rank: stages, memory, predicted step; no MPI needed",
                       run_plan, true);
  const auto add_ranks = [&](CLI::App* sub) {
    sub->add_option("--ranks", a.ranks, "plan for so many ranks (default: as many as the layout says)")
        ->check(CLI::Range(1, 1 << 20));
  };
  add_ranks(plan);
  add_json(plan);

  CLI::App* simulate =
      add("simulate", "compare schedules by simulation, write their timelines; no MPI needed", run_simulate, true);
  add_ranks(simulate);
  add_json(simulate);
  simulate->add_option("--policies", a.policies, "which schedules, separated by commas (default: all)");
  simulate->add_option("--from-trace", a.from_trace,
                       "replay a step that log.trace recorded, from the processor time of its actions");
  simulate->add_option("--out", a.out, "folder for timeline.html and trace.json of each schedule");

  CLI::App* importing = add("import", "write what training would start from as a checkpoint", run_import, true);
  importing->add_option("--out", a.out, "folder to make")->required();

  CLI::App* exporting = add("export", "write a checkpoint as folders that from_pretrained loads", run_export, true);
  add_checkpoint(exporting);
  exporting->add_option("--out", a.out, "folder to make")->required();
  exporting->add_option("--dtype", a.dtype, "of all weights (default: as they were imported, else train.precision)")
      ->transform(CLI::IsMember({"F32", "BF16", "F16"}, CLI::ignore_case));
  exporting->add_option("--lora", a.lora, "adapters: merged into the weights, or separate as PEFT folders")
      ->check(CLI::IsMember({"merged", "separate"}));
  exporting->add_option("--shard-bytes", a.shard_bytes, "largest file of weights: 5GiB, 500MB, a number")
      ->transform(CLI::AsSizeValue(true))
      ->check(CLI::PositiveNumber);

  CLI::App* inspect = add("inspect", "what a checkpoint, a safetensors file or a tokenizer holds", run_inspect, false);
  inspect
      ->add_option("checkpoint", a.checkpoint,
                   "checkpoint folder, run folder, config, or published weights (.safetensors, their index or folder), "
                   "tokenizer.json or tokenizer.model")
      ->required();
  inspect->add_option("--text", a.text,
                      "of a tokenizer: print the ids of the texts in this file, one JSON string a line");
  inspect->add_flag("--special", a.special, "with --text: special tokens in the texts are special");
  add_json(inspect);

  add_json(add("env", "what this machine and build offer", run_env, false));
  add("version", "print the version", run_version, false);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? kDone : kUsage;
  }
  // Fresh and released memory filled with NaN: costs time, for tests.
  if (const char* poison = std::getenv("MMTRAIN_POISON"); poison != nullptr && std::string_view(poison) == "1")
    mmt::set_poisoning(true);
  install_signal_handlers();
  return run_command([&](Job& job) { return command(job, a); }, &argc, &argv);
}
