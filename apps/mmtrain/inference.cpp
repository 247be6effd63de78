#include "apps/mmtrain/inference.h"

#include "apps/mmtrain/layout.h"
#include "core/log.h"
#include "kernels/backend.h"

#include <algorithm>
#include <filesystem>
#include <optional>

namespace mmt::app {

namespace {

std::optional<std::string> find_checkpoint(Job& job, const std::string& path) {
  namespace fs = std::filesystem;
  std::int64_t is_checkpoint = fs::exists(fs::path(path) / "index.h5") ? 1 : 0;
  job.world().broadcast(Tensor(&is_checkpoint, DType::i64, {1}), 0);
  if (is_checkpoint != 0) return path;
  for (const std::string& folder : {path + "/checkpoints", path}) {
    if (const auto found = run::find_checkpoint(job.world(), folder)) return found;
  }
  return std::nullopt;
}

/// Whether every module, projectors too, starts from weights.
bool all_start_from_weights(const Config& c) {
  const auto has = [](const ModuleInit& init) { return !init.checkpoint.empty() || !init.hf.empty(); };
  return has(c.llm.init) && std::ranges::all_of(c.encoders, [&](const EncoderConfig& e) {
           return has(e.init) &&
                  (e.spec.projector.kind == "none" || !e.init.checkpoint.empty() || !e.projector_init.hf.empty());
         });
}

/// A size that one of the configs leaves to be derived (0).
bool is_left_open(const config::Change& c) {
  constexpr std::string_view kDerived[] = {".hidden",     ".intermediate", ".kv_heads",  ".head_dim",
                                           ".vocabulary", ".min_pixels",   ".max_pixels"};
  return (c.before == "0" || c.after == "0") &&
         std::ranges::any_of(kDerived, [&](std::string_view ending) { return c.key.ends_with(ending); });
}

/// The model without its weights.
Inference build(Job& job, const Config& config, bool whole) {
  Inference inference;
  inference.config = config;
  inference.stream = cpu_stream();
  Config& c = inference.config;
  in_agreement(job.world(), [&] { inference.preparer = std::make_unique<Preparer>(c); });
  set_vocabulary(c, inference.preparer->tokenizer());
  in_agreement(job.world(), [&] {
    if (whole) {
      inference.model = std::make_unique<Model>(build_model(c));
      return;
    }
    // Forward only, so any cut serves; costs are compared at a microbatch of text.
    const std::int64_t rows = c.train.tokens_per_microbatch;
    const std::vector<plan::BlockSize> sizes(
        c.encoders.size() + 1, {.rows = rows, .supervised = rows / 4, .source = rows, .out = rows, .tiles = 0});
    const LayoutChoice choice = make_layout(c, sizes);
    inference.model = std::make_unique<Model>(build_model(c, choice.layout, job.rank()));
    choice.apply(*inference.model);
  });
  make_stores(*inference.model, job.world(), inference.stream);
  return inference;
}

void load_first_weights(Job& job, Inference& inference) {
  initialize_model(*inference.model, inference.config.run.seed, inference.stream);
  load_initial(job, inference.config, *inference.model, inference.stream);
}

}  // namespace

std::string resolve_checkpoint(Job& job, const std::string& path) {
  if (const auto found = find_checkpoint(job, path)) return *found;
  throw Agreed(kUsage, fmt::format("{} holds no checkpoint: train first, or give --checkpoint", path));
}

/// Shapes alone do not show that heads, windows or the template are others than in training.
void warn_of_changes(const std::string& before, const std::string& now) {
  std::string text;
  for (const config::Change& c : config::diff(before, now)) {
    const bool model = c.key.starts_with("modules.") && c.key.find("trainable") == std::string::npos &&
                       c.key.find("frozen") == std::string::npos && c.key.find(".init") == std::string::npos;
    if ((model && !is_left_open(c)) || c.key.starts_with("data.template")) text += "\n  " + to_string(c);
  }
  if (!text.empty()) log::warning("this is not the model that the checkpoint was trained as:{}", text);
}

Inference load_start(Job& job, const Config& config) {
  Inference inference = build(job, config, false);
  load_first_weights(job, inference);
  return inference;
}

Inference load_inference(Job& job, const Config& config, const std::string& checkpoint, bool whole) {
  Inference inference = build(job, config, whole);
  const Config& c = inference.config;
  if (checkpoint.empty() && all_start_from_weights(c) && !find_checkpoint(job, c.run.output_dir)) {
    load_first_weights(job, inference);
    log::info("{} holds no checkpoint: the weights are those that training would start from", c.run.output_dir);
    return inference;
  }
  inference.checkpoint = resolve_checkpoint(job, checkpoint.empty() ? c.run.output_dir : checkpoint);
  const auto reader = open_checkpoint(job, inference.checkpoint);
  std::vector<std::string> modules = {c.llm.spec.name};
  for (const EncoderConfig& e : c.encoders) modules.push_back(e.spec.name);
  load_weights(job, *reader, *inference.model, modules, inference.stream);
  if (job.rank() == 0) warn_of_changes(reader->state().config, c.resolved);
  inference.step = reader->state().step;
  log::info("weights of step {} from {}", inference.step, inference.checkpoint);
  return inference;
}

}  // namespace mmt::app
