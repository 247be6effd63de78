#include "apps/mmtrain/inference.h"

#include "core/log.h"
#include "kernels/backend.h"

#include <filesystem>

namespace mmt::app {

std::string resolve_checkpoint(Job& job, const std::string& path) {
  namespace fs = std::filesystem;
  std::int64_t is_checkpoint = fs::exists(fs::path(path) / "index.h5") ? 1 : 0;
  job.world().broadcast(Tensor(&is_checkpoint, DType::i64, {1}), 0);
  if (is_checkpoint != 0) return path;
  for (const std::string& folder : {path + "/checkpoints", path}) {
    if (const auto found = run::find_checkpoint(job.world(), folder)) return *found;
  }
  throw Agreed(kUsage, fmt::format("{} holds no checkpoint: train first, or give --checkpoint", path));
}

Inference load_inference(Job& job, const Config& config, const std::string& checkpoint) {
  Inference inference;
  inference.config = config;
  inference.stream = cpu_stream();
  Config& c = inference.config;
  in_agreement(job.world(), [&] { inference.preparer = std::make_unique<Preparer>(c); });
  if (c.llm.spec.vocabulary == 0) c.llm.spec.vocabulary = inference.preparer->tokenizer().vocab_size();
  in_agreement(job.world(), [&] { inference.model = std::make_unique<Model>(build_model(c)); });
  make_stores(*inference.model, nullptr, inference.stream);
  inference.checkpoint = resolve_checkpoint(job, checkpoint.empty() ? c.run.output_dir : checkpoint);
  const auto reader = open_checkpoint(job, inference.checkpoint);
  std::vector<std::string> modules = {c.llm.spec.name};
  for (const EncoderConfig& e : c.encoders) modules.push_back(e.spec.name);
  load_weights(job, *reader, *inference.model, modules, inference.stream);
  inference.step = reader->state().step;
  log::info("weights of step {} from {}", inference.step, inference.checkpoint);
  return inference;
}

}  // namespace mmt::app
