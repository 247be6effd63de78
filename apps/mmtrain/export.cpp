#include "apps/mmtrain/export.h"

#include "apps/mmtrain/adapter_files.h"
#include "apps/mmtrain/dataset.h"
#include "apps/mmtrain/model.h"
#include "apps/mmtrain/pretrained.h"
#include "core/data/float_formats.h"
#include "core/data/preprocessor_config.h"
#include "core/data/safetensors_writer.h"
#include "core/files.h"
#include "core/log.h"
#include "models/hf_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

namespace mmt::app {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxCopied = std::uint64_t{256} << 20;  // of a file beside the weights

/// One tensor of a folder: a parameter of ours, or one that is carried along.
struct Source {
  const run::ParamSpec* parameter = nullptr;
  std::string published;  ///< its name in the folder that it came from; empty: none
};

/// One folder to write.
struct Target {
  std::string folder;
  std::string origin;                 ///< the published folder; empty: none
  std::vector<PretrainedPart> parts;  ///< with an origin
  std::string module;                 ///< without one
};

/// A module with its parameters, each once.
std::vector<const run::ParamSpec*> parameters_of(const Model& model, const std::string& module) {
  std::vector<const run::ParamSpec*> list;
  std::set<std::string> seen;
  for (const run::Stage& stage : model.stages) {
    for (const auto& unit : stage.units) {
      for (const run::ParamSpec& p : unit->plan().params) {
        if (p.module == module && !is_adapter(p.name) && seen.insert(p.name).second) list.push_back(&p);
      }
    }
  }
  return list;
}

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
      targets.push_back({(fs::path(out) / module).string(), "", {}, module});
      continue;
    }
    // A folder holds one tower, one projector, one LLM: a second of a kind gets a folder of its own.
    const auto same = std::ranges::find_if(targets, [&](const Target& t) {
      return !t.origin.empty() && fs::weakly_canonical(t.origin) == fs::weakly_canonical(part->folder) &&
             std::ranges::find(t.parts, part->part, &PretrainedPart::part) == t.parts.end();
    });
    if (same == targets.end())
      targets.push_back({(fs::path(out) / module).string(), part->folder, {*part}, ""});
    else
      same->parts.push_back(*part);
  }
  if (targets.size() == 1) targets.front().folder = out;
  return targets;
}

/// A folder's files beside the weights: config, tokenizer, preprocessor, templates, licence.
void copy_companions(const std::string& from, const std::string& to, const std::vector<std::string>& but) {
  std::vector<fs::path> paths;
  for (const fs::directory_entry& entry : fs::directory_iterator(from)) paths.push_back(entry.path());
  std::ranges::sort(paths);
  for (const fs::path& path : paths) {
    const std::string name = path.filename().string();
    constexpr std::string_view kEndings[] = {".json", ".model", ".txt", ".jinja", ".md"};
    const bool wanted = std::ranges::any_of(kEndings, [&](std::string_view e) { return name.ends_with(e); }) ||
                        name.starts_with("LICENSE") || name.starts_with("tokenizer");
    if (!wanted || name.ends_with(".index.json") || !fs::is_regular_file(path)) continue;
    if (std::ranges::find(but, name) != but.end()) continue;
    files::write_atomic((fs::path(to) / name).string(), files::read(path.string(), kMaxCopied));
  }
}

class Exporter {
 public:
  Exporter(const Config& c, const run::CheckpointReader& checkpoint, const ExportOptions& options)
      : c_(c), checkpoint_(checkpoint), options_(options), model_(build_model(c)), adapters_(model_, c) {}

