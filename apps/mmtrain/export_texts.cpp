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

using OrderedJson = nlohmann::ordered_json;

/// What generation needs to know: tokens that end an answer, and how long a text may be.
std::string with_text_ends(const Config& c, const std::string& config) {
  auto j = OrderedJson::parse(config);
  const Preparer preparer(c);
  const bool whole = j.contains("text_config");
  OrderedJson& text = whole ? j["text_config"] : j;
  text["max_position_embeddings"] = c.data.max_sequence;
  OrderedJson ends = OrderedJson::array();
  for (const std::vector<data::TokenId>& stop : preparer.chat().stops()) {
    if (stop.size() == 1) ends.push_back(stop.front());
  }
  text["bos_token_id"] = nullptr;
  text["eos_token_id"] = ends.empty() ? OrderedJson(nullptr) : ends;
  if (whole) {
    j["image_token_id"] = preparer.chat().placeholder(data::Modality::image);
    for (const auto& [key, token] :
         {std::pair("video_token_id", "<|video_pad|>"), std::pair("vision_start_token_id", "<|vision_start|>"),
          std::pair("vision_end_token_id", "<|vision_end|>")}) {
      if (const auto id = preparer.tokenizer().id_of(token)) j[key] = *id;
    }
  }
  return j.dump(2) + "\n";
}

/// Of a tower whose upper layers were not built: the layers that are there.
models::EncoderSpec built_part(const EncoderConfig& e) {
  models::EncoderSpec spec = e.spec;
  spec.layers = models::num_blocks(spec);
  return spec;
}

const EncoderConfig* encoder_of(const Config& c, const std::string& module) {
  const auto at = std::ranges::find_if(c.encoders, [&](const EncoderConfig& e) { return e.spec.name == module; });
  return at == c.encoders.end() ? nullptr : &*at;
}

std::string projector_description(const Config& c, const EncoderConfig& e) {
  const OrderedJson j = {{"kind", e.spec.projector.kind},
                         {"in", models::output_width(e.spec)},
                         {"hidden", e.spec.projector.hidden},
                         {"out", c.llm.spec.hidden},
                         {"bias", e.spec.projector.bias},
                         {"activation", e.spec.projector.activation},
                         {"encoder", e.spec.name},
                         {"image_newline", !e.spec.pinpoints.empty()}};
  return j.dump(2) + "\n";
}

/// `tiles`: the config.json of the origin says that pictures are cut.
void warn_of_preparation(const std::string& origin, const EncoderConfig& e, bool tiles) {
  if (e.spec.modality != "image") return;
  data::ImageProcessing base;
  base.fit = e.image.fit == data::ImageFit::tiles && !tiles ? data::ImageFit::stretch : e.image.fit;
  base.height = base.width = e.spec.image_size;
  base.patch = e.image.patch;
  base.merge = e.image.merge;
  base.frames = e.image.frames;
  base.pinpoints = e.image.pinpoints;
  const auto published = data::read_image_preprocessor(origin, base);
  if (published && (published->mean != e.image.mean || published->std != e.image.std ||
                    published->resample != e.image.resample || published->fit != e.image.fit ||
                    published->pad_to_square != e.image.pad_to_square || published->resize != e.image.resize ||
                    (published->fit == data::ImageFit::tiles && published->pinpoints != e.image.pinpoints)))
    log::warning("{}: its preparation of pictures is exported, but {} was trained with another", origin, e.spec.name);
}

}  // namespace

bool joins(const Config& c, const std::string& module, const std::vector<std::string>& others) {
  const EncoderConfig* tower = others.empty() ? nullptr : encoder_of(c, others.front());
  if (tower == nullptr || tower->spec.kind != "qwen2_vl") return false;
  if (module == tower->spec.name + ".projector") return true;
  const auto towers =
      std::ranges::count_if(c.encoders, [](const EncoderConfig& e) { return e.spec.kind == "qwen2_vl"; });
  return module == c.llm.spec.name && !c.llm.spec.mrope_section.empty() && towers == 1;
}

std::pair<std::string, std::string> own_description(const Config& c, const std::vector<std::string>& modules,
                                                    const std::string& dtype) {
  const std::string torch = torch_name(dtype);
  const std::string& module = modules.front();
  if (module == c.llm.spec.name) return {"config.json", with_text_ends(c, models::hf_config_of(c.llm.spec, torch))};
  if (const EncoderConfig* e = encoder_of(c, module)) {
    if (modules.back() == c.llm.spec.name)
      return {"config.json", with_text_ends(c, models::hf_config_of(built_part(*e), c.llm.spec, torch))};
    return {"config.json", models::hf_config_of(built_part(*e), c.llm.spec.hidden, torch)};
  }
  for (const EncoderConfig& e : c.encoders) {
    if (module == e.spec.name + ".projector") return {"projector.json", projector_description(c, e)};
  }
  throw std::logic_error("own_description: no such module");
}

