#include "apps/mmtrain/state.h"

#include "apps/mmtrain/parameter_rules.h"
#include "apps/mmtrain/pretrained.h"
#include "core/log.h"

#include <algorithm>
#include <set>

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

void refuse_lost_adapters(const run::CheckpointReader& reader, const Model& model,
                          const std::vector<std::string>& chosen) {
  std::set<std::string> own;
  for (const run::Stage& stage : model.stages) {
    for (const run::ParamSpec& p : models::parameters_of(stage)) own.insert("model/" + canonical_name(p));
  }
  std::string lost;
  for (const run::CheckpointReader::Item& item : reader.tensors()) {
    if (!item.name.starts_with("model/") || !is_adapter(item.name) || own.contains(item.name)) continue;
    if (std::ranges::find(chosen, owner_of(item.name)) != chosen.end()) lost += fmt::format("\n  {}", item.name);
  }
  if (!lost.empty())
    throw ConfigError(
        fmt::format("{} was trained with adapters that this configuration lacks; give the module the "
                    "same `lora`:{}",
                    reader.path(), lost));
}

void load_weights(Job& job, const run::CheckpointReader& reader, Model& model, const std::vector<std::string>& chosen,
                  const Stream& stream, bool fresh_adapters) {
  in_agreement(job.world(), [&] { refuse_lost_adapters(reader, model, chosen); });
  std::vector<run::TensorPart> parts;
  for (const run::SavedPart& p : run::saved_parts(model.placed(), model.uses, nullptr)) {
    if (std::ranges::find(chosen, owner_of(p.name)) == chosen.end()) continue;
    if (fresh_adapters && is_adapter(p.name) && !reader.contains(p.name)) continue;
    parts.push_back(p);
  }
  load_parts(job, reader, model, parts, stream);
}

namespace {

/// "; its 4 adapters start anew", where the checkpoint has none of them.
std::string describe_fresh_adapters(const run::CheckpointReader& reader, const Model& model,
                                    const std::string& module) {
  std::set<std::string> fresh;
  for (const run::Stage& stage : model.stages) {
    for (const run::ParamSpec& p : models::parameters_of(stage)) {
      const std::string name = "model/" + canonical_name(p);
      if (name.find(".lora_A.") != std::string::npos && owner_of(name) == module && !reader.contains(name))
        fresh.insert(name);
    }
  }
  return fresh.empty() ? "" : fmt::format("; {} adapters start anew", fresh.size());
}

}  // namespace

void load_initial(Job& job, const Config& config, Model& model, const Stream& stream) {
  load_pretrained(job, config, model, stream);
  const auto load = [&](const std::string& module, const ModuleInit& init) {
    if (init.checkpoint.empty()) return;
    const auto reader = open_checkpoint(job, init.checkpoint);
    load_weights(job, *reader, model, {module}, stream, true);
    log::info("{}: weights of step {} from {}{}", module, reader->state().step, init.checkpoint,
              describe_fresh_adapters(*reader, model, module));
  };
  for (const EncoderConfig& e : config.encoders) load(e.spec.name, e.init);
  load(config.llm.spec.name, config.llm.init);
}

}  // namespace mmt::app
