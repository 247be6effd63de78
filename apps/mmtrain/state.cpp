#include "apps/mmtrain/state.h"

#include "core/log.h"

#include <algorithm>

namespace mmt::app {
namespace {

/// The module of "model/<module>/<name>", without its projector's ending.
std::string owner_of(const std::string& name) {
  const std::string module = name.substr(std::string_view("model/").size());
  return module.substr(0, module.find_first_of("./"));
}

}  // namespace

std::string checkpoint_folder(const Config& config) { return config.run.output_dir + "/checkpoints"; }

std::unique_ptr<run::CheckpointReader> open_checkpoint(Job& job, const std::string& path) {
  std::unique_ptr<run::CheckpointReader> reader;
  in_agreement(job.world(), [&] { reader = std::make_unique<run::CheckpointReader>(path); });
  return reader;
}

namespace {

void load_parts(Job& job, const run::CheckpointReader& reader, Model& model, std::span<const run::TensorPart> parts,
                const Stream& stream) {
  // Names and shapes are the user's matter and known to all ranks alike; what fails later is the disk's.
  in_agreement(job.world(), [&] {
    std::string missing;
    for (const run::TensorPart& p : parts) {
      if (!reader.contains(p.name)) missing += fmt::format("\n  {}", p.name);
    }
    if (!missing.empty())
      throw ConfigError(fmt::format("{} lacks tensors that this model has:{}", reader.path(), missing));
  });
  load_checkpoint(job.world(), reader, parts);
  for (const int s : model.own) refresh_compute(*model.stores[static_cast<std::size_t>(s)], stream);
}

}  // namespace

void load_training(Job& job, const run::CheckpointReader& reader, Model& model, const run::Optimizer& optimizer,
                   const Stream& stream) {
  std::vector<run::TensorPart> parts;
  for (const run::SavedPart& p : run::saved_parts(model.placed(), model.uses, &optimizer)) parts.push_back(p);
  load_parts(job, reader, model, parts, stream);
}

void load_weights(Job& job, const run::CheckpointReader& reader, Model& model, const std::vector<std::string>& chosen,
                  const Stream& stream) {
  std::vector<run::TensorPart> parts;
  for (const run::SavedPart& p : run::saved_parts(model.placed(), model.uses, nullptr)) {
    if (std::ranges::find(chosen, owner_of(p.name)) != chosen.end()) parts.push_back(p);
  }
  load_parts(job, reader, model, parts, stream);
}

void load_initial(Job& job, const Config& config, Model& model, const Stream& stream) {
  const auto load = [&](const std::string& module, const ModuleInit& init) {
    if (init.checkpoint.empty()) return;
    const auto reader = open_checkpoint(job, init.checkpoint);
    load_weights(job, *reader, model, {module}, stream);
    log::info("{}: weights of step {} from {}", module, reader->state().step, init.checkpoint);
  };
  for (const EncoderConfig& e : config.encoders) load(e.spec.name, e.init);
  load(config.llm.spec.name, config.llm.init);
}

}  // namespace mmt::app
