// What lies beside published weights: config.json, adapter_config.json, preprocessor_config.json.
#include "core/data/media/preprocessor_config.h"
#include "core/error.h"
#include "models/hf_adapter.h"
#include "models/hf_config.h"
#include "tests/fuzz/target.h"

#include <stdexcept>
#include <string_view>

namespace mmt::fuzz {
namespace {

std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace

namespace hf_config {
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const models::HfConfig c = models::parse_hf_config(text_of(data, size), "config.json");
    accepted();
    if (c.encoder) (void)models::validate(*c.encoder);
    if (!c.llm || !models::validate(*c.llm).empty() || c.llm->layers > 1000) return 0;
    // What can be written must be read back as the same.
    const models::HfConfig again = models::parse_hf_config(models::hf_config_of(*c.llm, "float32"), "again");
    if (again.llm->head_dim != c.llm->head_dim || again.llm->sliding_window != c.llm->sliding_window ||
        (c.llm->sliding_window > 0 && again.llm->window_from_layer != c.llm->window_from_layer) ||
        again.llm->rope_theta != c.llm->rope_theta || again.llm->qkv_bias != c.llm->qkv_bias)
      throw std::logic_error("a written config.json is read as another model");
  } catch (const Error&) {
  }
  return 0;
}
const Registration kRegistered({"hf_config",
                                LLVMFuzzerTestOneInput,
                                {"data/pretrained/llama3/config.json", "data/pretrained/mistral/config.json",
                                 "data/pretrained/qwen2/config.json", "data/pretrained/llava_clip/config.json",
                                 "data/pretrained/whisper/config.json", "data/pretrained/siglip/config.json",
                                 "data/pretrained/llava_next/config.json", "data/pretrained/qwen2_audio/config.json"},
                                {"\"model_type\":",
                                 "\"llama\"",
                                 "\"qwen2\"",
                                 "\"qwen3\"",
                                 "\"llava\"",
                                 "\"clip\"",
                                 "\"text_config\":",
                                 "\"vision_config\":",
                                 "\"audio_config\":",
                                 "\"qwen2_audio\"",
                                 "\"rope_parameters\":",
                                 "\"rope_scaling\":",
                                 "\"rope_theta\":",
                                 "\"layer_types\":",
                                 "\"sliding_window\":",
                                 "\"head_dim\":",
                                 "null",
                                 "true",
                                 "false",
                                 "{}",
                                 "[]",
                                 "-1",
                                 "0",
                                 "1e308",
                                 "9223372036854775808"}});
}  // namespace hf_config

namespace hf_adapter {
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const models::HfAdapter a = models::parse_hf_adapter(text_of(data, size), "adapter_config.json");
    if (a.rank < 1 || !(a.alpha > 0) || !(a.dropout >= 0 && a.dropout < 1))
      throw std::logic_error("an adapter that is none was accepted");
    accepted();
  } catch (const Error&) {
  }
  return 0;
}
const Registration kRegistered({"hf_adapter",
                                LLVMFuzzerTestOneInput,
                                {"fuzz/corpus/adapter_config.json"},
                                {"\"r\":", "\"lora_alpha\":", "\"lora_dropout\":", "\"use_dora\":", "\"rank_pattern\":",
                                 "\"modules_to_save\":", "null", "true", "false", "{}", "[]", "-1", "0", "1e308"}});
}  // namespace hf_adapter

namespace image_preprocessor {
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const data::ImageProcessing o = data::parse_image_preprocessor(text_of(data, size), "p.json", {});
    if (o.height < 1 || o.width < 1 || o.resize < 0 || !(o.std[0] > 0 && o.std[1] > 0 && o.std[2] > 0))
      throw std::logic_error("a preparation that is none was accepted");
    for (const data::PictureSize& pinpoint : o.pinpoints) {
      if (pinpoint.width < 1 || pinpoint.height < 1) throw std::logic_error("a size that is none was accepted");
    }
    accepted();
  } catch (const Error&) {
  }
  return 0;
}
const Registration kRegistered({"image_preprocessor",
                                LLVMFuzzerTestOneInput,
                                {"data/pretrained/llava_clip/preprocessor_config.json",
                                 "data/pretrained/siglip/preprocessor_config.json",
                                 "data/pretrained/llava_next/preprocessor_config.json"},
                                {"\"size\":", "\"crop_size\":", "\"shortest_edge\":", "\"height\":", "\"width\":",
                                 "\"image_processor\":", "\"image_grid_pinpoints\":", "\"resample\":", "\"image_std\":",
                                 "null", "true", "false", "{}", "[]", "-1", "0", "1e308", "32769"}});
}  // namespace image_preprocessor

namespace audio_preprocessor {
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    data::AudioProcessing made;
    made.num_mel_bins = 128;
    made.rows.max_frames = 100;
    data::check_audio_preprocessor(text_of(data, size), "p.json", made);
    accepted();
  } catch (const Error&) {
  }
  return 0;
}
const Registration kRegistered({"audio_preprocessor",
                                LLVMFuzzerTestOneInput,
                                {"data/pretrained/qwen2_audio/preprocessor_config.json"},
                                {"\"feature_extractor\":", "\"feature_size\":", "\"hop_length\":", "\"chunk_length\":",
                                 "\"padding_side\":", "\"dither\":", "null", "true", "{}", "[]", "-1", "0", "1e308"}});
}  // namespace audio_preprocessor

}  // namespace mmt::fuzz
