#include "apps/mmtrain/pretrained.h"

#include "apps/mmtrain/parameter_rules.h"
#include "core/log.h"
#include "models/hf_config.h"
#include "parallel/run/checkpoint_pieces.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <set>

namespace mmt::app {
namespace {

constexpr std::size_t kMostNamed = 8;  // names in a message

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMostNamed); ++i) text += "\n  " + names[i];
  if (names.size() > kMostNamed) text += fmt::format("\n  and {} more", names.size() - kMostNamed);
  return text;
}

/// All parameters that a module of this kind has when all its layers are built, without adapters.
std::set<std::string> family_stems(const Config& c, const PretrainedPart& part) {
  std::set<std::string> stems;
  const auto add = [&](const run::Stage& stage, const std::string& module) {
    for (const run::ParamSpec& p : models::parameters_of(stage)) {
      if (p.module == module) stems.insert(models::hf_stem(part.part, p.name).value_or(p.name));
    }
  };
  for (const EncoderConfig& e : c.encoders) {
    models::EncoderSpec spec = e.spec;
    if (part.module == spec.name) {
      spec.feature_layer = -1;
      spec.post_norm = spec.kind != "qwen2_vl";  // which has its last norm in the projector
      add(models::build_encoder(spec, c.llm.spec.hidden, {}), part.module);
    } else if (part.module == spec.name + ".projector") {
      add(models::build_encoder(spec, c.llm.spec.hidden, {}), part.module);
    }
  }
  if (part.module == c.llm.spec.name) {
    models::LlmSpec spec = c.llm.spec;
    spec.tie_embeddings = false;  // a tied head may be stored all the same
    add(models::build_llm(spec, {}, {}), part.module);
  }
  return stems;
}

/// "layers" of "layers.0.mlp.up_proj.weight".
std::string_view first_word(std::string_view stem) { return stem.substr(0, stem.find('.')); }

/// A head that is stored though it is tied should be the embedding.
void check_tied_head(const Config& c, const models::HfNames& names, const data::SafetensorsModel& files) {
  const std::string* head = names.find("lm_head.weight");
  const std::string* embedding = names.find("model.embed_tokens.weight");
  if (!c.llm.spec.tie_embeddings || head == nullptr || embedding == nullptr) return;
  const auto a = files.data(*head), b = files.data(*embedding);
  if (files.tensor(*head).shape != files.tensor(*embedding).shape) {
    throw ConfigError(fmt::format("{}: {} is [{}], but the model ties it to {}, which is [{}]", files.path(), *head,
                                  fmt::join(files.tensor(*head).shape, ","), *embedding,
                                  fmt::join(files.tensor(*embedding).shape, ",")));
  }
  if (a.size() != b.size() || std::memcmp(a.data(), b.data(), a.size()) != 0) {
    log::warning("{}: {} differs from {}, but the model ties them: the embedding is used for both", files.path(), *head,
                 *embedding);
  }
}

/// The weight that an adapter's tensor stands beside.
std::string base_of(const std::string& adapter) {
  return is_adapter(adapter) ? adapter.substr(0, adapter.find(".lora_")) + ".weight" : adapter;
}

/// Tensors of an adapter folder that belong to no module that reads it.
void warn_of_unread(const std::string& folder, const data::SafetensorsModel& files,
                    const std::vector<PretrainedPart>& parts) {
  std::vector<std::string> unread;
  for (const std::string& name : files.names()) {
    if (std::ranges::none_of(parts, [&](const PretrainedPart& p) {
          return p.adapters && p.folder == folder && models::hf_stem(p.part, name).has_value();
        }))
      unread.push_back(name);
  }
  if (!unread.empty())
    log::warning("{}: {} of its tensors belong to modules without `lora: {{init: ...}}` and are not read:{}", folder,
                 unread.size(), listed(unread));
}

/// What the folder's config.json leaves to its model_type.
void log_defaults(const PretrainedPart& part) {
  if (part.part == models::HfPart::projector || part.adapters) return;
  const std::vector<std::string> defaults = models::read_hf_config(part.folder).defaults;
  if (!defaults.empty())
    log::info("{}: its config.json leaves open, and its type decides: {}", part.folder, fmt::join(defaults, ", "));
}

}  // namespace

data::SafetensorsModel open_published(const std::string& folder) {
  try {
    return data::SafetensorsModel::open(folder);
  } catch (const Error& e) {
    throw ConfigError(e.what());
  }
}

std::vector<PretrainedPart> pretrained_parts(const Config& c) {
  std::vector<PretrainedPart> parts;
  for (const EncoderConfig& e : c.encoders) {
    const auto tower = e.spec.modality == "audio" ? models::HfPart::audio : models::HfPart::vision;
    if (!e.init.hf.empty()) parts.push_back({e.spec.name, tower, e.init.hf, e.init.checkpoint.empty()});
    if (!e.projector_init.hf.empty() && e.spec.projector.kind != "none")
      parts.push_back(
          {e.spec.name + ".projector", models::HfPart::projector, e.projector_init.hf, e.init.checkpoint.empty()});
  }
  if (!c.llm.init.hf.empty())
    parts.push_back({c.llm.spec.name, models::HfPart::llm, c.llm.init.hf, c.llm.init.checkpoint.empty()});
  return parts;
}

