// The commands of the binary, one file each. Every one returns an exit code or throws.
#pragma once

#include "apps/mmtrain/job.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mmt::app {

/// What the command line says; each command reads its own fields.
struct Arguments {
  std::string config;
  std::vector<std::string> overrides;  ///< --set a.b=c
  bool json = false;                   ///< a result for programs on standard output
  std::string checkpoint;              ///< eval, generate, inspect: a checkpoint folder; empty: the run's newest
  std::string out;                     ///< dump, profile: a file to write; import, export: a folder
  // dump
  std::int64_t step = 1;
  bool logits = false;
  // generate
  std::string prompt;
  std::vector<std::string> images, audios, videos;
  std::int64_t max_new_tokens = 0;  ///< 0: eval.max_new_tokens
  double temperature = 0.0;         ///< 0: greedy
  double top_p = 1.0;
  std::optional<std::uint64_t> seed;
  std::int64_t samples = 0;  ///< answer the first samples of each evaluation set
  // plan, simulate
  std::int64_t ranks = 0;  ///< 0: as many as the layout says
  std::string policies;    ///< comma-separated; empty: all
  std::string from_trace;  ///< simulate: a recorded step to replay
  // export
  std::string dtype, lora = "merged";
  std::uint64_t shard_bytes = std::uint64_t{5} << 30;
  // inspect
  std::string text;      ///< a file of texts, one JSON string a line, whose ids a tokenizer prints
  bool special = false;  ///< special tokens in these texts count as such
  // validate
  bool decode = false;  ///< decode every medium, not its header alone
};

int run_train(Job& job, const Arguments& arguments);
int run_eval(Job& job, const Arguments& arguments);
int run_dump(Job& job, const Arguments& arguments);
int run_generate(Job& job, const Arguments& arguments);
int run_profile(Job& job, const Arguments& arguments);
int run_index(Job& job, const Arguments& arguments);
int run_validate(Job& job, const Arguments& arguments);
int run_plan(Job& job, const Arguments& arguments);
int run_simulate(Job& job, const Arguments& arguments);
int run_import(Job& job, const Arguments& arguments);
int run_export(Job& job, const Arguments& arguments);
int run_inspect(Job& job, const Arguments& arguments);
int run_env(Job& job, const Arguments& arguments);
int run_version(Job& job, const Arguments& arguments);

}  // namespace mmt::app
