#include "apps/mmtrain/export.h"

#include "apps/mmtrain/adapter_files.h"
#include "apps/mmtrain/export_texts.h"
#include "apps/mmtrain/model.h"
#include "apps/mmtrain/parameter_rules.h"
#include "apps/mmtrain/pretrained.h"
#include "apps/mmtrain/state.h"
#include "core/data/weights/float_formats.h"
#include "core/data/weights/safetensors_writer.h"
#include "core/files.h"
#include "core/log.h"
#include "models/hf_config.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <functional>

namespace mmt::app {
namespace {

namespace fs = std::filesystem;

/// One folder to write.
struct Target {
  std::string folder;
  std::string origin;                 ///< the published folder; empty: none
  std::vector<PretrainedPart> parts;  ///< with an origin
  std::vector<std::string> modules;   ///< without one: those that one class of transformers has
};

std::vector<Target> targets_of(const Config& c, const std::string& out) {
  std::vector<std::string> modules;
  for (const EncoderConfig& e : c.encoders) {
    modules.push_back(e.spec.name);
    if (e.spec.projector.kind != "none") modules.push_back(e.spec.name + ".projector");
  }
  modules.push_back(c.llm.spec.name);
  std::vector<Target> targets;
  const std::vector<PretrainedPart> parts = pretrained_parts(c);
  for (const std::string& module : modules) {
    const auto part = std::ranges::find(parts, module, &PretrainedPart::module);
    if (part == parts.end()) {
      const auto whole = std::ranges::find_if(targets, [&](const Target& t) { return joins(c, module, t.modules); });
      if (whole == targets.end())
        targets.push_back({(fs::path(out) / module).string(), "", {}, {module}});
      else
        whole->modules.push_back(module);
      continue;
    }
    // A folder holds one tower, one projector, one LLM: a second of a kind gets a folder of its own.
    const auto same = std::ranges::find_if(targets, [&](const Target& t) {
      return !t.origin.empty() && fs::weakly_canonical(t.origin) == fs::weakly_canonical(part->folder) &&
             std::ranges::find(t.parts, part->part, &PretrainedPart::part) == t.parts.end();
    });
    if (same == targets.end())
      targets.push_back({(fs::path(out) / module).string(), part->folder, {*part}, {}});
    else
      same->parts.push_back(*part);
  }
  if (targets.size() == 1) targets.front().folder = out;
  return targets;
}

class Exporter {
 public:
  Exporter(const Config& c, const run::CheckpointReader& checkpoint, const ExportOptions& options)
      : c_(c), checkpoint_(checkpoint), options_(options), model_(build_model(c)), adapters_(model_, c) {}

  std::vector<std::string> run() {
    std::vector<std::string> folders;
    std::vector<std::string> modules = {c_.llm.spec.name};
    for (const EncoderConfig& e : c_.encoders) modules.push_back(e.spec.name);
    refuse_lost_adapters(checkpoint_, model_, modules);
    check_new_folder(options_.out);
    std::error_code error;
    std::vector<Target> targets = targets_of(c_, options_.out);
    for (Target& target : targets) check(target);  // what can be refused is refused before anything is written
    for (const Target& target : targets) {
      fs::create_directories(target.folder, error);
      if (error) throw ConfigError(fmt::format("--out {}: {}", target.folder, error.message()));
      if (target.origin.empty())
        write_own(target);
      else
        write_published(target);
      folders.push_back(target.folder);
    }
    if (options_.merge_adapters) return folders;
    for (const std::string& module : adapters_.modules()) {
      const std::string folder = (fs::path(options_.out) / (module + "-adapter")).string();
      fs::create_directories(folder);
      const Target& base = *std::ranges::find_if(targets, [&](const Target& t) {
        return has(t, module) || std::ranges::find(t.parts, module, &PretrainedPart::module) != t.parts.end();
      });
      const auto part = std::ranges::find(base.parts, module, &PretrainedPart::module);
      adapters_.write_peft(folder, module, base.folder,
                           part == base.parts.end() ? own_prefix(base, module) : memory_prefix_of(*part), checkpoint_);
      folders.push_back(folder);
    }
    return folders;
  }

 private:
  static bool has(const Target& t, const std::string& module) {
    return std::ranges::find(t.modules, module) != t.modules.end();
  }

  /// What stands before a module's layers in the memory of the class that was written for it and others.
  std::string own_prefix(const Target& t, const std::string& module) const {
    if (t.modules.size() < 2) return "";
    const models::HfPart part = module == c_.llm.spec.name    ? models::HfPart::llm
                                : module == t.modules.front() ? models::HfPart::vision
                                                              : models::HfPart::projector;
    return models::memory_prefix(models::read_hf_config(t.folder), part);
  }