std::vector<PretrainedPart> adapter_parts(const Config& c) {
  std::vector<PretrainedPart> parts;
  const auto add = [&](const std::string& module, models::HfPart part, const std::optional<LoraConfig>& lora) {
    if (lora && !lora->folder.empty()) parts.push_back({module, part, lora->folder, true, true});
  };
  for (const EncoderConfig& e : c.encoders) {
    add(e.spec.name, e.spec.modality == "audio" ? models::HfPart::audio : models::HfPart::vision, e.lora);
    add(e.spec.name + ".projector", models::HfPart::projector, e.projector_lora);
  }
  add(c.llm.spec.name, models::HfPart::llm, c.llm.lora);
  return parts;
}

PretrainedNames match_pretrained(const Config& c, const Model& model, const PretrainedPart& part,
                                 const data::SafetensorsModel& files) {
  const models::HfNames names(part.part, files.names(), files.path());
  PretrainedNames result;
  std::vector<std::string> missing, wrong, extra;
  std::set<std::string> used, built;
  for (const run::Stage& stage : model.stages) {
    for (const run::ParamSpec& p : models::parameters_of(stage)) {
      if (p.module == part.module) built.insert(models::hf_stem(part.part, p.name).value_or(p.name));
      if (p.module != part.module || is_adapter(p.name) != part.adapters) continue;
      const std::optional<models::HfPlace> place = names.place(p.name);
      if (!place) {
        missing.push_back(p.name);
        continue;
      }
      const std::vector<std::int64_t>& shape = files.tensor(place->name).shape;
      std::vector<std::int64_t> wanted = p.shape;
      wanted.front() *= place->parts;
      if (shape != wanted)
        wrong.push_back(fmt::format("{} is [{}], the model wants [{}]", place->name, fmt::join(shape, ","),
                                    fmt::join(wanted, ",")));
      const std::string& dtype = files.tensor(place->name).dtype;
      if (dtype != "F32" && dtype != "BF16" && dtype != "F16" && dtype != "F64")
        wrong.push_back(fmt::format("{} is of dtype {}: weights must be F32, BF16, F16 or F64", place->name, dtype));
      used.insert(place->name);
      result.place_of[canonical_name(p)] = *place;
    }
  }
  const std::set<std::string> family = family_stems(c, part);
  std::set<std::string_view> words;
  for (const std::string& stem : family) words.insert(first_word(stem));
  for (const auto& [stem, name] : names.all()) {
    if (used.contains(name)) continue;
    const std::string base = part.adapters ? base_of(stem) : stem;
    if (family.contains(base) && !(part.adapters && built.contains(base)))  // of layers that are not built
      result.unused.push_back(name);
    else if (part.adapters || (words.contains(first_word(stem)) && !models::is_hf_buffer(stem)))
      extra.push_back(name);
  }
  std::string problem;
  const auto report = [&](const char* what, const std::vector<std::string>& list) {
    if (!list.empty()) problem += fmt::format("\n{}:{}", what, listed(list));
  };
  report("tensors that are missing", missing);
  report("tensors of another shape or kind", wrong);
  report("tensors that this module has no place for", extra);
  if (!problem.empty()) {
    std::string advice;
    if (part.part == models::HfPart::projector)
      advice = "\nA projector for another LLM starts anew with `projector: {init: random}`.";
    if (std::ranges::find(missing, "lm_head.weight") != missing.end())
      advice = "\nA model without lm_head.weight has tie_word_embeddings: true in its config.json.";
    throw ConfigError(fmt::format("{}: not the {} of {}{}{}", files.path(), part.adapters ? "adapters" : "weights",
                                  part.module, problem, advice));
  }
  if (part.adapters) return result;
  if (part.part == models::HfPart::llm) check_tied_head(c, names, files);
  return result;
}

void load_pretrained(Job& job, const Config& c, Model& model, const Stream& stream) {
  std::vector<PretrainedPart> parts = pretrained_parts(c);
  std::erase_if(parts, [](const PretrainedPart& part) { return !part.weights; });
  for (const PretrainedPart& part : adapter_parts(c)) parts.push_back(part);
  if (parts.empty()) return;
  in_agreement(job.world(), [&] {
    const std::vector<run::SavedPart> own = run::saved_parts(model.placed(), model.uses, nullptr);
    std::map<std::string, data::SafetensorsModel> opened;
    std::set<std::string> looked_through;
    for (const PretrainedPart& part : parts) {
      auto at = opened.find(part.folder);
      if (at == opened.end()) {
        at = opened.emplace(part.folder, open_published(part.folder)).first;
        log_defaults(part);
      }
      const data::SafetensorsModel& files = at->second;
      if (part.adapters && looked_through.insert(part.folder).second) warn_of_unread(part.folder, files, parts);
      const PretrainedNames names = match_pretrained(c, model, part, files);
      for (const run::SavedPart& p : own) {
        const auto place = names.place_of.find(p.name.substr(std::string_view("model/").size()));
        if (place == names.place_of.end()) continue;
        auto* out = static_cast<std::byte*>(p.data.data);
        for (h5::Box box : run::boxes_of(p)) {
          box.offset.front() += place->second.part * p.shape.front();
          files.read_box(place->second.name, box, p.data.dtype, out);
          out += run::num_elements(box.shape) * static_cast<std::int64_t>(size_of(p.data.dtype));
        }
      }
      log::info("{}: {} {}tensors from {}{}", part.module, names.place_of.size(), part.adapters ? "adapter " : "",
                part.folder, names.unused.empty() ? "" : fmt::format(", {} not needed", names.unused.size()));
    }
  });
  for (const int s : model.own) refresh_compute(*model.stores[static_cast<std::size_t>(s)], stream);
}

}  // namespace mmt::app
