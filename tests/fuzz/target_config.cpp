// The YAML of a run, through the checked reader into the program's own structures.
#include "apps/mmtrain/config.h"
#include "core/error.h"
#include "tests/fuzz/target.h"

namespace mmt::fuzz::yaml_config {

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  config::Sources sources;
  sources.files.push_back({"fuzz.yaml", "/nowhere", std::string(reinterpret_cast<const char*>(data), size)});
  sources.working_directory = "/nowhere";
  try {
    app::read_config(sources, 1 + static_cast<int>(size % 8));
    accepted();
  } catch (const Error&) {
  }
  return 0;
}

const Registration kRegistered({"yaml_config",
                                LLVMFuzzerTestOneInput,
                                {"../configs/quickstart.yaml", "../configs/quickstart_lora.yaml", "fuzz/corpus/*.yaml"},
                                {"modules:",
                                 "role: encoder",
                                 "role: llm",
                                 "kind: llama",
                                 "layout:",
                                 "all:",
                                 "stages:",
                                 "tp: 2",
                                 "pp: 2",
                                 "dp: 2",
                                 "\"0-3\"",
                                 "schedule: {policy: interleaved, chunks: 2}",
                                 "zero: {llm: 1}",
                                 "trainable: [\"a(\"]",
                                 "lora:",
                                 "template:",
                                 "{bos}",
                                 "auto",
                                 "1e5",
                                 "4MiB",
                                 "-1",
                                 "0",
                                 "1e400",
                                 ".nan",
                                 "&a",
                                 "*a",
                                 "<<: *a",
                                 "!!binary",
                                 "[[[[[[[[",
                                 "{{{{{{{{",
                                 "? ",
                                 ": ",
                                 "\n  ",
                                 "\n    ",
                                 "\"${HOME}\"",
                                 "~",
                                 "true",
                                 "hidden: 32",
                                 "heads: 4",
                                 "layers: 2",
                                 "16777216",
                                 "2147483647",
                                 "-2147483648",
                                 "9223372036854775807",
                                 "\t",
                                 "---",
                                 "..."}});

}  // namespace mmt::fuzz::yaml_config