  void check(Target& target) const {
    if (target.origin.empty()) {
      (void)own_description(c_, target.modules, own_dtype());
      return;
    }
    const data::SafetensorsModel files = open_published(target.origin);
    for (const PretrainedPart& part : target.parts) (void)match_pretrained(c_, model_, part, files);
    // A tower that goes back into a whole model has its projector there, wherever that came from.
    for (const EncoderConfig& e : c_.encoders) {
      const std::string module = e.spec.name + ".projector";
      const bool tower = std::ranges::find(target.parts, e.spec.name, &PretrainedPart::module) != target.parts.end();
      const bool there =
          std::ranges::find(target.parts, models::HfPart::projector, &PretrainedPart::part) != target.parts.end();
      if (!tower || there || models::HfNames(models::HfPart::projector, files.names(), files.path()).all().empty())
        continue;
      const PretrainedPart projector{module, models::HfPart::projector, target.origin};
      try {
        if (e.spec.projector.kind == "none") throw ConfigError("the module has none");
        (void)match_pretrained(c_, model_, projector, files);
        target.parts.push_back(projector);
      } catch (const ConfigError&) {
        log::warning("{}: holds the projector that was published, since that of {} has another form", target.folder,
                     e.spec.name);
      }
    }
  }

  /// Of a module, each once, without adapters.
  std::vector<run::ParamSpec> parameters_of(const std::string& module) const {
    std::vector<run::ParamSpec> list;
    for (const run::Stage& stage : model_.stages) {
      for (run::ParamSpec& p : models::parameters_of(stage)) {
        if (p.module == module && !is_adapter(p.name)) list.push_back(std::move(p));
      }
    }
    return list;
  }

  std::string own_dtype() const {
    return !options_.dtype.empty() ? options_.dtype : c_.train.precision == DType::bf16 ? "BF16" : "F32";
  }

  /// What stands before the part's layers in the memory of the model that is loaded from its folder.
  static std::string memory_prefix_of(const PretrainedPart& part) {
    return part.part == models::HfPart::projector && !fs::exists(fs::path(part.folder) / "config.json")
               ? ""
               : models::memory_prefix(models::read_hf_config(part.folder), part.part);
  }

  /// The whole parameter as f32, its adapter added where that is wanted.
  std::vector<float> values_of(const run::ParamSpec& p) const {
    std::vector<float> values = read_parameter(checkpoint_, p);
    if (options_.merge_adapters) adapters_.merge_into(p, checkpoint_, values);
    return values;
  }

  /// Of parameters that a file holds one after the other.
  std::vector<float> values_of(const std::vector<run::ParamSpec>& parameters) const {
    std::vector<float> values;
    for (const run::ParamSpec& p : parameters) {
      const std::vector<float> part = values_of(p);
      values.insert(values.end(), part.begin(), part.end());
    }
    return values;
  }

  void write_tensors(const std::string& folder, const data::SafeTensors& tensors,
                     const std::function<void(const data::SafeTensor&, data::SafetensorsWriter&)>& write) const {
    const std::vector<data::SafetensorsShard> shards = data::shards_of(tensors, options_.shard_bytes);
    for (const data::SafetensorsShard& shard : shards) {
      data::SafetensorsWriter writer((fs::path(folder) / shard.file).string(), shard.tensors, {{"format", "pt"}});
      for (const data::SafeTensor& t : shard.tensors) write(t, writer);
      writer.commit();
    }
    if (shards.size() > 1)
      files::write_atomic((fs::path(folder) / "model.safetensors.index.json").string(), data::index_of(shards));
  }

  static void write_floats(data::SafetensorsWriter& writer, const data::SafeTensor& t,
                           const std::vector<float>& values) {
    constexpr float kLargestHalf = 65504;
    if (t.dtype == "F16" &&
        std::ranges::any_of(values, [](float x) { return std::isfinite(x) && std::abs(x) > kLargestHalf; }))
      log::warning("{}: values above 65504 become infinite as F16: export as BF16 or F32", t.name);
    std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(*data::safetensors_bits(t.dtype)) / 8);
    data::encode_floats(values, t.dtype, bytes);
    writer.write(t.name, bytes);
  }

