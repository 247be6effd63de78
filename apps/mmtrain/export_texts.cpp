#include "apps/mmtrain/export_texts.h"

#include "apps/mmtrain/dataset.h"
#include "core/data/media/preprocessor_config.h"
#include "core/files.h"
#include "core/log.h"
#include "models/hf_config.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace mmt::app {
namespace {

namespace fs = std::filesystem;

std::string torch_name(const std::string& dtype) {
  return dtype == "BF16" ? "bfloat16" : dtype == "F16" ? "float16" : "float32";
}

/// What generation needs to know: tokens that end an answer, and how long a text may be.
std::string with_text_ends(const Config& c, const std::string& config) {
  auto j = nlohmann::ordered_json::parse(config);
  j["max_position_embeddings"] = c.data.max_sequence;
  nlohmann::ordered_json ends = nlohmann::ordered_json::array();
  const Preparer preparer(c);
  for (const std::vector<data::TokenId>& stop : preparer.chat().stops()) {
    if (stop.size() == 1) ends.push_back(stop.front());
  }
  j["bos_token_id"] = nullptr;
  j["eos_token_id"] = ends.empty() ? nlohmann::ordered_json(nullptr) : ends;
  return j.dump(2) + "\n";
}

/// Of a tower whose upper layers were not built: the layers that are there.
std::string encoder_config(const EncoderConfig& e, const std::string& torch) {
  models::EncoderSpec spec = e.spec;
  spec.layers = models::num_blocks(spec);
  return models::hf_config_of(spec, torch);
}

void warn_of_preparation(const std::string& origin, const EncoderConfig& e) {
  if (e.spec.modality != "image") return;
  data::ImageProcessing base;
  base.fit = e.image.fit;
  base.height = base.width = e.spec.image_size;
  base.patch = e.image.patch;
  base.merge = e.image.merge;
  base.frames = e.image.frames;
  const auto published = data::read_image_preprocessor(origin, base);
  if (published && (published->mean != e.image.mean || published->std != e.image.std ||
                    published->resample != e.image.resample || published->fit != e.image.fit ||
                    published->pad_to_square != e.image.pad_to_square || published->resize != e.image.resize))
    log::warning("{}: its preparation of pictures is exported, but {} was trained with another", origin, e.spec.name);
}

}  // namespace

std::pair<std::string, std::string> own_description(const Config& c, const std::string& module,
                                                    const std::string& dtype) {
  const std::string torch = torch_name(dtype);
  std::string name = "config.json", text;
  if (module == c.llm.spec.name) text = with_text_ends(c, models::hf_config_of(c.llm.spec, torch));
  for (const EncoderConfig& e : c.encoders) {
    if (module == e.spec.name) text = encoder_config(e, torch);
    if (module == e.spec.name + ".projector") {
      name = "projector.json";
      text = nlohmann::ordered_json{{"kind", e.spec.projector.kind},
                                    {"in", models::output_width(e.spec)},
                                    {"hidden", e.spec.projector.hidden},
                                    {"out", c.llm.spec.hidden},
                                    {"bias", e.spec.projector.bias},
                                    {"activation", e.spec.projector.activation},
                                    {"encoder", e.spec.name}}
                 .dump(2) +
             "\n";
    }
  }
  return {name, text};
}

std::string preparation_of(const EncoderConfig& e) {
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

std::string published_description(const Config& c, const std::vector<std::string>& modules, const std::string& origin,
                                  const std::string& dtype) {
  std::string text = files::read((fs::path(origin) / "config.json").string(), kMaxCompanion);
  auto j = nlohmann::ordered_json::parse(text);
  bool changed = !dtype.empty();
  if (changed) j[j.contains("torch_dtype") ? "torch_dtype" : "dtype"] = torch_name(dtype);
  const models::HfConfig published = models::read_hf_config(origin);
  for (const EncoderConfig& e : c.encoders) {
    if (std::ranges::find(modules, e.spec.name) == modules.end()) continue;
    warn_of_preparation(origin, e);
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
  if (c.llm.bidirectional_media)
    log::warning("{}: the model was trained with media_attention: bidirectional, which transformers' class lacks",
                 origin);
  if (changed) text = j.dump(2) + "\n";
  return text;
}

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
    files::write_atomic((fs::path(to) / name).string(), files::read(path.string(), kMaxCompanion));
  }
}

}  // namespace mmt::app