models::HfPlace own_place(const Config& c, const std::vector<std::string>& modules, const std::string& module,
                          const std::string& parameter) {
  const EncoderConfig* tower = encoder_of(c, modules.front());
  if (tower == nullptr || tower->spec.kind != "qwen2_vl") return {parameter};
  const models::HfPart part = module == c.llm.spec.name    ? models::HfPart::llm
                              : module == tower->spec.name ? models::HfPart::vision
                                                           : models::HfPart::projector;
  return models::qwen2_vl_place(part, parameter, modules.back() == c.llm.spec.name);
}

namespace {

/// Of windows that Whisper's extractor has: whole seconds. Clips of their own length have no counterpart.
std::string sound_preparation_of(const EncoderConfig& e) {
  const data::AudioProcessing& o = e.audio;
  const std::int64_t samples = o.rows.window_samples();
  if (o.rows.window == data::AudioWindow::none || samples % o.rate != 0) return "";
  const nlohmann::ordered_json j = {{"feature_extractor_type", "WhisperFeatureExtractor"},
                                    {"feature_size", o.num_mel_bins},
                                    {"sampling_rate", o.rate},
                                    {"hop_length", o.rows.hop},
                                    {"n_fft", o.fft},
                                    {"chunk_length", samples / o.rate},
                                    {"n_samples", samples},
                                    {"nb_max_frames", o.rows.max_frames},
                                    {"padding_side", "right"},
                                    {"padding_value", 0.0},
                                    {"return_attention_mask", o.rows.window == data::AudioWindow::mask}};
  return j.dump(2) + "\n";
}

}  // namespace

std::string preparation_of(const EncoderConfig& e) {
  if (e.spec.modality == "audio") return sound_preparation_of(e);
  const data::ImageProcessing& o = e.image;
  const bool dynamic = o.fit == data::ImageFit::dynamic, tiles = o.fit == data::ImageFit::tiles;
  const bool crop = o.fit == data::ImageFit::crop || tiles;
  OrderedJson j = {{"image_processor_type", dynamic                 ? "Qwen2VLImageProcessor"
                                            : tiles                 ? "LlavaNextImageProcessor"
                                            : e.spec.kind == "clip" ? "CLIPImageProcessor"
                                                                    : "SiglipImageProcessor"},
                   {"do_resize", true},
                   {"do_rescale", true},
                   {"do_normalize", true},
                   {"do_convert_rgb", true},
                   {"rescale_factor", 1.0 / 255},
                   {"resample", static_cast<int>(o.resample)},
                   {"image_mean", o.mean},
                   {"image_std", o.std}};
  if (dynamic) {
    j["size"] = {{"shortest_edge", o.pixels.min_pixels}, {"longest_edge", o.pixels.max_pixels}};
    j["patch_size"] = o.patch;
    j["temporal_patch_size"] = o.frames;
    j["merge_size"] = o.merge;
    return j.dump(2) + "\n";
  }
  const OrderedJson box = {{"height", o.height}, {"width", o.width}};
  j["do_center_crop"] = crop;
  if (crop) {
    j["size"] = {{"shortest_edge", o.resize > 0 ? o.resize : std::min(o.height, o.width)}};
    j["crop_size"] = box;
  } else {
    j["size"] = box;
  }
  if (o.pad_to_square) j["do_pad"] = true;
  if (tiles) j["image_grid_pinpoints"] = e.spec.pinpoints;
  return j.dump(2) + "\n";
}

std::string video_preparation_of(const EncoderConfig& e) {
  OrderedJson j = OrderedJson::parse(preparation_of(e));
  j.erase("image_processor_type");
  j["video_processor_type"] = "Qwen2VLVideoProcessor";
  j["size"] = {{"shortest_edge", e.video.pixels.min_pixels}, {"longest_edge", e.video.pixels.max_pixels}};
  if (e.video.sampling.fps > 0) j["fps"] = e.video.sampling.fps;
  j["min_frames"] = e.video.sampling.min_frames;
  j["max_frames"] = e.video.sampling.max_frames;
  return j.dump(2) + "\n";
}

std::string published_description(const Config& c, const std::vector<std::string>& modules, const std::string& origin,
                                  const std::string& dtype) {
  std::string text = files::read((fs::path(origin) / "config.json").string(), kMaxCompanion);
  auto j = OrderedJson::parse(text);
  bool changed = !dtype.empty();
  if (changed) j[j.contains("torch_dtype") ? "torch_dtype" : "dtype"] = torch_name(dtype);
  const models::HfConfig published = models::read_hf_config(origin);
  for (const EncoderConfig& e : c.encoders) {
    if (std::ranges::find(modules, e.spec.name) == modules.end()) continue;
    warn_of_preparation(origin, e, published.encoder && !published.encoder->pinpoints.empty());
    if (published.model_type != "llava" && published.model_type != "llava_next") continue;
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