  void write_published(const Target& target) const {
    const data::SafetensorsModel files = open_published(target.origin);
    std::map<std::string, std::vector<run::ParamSpec>> ours;  // by the files' name: fused ones in order
    for (const PretrainedPart& part : target.parts) {
      const PretrainedNames names = match_pretrained(c_, model_, part, files);
      for (const run::ParamSpec& p : parameters_of(part.module)) {
        const models::HfPlace& place = names.place_of.at(canonical_name(p));
        std::vector<run::ParamSpec>& parameters = ours[place.name];
        parameters.resize(static_cast<std::size_t>(place.parts));
        parameters[static_cast<std::size_t>(place.part)] = p;
      }
      // A head that is stored though it is tied follows the embedding.
      if (part.part == models::HfPart::llm && c_.llm.spec.tie_embeddings) {
        const models::HfNames all(part.part, files.names(), files.path());
        const std::string *head = all.find("lm_head.weight"), *embedding = all.find("model.embed_tokens.weight");
        if (head != nullptr && embedding != nullptr && ours.contains(*embedding)) ours[*head] = ours.at(*embedding);
      }
    }
    data::SafeTensors tensors;
    for (const std::string& name : files.names()) {
      data::SafeTensor t = files.tensor(name);
      const bool weights = t.dtype == "F32" || t.dtype == "BF16" || t.dtype == "F16" || t.dtype == "F64";
      if (!options_.dtype.empty() && weights) t.dtype = options_.dtype;
      tensors.push_back(t);
    }
    write_tensors(target.folder, tensors, [&](const data::SafeTensor& t, data::SafetensorsWriter& writer) {
      const data::SafeTensor& was = files.tensor(t.name);
      const auto mine = ours.find(t.name);
      if (mine == ours.end() && t.dtype == was.dtype) return writer.write(t.name, files.data(t.name));
      std::vector<float> published(static_cast<std::size_t>(was.numel()));
      const h5::Box all{std::vector<std::int64_t>(was.shape.size(), 0), was.shape};
      files.read_box(t.name, all, DType::f32, published.data());
      if (mine == ours.end()) return write_floats(writer, t, published);
      const std::vector<float> values = values_of(mine->second);
      // What did not change keeps its bits, also where a frozen module was kept in fewer.
      if (t.dtype == was.dtype && same(values, published, mine->second.front()))
        return writer.write(t.name, files.data(t.name));
      write_floats(writer, t, values);
    });
    copy_companions(target.origin, target.folder, {"config.json"});
    std::vector<std::string> modules;
    for (const PretrainedPart& part : target.parts) modules.push_back(part.module);
    if (fs::exists(fs::path(target.origin) / "config.json"))  // a folder of a projector alone has none
      files::write_atomic((fs::path(target.folder) / "config.json").string(),
                          published_description(c_, modules, target.origin, options_.dtype));
  }

  /// Whether the checkpoint holds what was read from the folder, in the dtype that the run kept it in.
  static bool same(const std::vector<float>& values, const std::vector<float>& published, const run::ParamSpec& p) {
    return std::ranges::equal(values, published, [&](float a, float b) {
      if (p.dtype == DType::bf16 && !p.trainable) b = bf16(b);
      return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
    });
  }

  void write_own(const Target& target) const {
    std::map<std::string, std::vector<run::ParamSpec>> by_name;  // by the file's name: fused ones in order
    data::SafeTensors tensors;
    for (const std::string& module : target.modules) {
      for (const run::ParamSpec& p : parameters_of(module)) {
        const models::HfPlace place = own_place(c_, target.modules, module, p.name);
        std::vector<run::ParamSpec>& parameters = by_name[place.name];
        if (parameters.empty()) {
          std::vector<std::int64_t> shape = p.shape;
          shape.front() *= place.parts;
          tensors.push_back({place.name, own_dtype(), shape, 0, 0});
        }
        parameters.resize(static_cast<std::size_t>(place.parts));
        parameters[static_cast<std::size_t>(place.part)] = p;
      }
    }
    // A tower that ends before its last norm: the family's class has one all the same. Its hidden states do not see it.
    std::map<std::string, float> constants;
    std::int64_t hidden = 0;
    for (const EncoderConfig& e : c_.encoders) {
      if (!has(target, e.spec.name) || e.spec.post_norm || e.spec.modality == "audio" || e.spec.kind == "qwen2_vl")
        continue;
      hidden = e.spec.hidden;
      constants = {{"post_layernorm.weight", 1.0F}, {"post_layernorm.bias", 0.0F}};
    }
    for (const auto& [name, value] : constants) {
      tensors.push_back({name, own_dtype(), {hidden}, 0, 0});
    }
    const auto [name, text] = own_description(c_, target.modules, own_dtype());
    write_tensors(target.folder, tensors, [&](const data::SafeTensor& t, data::SafetensorsWriter& writer) {
      const auto constant = constants.find(t.name);
      if (constant != constants.end())
        return write_floats(writer, t, std::vector<float>(static_cast<std::size_t>(t.numel()), constant->second));
      write_floats(writer, t, values_of(by_name.at(t.name)));
    });
    files::write_atomic((fs::path(target.folder) / name).string(), text);
    for (const EncoderConfig& e : c_.encoders) {
      if (!has(target, e.spec.name)) continue;
      const std::string preparation = preparation_of(e);
      if (!preparation.empty())
        files::write_atomic((fs::path(target.folder) / "preprocessor_config.json").string(), preparation);
      if (takes_videos(e))
        files::write_atomic((fs::path(target.folder) / "video_preprocessor_config.json").string(),
                            video_preparation_of(e));
    }
    if (has(target, c_.llm.spec.name)) {
      const fs::path tokenizer(c_.data.tokenizer);
      if (fs::is_directory(tokenizer)) {
        copy_companions(tokenizer.string(), target.folder, {"config.json"});
      } else {
        files::write_atomic((fs::path(target.folder) / tokenizer.filename()).string(),
                            files::read(tokenizer.string(), kMaxCompanion));
      }
    }
  }

  const Config& c_;
  const run::CheckpointReader& checkpoint_;
  const ExportOptions& options_;
  Model model_;
  AdapterFiles adapters_;
};

}  // namespace

std::vector<std::string> export_model(const Config& config, const run::CheckpointReader& checkpoint,
                                      const ExportOptions& options) {
  return Exporter(config, checkpoint, options).run();
}

}  // namespace mmt::app