  std::vector<std::string> run() {
    std::vector<std::string> folders;
    refuse_lost_adapters();
    std::error_code error;
    if (fs::exists(options_.out, error) && !fs::is_directory(options_.out, error))
      throw ConfigError(fmt::format("--out {}: is not a folder", options_.out));
    if (fs::exists(options_.out, error) && !fs::is_empty(options_.out, error))
      throw ConfigError(fmt::format("{}: is there and not empty: give --out a new folder", options_.out));
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
        return t.module == module || std::ranges::find(t.parts, module, &PretrainedPart::module) != t.parts.end();
      });
      const auto part = std::ranges::find(base.parts, module, &PretrainedPart::module);
      adapters_.write_peft(folder, module, base.folder,
                           part == base.parts.end() ? "" : memory_prefix(base.origin, part->part), checkpoint_);
      folders.push_back(folder);
    }
    return folders;
  }

 private:
  /// Their share of the training would be lost without a word.
  void refuse_lost_adapters() const {
    std::set<std::string> own;
    for (const run::Stage& stage : model_.stages) {
      for (const run::ParamSpec& p : models::parameters_of(stage)) own.insert("model/" + canonical_name(p));
    }
    for (const run::CheckpointReader::Item& item : checkpoint_.tensors()) {
      if (item.name.starts_with("model/") && is_adapter(item.name) && !own.contains(item.name))
        throw ConfigError(fmt::format(
            "{} was trained with adapters that this configuration lacks ({}): give the module the same `lora`",
            checkpoint_.path(), item.name));
    }
  }

  void check(Target& target) const {
    if (target.origin.empty()) {
      (void)own_config(target);
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

  std::string own_dtype() const {
    return !options_.dtype.empty() ? options_.dtype : c_.train.precision == DType::bf16 ? "BF16" : "F32";
  }

  /// The whole parameter as f32, its adapter added where that is wanted.
  std::vector<float> values_of(const run::ParamSpec& p) const {
    std::vector<float> values = read_parameter(checkpoint_, p);
    if (options_.merge_adapters) adapters_.merge_into(p, checkpoint_, values);
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
    std::map<std::string, std::vector<const run::ParamSpec*>> ours;  // by the files' name: fused ones in order
    for (const PretrainedPart& part : target.parts) {
      const PretrainedNames names = match_pretrained(c_, model_, part, files);
      for (const run::ParamSpec* p : parameters_of(model_, part.module)) {
        const models::HfPlace& place = names.place_of.at(canonical_name(*p));
        std::vector<const run::ParamSpec*>& parameters = ours[place.name];
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
      t.bytes =
          static_cast<std::uint64_t>(t.numel()) * static_cast<std::uint64_t>(*data::safetensors_bits(t.dtype)) / 8;
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
      std::vector<float> values;
      for (const run::ParamSpec* p : mine->second) {
        const std::vector<float> part = values_of(*p);
        values.insert(values.end(), part.begin(), part.end());
      }
      // What did not change keeps its bits, also where a frozen module was kept in fewer.
      if (t.dtype == was.dtype && same(values, published, *mine->second.front()))
        return writer.write(t.name, files.data(t.name));
      write_floats(writer, t, values);
    });
    copy_companions(target.origin, target.folder, {"config.json"});
    write_config(target);
  }

  /// Whether the checkpoint holds what was read from the folder, in the dtype that the run kept it in.
  static bool same(const std::vector<float>& values, const std::vector<float>& published, const run::ParamSpec& p) {
    return std::ranges::equal(values, published, [&](float a, float b) {
      if (p.dtype == DType::bf16 && !p.trainable) b = bf16(b);
      return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
    });
  }

  /// The published config.json, with another dtype where one was asked for. A folder of a projector alone has none.
  void write_config(const Target& target) const {
    const fs::path path = fs::path(target.origin) / "config.json";
    if (!fs::exists(path)) return;
    std::string text = files::read(path.string(), kMaxCopied);
    auto j = nlohmann::ordered_json::parse(text);
    bool changed = !options_.dtype.empty();
    if (changed) j[j.contains("torch_dtype") ? "torch_dtype" : "dtype"] = torch_name(options_.dtype);
    const models::HfConfig published = models::read_hf_config(target.origin);
    for (const EncoderConfig& e : c_.encoders) {
      if (std::ranges::find(target.parts, e.spec.name, &PretrainedPart::module) == target.parts.end()) continue;
      warn_of_preparation(target, e);
      if (published.model_type != "llava") continue;
      if (e.spec.feature_layer != published.encoder->feature_layer) {
        j["vision_feature_layer"] = e.spec.feature_layer;
        changed = true;
      }
      if (e.spec.select != published.encoder->select) {
        j["vision_feature_select_strategy"] = e.spec.select == "full" ? "full" : "default";
        changed = true;
      }
    }
    if (c_.llm.bidirectional_media)
      log::warning("{}: the model was trained with media_attention: bidirectional, which transformers' class lacks",
                   target.folder);
    if (changed) text = j.dump(2) + "\n";
    files::write_atomic((fs::path(target.folder) / "config.json").string(), text);
  }

  static void warn_of_preparation(const Target& target, const EncoderConfig& e) {
    if (e.spec.modality != "image") return;
    data::ImageProcessing base;
    base.fit = e.image.fit;
    base.height = base.width = e.spec.image_size;
    base.patch = e.image.patch;
    base.merge = e.image.merge;
    base.frames = e.image.frames;
    const auto published = data::read_image_preprocessor(target.origin, base);
    if (published && (published->mean != e.image.mean || published->std != e.image.std ||
                      published->resample != e.image.resample || published->fit != e.image.fit ||
                      published->pad_to_square != e.image.pad_to_square || published->resize != e.image.resize))
      log::warning("{}: keeps the published preparation of pictures, {} was trained with another", target.folder,
                   e.spec.name);
  }

  static std::string torch_name(const std::string& dtype) {
    return dtype == "BF16" ? "bfloat16" : dtype == "F16" ? "float16" : "float32";
  }

  /// What generation needs to know: tokens that end an answer, and how long a text may be.
  std::string with_text_ends(const std::string& config) const {
    auto j = nlohmann::ordered_json::parse(config);
    j["max_position_embeddings"] = c_.data.max_sequence;
    nlohmann::ordered_json ends = nlohmann::ordered_json::array();
    const Preparer preparer(c_);
    for (const std::vector<data::TokenId>& stop : preparer.chat().stops()) {
      if (stop.size() == 1) ends.push_back(stop.front());
    }
    j["bos_token_id"] = nullptr;
    j["eos_token_id"] = ends.empty() ? nlohmann::ordered_json(nullptr) : ends;
    return j.dump(2) + "\n";
  }

  /// preprocessor_config.json of a tower that was not imported.
  static std::string preparation_of(const EncoderConfig& e) {
    const data::ImageProcessing& o = e.image;
    const bool crop = o.fit == data::ImageFit::crop;
    nlohmann::ordered_json j = {
        {"image_processor_type", e.spec.kind == "clip" ? "CLIPImageProcessor" : "SiglipImageProcessor"},
        {"do_resize", true},
        {"do_rescale", true},
        {"do_normalize", true},
        {"do_convert_rgb", true},
        {"rescale_factor", 1.0 / 255},
        {"resample", static_cast<int>(o.resample)},
        {"image_mean", o.mean},
        {"image_std", o.std}};
    const nlohmann::ordered_json box = {{"height", o.height}, {"width", o.width}};
    j["do_center_crop"] = crop;
    if (crop) {
      j["size"] = {{"shortest_edge", o.resize > 0 ? o.resize : std::min(o.height, o.width)}};
      j["crop_size"] = box;
    } else {
      j["size"] = box;
    }
    if (o.pad_to_square) j["do_pad"] = true;
    return j.dump(2) + "\n";
  }

  /// Name and text of the file that says what a folder without origin holds.
  std::pair<std::string, std::string> own_config(const Target& target) const {
    const std::string torch = torch_name(own_dtype());
    std::string name = "config.json", text;
    if (target.module == c_.llm.spec.name) text = with_text_ends(models::hf_config_of(c_.llm.spec, torch));
    for (const EncoderConfig& e : c_.encoders) {
      if (target.module == e.spec.name) text = encoder_config(e, torch);
      if (target.module == e.spec.name + ".projector") {
        name = "projector.json";
        text = nlohmann::ordered_json{{"kind", e.spec.projector.kind},
                                      {"in", e.spec.hidden},
                                      {"hidden", e.spec.projector.hidden},
                                      {"out", c_.llm.spec.hidden},
                                      {"bias", e.spec.projector.bias},
                                      {"activation", e.spec.projector.activation},
                                      {"encoder", e.spec.name}}
                   .dump(2) +
               "\n";
      }
    }
    return {name, text};
  }

  void write_own(const Target& target) const {
    const std::vector<const run::ParamSpec*> list = parameters_of(model_, target.module);
    std::map<std::string, const run::ParamSpec*> by_name;
    data::SafeTensors tensors;
    for (const run::ParamSpec* p : list) {
      by_name[p->name] = p;
      data::SafeTensor t{p->name, own_dtype(), p->shape, 0, 0};
      t.bytes =
          static_cast<std::uint64_t>(t.numel()) * static_cast<std::uint64_t>(*data::safetensors_bits(t.dtype)) / 8;
      tensors.push_back(t);
    }
    // A tower that ends before its last norm: the family's class has one all the same. Its hidden states do not see it.
    std::map<std::string, float> constants;
    std::int64_t hidden = 0;
    for (const EncoderConfig& e : c_.encoders) {
      if (target.module != e.spec.name || e.spec.post_norm || e.spec.modality == "audio") continue;
      hidden = e.spec.hidden;
      constants = {{"post_layernorm.weight", 1.0F}, {"post_layernorm.bias", 0.0F}};
    }
    for (const auto& [name, value] : constants) {
      data::SafeTensor t{name, own_dtype(), {hidden}, 0, 0};
      t.bytes =
          static_cast<std::uint64_t>(t.numel()) * static_cast<std::uint64_t>(*data::safetensors_bits(t.dtype)) / 8;
      tensors.push_back(t);
    }
    const auto [name, text] = own_config(target);
    write_tensors(target.folder, tensors, [&](const data::SafeTensor& t, data::SafetensorsWriter& writer) {
      const auto constant = constants.find(t.name);
      if (constant != constants.end())
        return write_floats(writer, t, std::vector<float>(static_cast<std::size_t>(t.numel()), constant->second));
      write_floats(writer, t, values_of(*by_name.at(t.name)));
    });
    files::write_atomic((fs::path(target.folder) / name).string(), text);
    for (const EncoderConfig& e : c_.encoders) {
      if (target.module == e.spec.name && e.spec.modality == "image")
        files::write_atomic((fs::path(target.folder) / "preprocessor_config.json").string(), preparation_of(e));
    }
    if (target.module == c_.llm.spec.name) {
      const fs::path tokenizer(c_.data.tokenizer);
      if (fs::is_directory(tokenizer)) {
        copy_companions(tokenizer.string(), target.folder, {"config.json"});
      } else {
        files::write_atomic((fs::path(target.folder) / tokenizer.filename()).string(),
                            files::read(tokenizer.string(), kMaxCopied));
      }
    }
  }

  /// Of a tower whose upper layers were not built: the layers that are there.
  static std::string encoder_config(const EncoderConfig& e, const std::string& torch) {
    models::EncoderSpec spec = e.spec;
    spec.layers = models::num_blocks(spec);
    return models::hf_config_of(spec, torch);
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
