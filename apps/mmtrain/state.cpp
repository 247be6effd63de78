#include "apps/mmtrain/state.h"

#include "core/log.h"

#include <algorithm>

namespace mmt::app {
namespace {

run::TensorPart part_of(const run::ParamState& p, const std::string& prefix, const Tensor& data) {
  run::TensorPart part;
  part.name = prefix + canonical_name(*p.spec);
  part.shape = p.spec->shape;
  part.box = {p.spec->box.offset, p.spec->box.shape};
  part.first = p.owned_first;
  part.count = p.owned_count;
  part.data = data;
  return part;
}

constexpr const char* kModel = "model/";
constexpr const char* kFirst = "optimizer/first_moment/";
constexpr const char* kSecond = "optimizer/second_moment/";

/// The module of a parameter without its projector's ending.
std::string owner_of(const run::ParamSpec& spec) { return spec.module.substr(0, spec.module.find('.')); }

}  // namespace

std::string checkpoint_folder(const Config& config) { return config.run.output_dir + "/checkpoints"; }

std::vector<run::SavedPart> saved_parts(Model& model, const run::Optimizer& optimizer, bool is_owner) {
  std::vector<run::SavedPart> parts;
  const auto add = [&](run::TensorPart part, bool frozen) {
    run::SavedPart saved;
    static_cast<run::TensorPart&>(saved) = std::move(part);
    saved.is_owner = is_owner;
    saved.frozen = frozen;
    parts.push_back(std::move(saved));
  };
  for (run::ParamState* p : model.owned_params(false)) add(part_of(*p, kModel, p->master), !p->spec->trainable);
  const std::vector<run::ParamState*> trained = model.owned_params(true);
  for (std::size_t i = 0; i < trained.size(); ++i) {
    MMT_CHECK(optimizer.params()[i].name == canonical_name(*trained[i]->spec), "the optimizer's parameter {} is {}", i,
              optimizer.params()[i].name);
    add(part_of(*trained[i], kFirst, optimizer.first_moment(i)), false);
    add(part_of(*trained[i], kSecond, optimizer.second_moment(i)), false);
  }
  return parts;
}

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
  for (const auto& store : model.stores) refresh_compute(*store, stream);
}

}  // namespace

void load_training(Job& job, const run::CheckpointReader& reader, Model& model, const run::Optimizer& optimizer,
                   const Stream& stream) {
  std::vector<run::TensorPart> parts;
  for (const run::SavedPart& p : saved_parts(model, optimizer, true)) parts.push_back(p);
  load_parts(job, reader, model, parts, stream);
}

void load_weights(Job& job, const run::CheckpointReader& reader, Model& model, const std::vector<std::string>& chosen,
                  const Stream& stream) {
  std::vector<run::TensorPart> parts;
  for (run::ParamState* p : model.owned_params(false)) {
    if (std::ranges::find(chosen, owner_of(*p->spec)) != chosen.end()) parts.push_back(part_of(*p, kModel, p->master));
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
