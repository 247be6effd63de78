// preprocessor_config.json of vision towers, and what in one cannot be followed.
#include "core/data/media/preprocessor_config.h"
#include "core/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"

#include <catch2/catch.hpp>

using namespace mmt;
using namespace mmt::data;
using mmt::test::message_of;

namespace {

ImageProcessing parse_file(const std::string& json) {
  return parse_image_preprocessor(json, "m/preprocessor_config.json", {});
}

}  // namespace

TEST_CASE("the preprocessor of a CLIP says sizes crop and colours") {
  const ImageProcessing o = parse_file(R"({"crop_size": {"height": 336, "width": 336}, "do_center_crop": true,
    "do_convert_rgb": true, "do_normalize": true, "do_rescale": true, "do_resize": true,
    "image_mean": [0.5, 0.25, 0.125], "image_std": [0.1, 0.2, 0.3], "image_processor_type": "CLIPImageProcessor",
    "resample": 3, "rescale_factor": 0.00392156862745098, "size": {"shortest_edge": 340}})");
  CHECK(o.fit == ImageFit::crop);
  CHECK(o.height == 336);
  CHECK(o.width == 336);
  CHECK(o.resize == 340);
  CHECK(o.resample == Resample::bicubic);
  CHECK(o.mean == std::array{0.5, 0.25, 0.125});
  CHECK(o.std == std::array{0.1, 0.2, 0.3});
  // As the first CLIP of the hub has it: numbers.
  const ImageProcessing old = parse_file(R"({"crop_size": 224, "do_center_crop": true, "size": 256, "resample": 2})");
  CHECK(old.height == 224);
  CHECK(old.resize == 256);
  CHECK(old.resample == Resample::bilinear);
  CHECK(old.mean == ImageProcessing{}.mean);
}

TEST_CASE("the preprocessor of a SigLIP stretches") {
  const ImageProcessing o = parse_file(R"({"do_resize": true, "size": {"height": 384, "width": 380}, "resample": 3,
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]})");
  CHECK(o.fit == ImageFit::stretch);
  CHECK(o.height == 384);
  CHECK(o.width == 380);
}

TEST_CASE("a processor_config.json holds the preprocessor inside") {
  const ImageProcessing o = parse_file(R"({"processor_class": "LlavaProcessor",
    "image_processor": {"crop_size": 28, "do_center_crop": true, "size": {"shortest_edge": 28}}})");
  CHECK(o.height == 28);
  CHECK(o.fit == ImageFit::crop);
}

TEST_CASE("the preprocessor of a LLaVA-NeXT says tiles") {
  const ImageProcessing o = parse_file(R"({"aspect_ratio_setting": "anyres", "crop_size": {"height": 336, "width": 336},
    "do_center_crop": true, "do_pad": true, "image_grid_pinpoints": [[336, 672], [1008, 336]], "resample": 3,
    "image_processor_type": "LlavaNextImageProcessor", "size": {"shortest_edge": 336}})");
  CHECK(o.fit == ImageFit::tiles);
  CHECK(o.height == 336);
  CHECK_FALSE(o.pad_to_square);
  CHECK(o.pinpoints == std::vector<PictureSize>{{.width = 672, .height = 336}, {.width = 336, .height = 1008}});
  const auto message = [](const std::string& json) { return message_of<ConfigError>([&] { parse_file(json); }); };
  const std::string side = R"({"crop_size": 28, "size": {"shortest_edge": 28}, "image_grid_pinpoints": )";
  CHECK_THAT(message(side + "[]}"), Catch::Contains("image_grid_pinpoints: expected 1 to"));
  CHECK_THAT(message(side + "[28, 56]}"), Catch::Contains("expected pairs"));
  CHECK_THAT(message(side + "[[28, 56, 3]]}"), Catch::Contains("expected pairs"));
  CHECK_THAT(message(side + "[[28, 1e9]]}"), Catch::Contains("expected lengths"));
  CHECK_THAT(message(side + "[[28, -28]]}"), Catch::Contains("expected lengths"));
  CHECK_THAT(message(R"({"crop_size": 28, "size": {"shortest_edge": 32}, "image_grid_pinpoints": [[28, 56]]})"),
             Catch::Contains("size: differs"));
  CHECK_THAT(message(R"({"crop_size": {"height": 28, "width": 42}, "image_grid_pinpoints": [[28, 56]]})"),
             Catch::Contains("squares"));
}

TEST_CASE("frames of videos have limits of their own") {
  ImageProcessing picture;
  picture.fit = ImageFit::dynamic;
  picture.merge = picture.frames = 2;
  const auto parse = [&](const std::string& json) { return parse_video_preprocessor(json, "m/v.json", picture, {}); };
  const VideoProcessing v = parse(R"({"size": {"shortest_edge": 3136, "longest_edge": 50176}, "fps": 1.5,
    "min_frames": 2, "max_frames": 32, "patch_size": 14, "merge_size": 2, "temporal_patch_size": 2,
    "do_sample_frames": false, "video_processor_type": "Qwen2VLVideoProcessor"})");
  CHECK(v.pixels.min_pixels == 3136);
  CHECK(v.pixels.max_pixels == 50176);
  CHECK(v.sampling.fps == 1.5);
  CHECK(v.sampling.min_frames == 2);
  CHECK(v.sampling.max_frames == 32);
  CHECK(parse(R"({"video_processor": {"fps": 4}, "image_processor": {"min_pixels": 7}})").sampling.fps == 4);
  const auto message = [&](const std::string& json) { return message_of<ConfigError>([&] { parse(json); }); };
  CHECK_THAT(message(R"({"fps": -1})"), Catch::Contains("m/v.json: fps: expected a number"));
  CHECK_THAT(message(R"({"min_frames": 8, "max_frames": 4})"), Catch::Contains("max_frames"));
  CHECK_THAT(message(R"({"num_frames": 8})"), Catch::Contains("num_frames"));
  CHECK_THAT(message(R"({"temporal_patch_size": 1})"), Catch::Contains("the tower has 2"));
  CHECK_THAT(message(R"({"image_mean": [0.5, 0.5, 0.5]})"), Catch::Contains("image_mean"));
  CHECK_THAT(message(R"({"size": {"shortest_edge": 0}})"), Catch::Contains("numbers of pixels"));
}

TEST_CASE("the files of a folder are asked in transformers' order") {
  const mmt::test::TempFolder folder;
  ImageProcessing picture;
  picture.fit = ImageFit::dynamic;
  picture.merge = picture.frames = 2;
  const auto read = [&] { return read_video_preprocessor(folder.path().string(), picture, {}); };
  CHECK_FALSE(read().has_value());
  folder.write("preprocessor_config.json",
               R"({"image_mean": [0.48145466, 0.4578275, 0.40821073], "max_pixels": 4000})");
  CHECK(read()->pixels.max_pixels == 4000);
  folder.write("video_preprocessor_config.json", R"({"max_pixels": 5000})");
  CHECK(read()->pixels.max_pixels == 5000);
  folder.write("processor_config.json", R"({"processor_class": "Qwen2VLProcessor"})");
  CHECK(read()->pixels.max_pixels == 5000);
  folder.write("processor_config.json", R"({"video_processor": {"max_pixels": 6000}})");
  CHECK(read()->pixels.max_pixels == 6000);
}

TEST_CASE("a preprocessor with steps that are not made here is refused") {
  const auto message = [](const std::string& json) { return message_of<ConfigError>([&] { parse_file(json); }); };
  CHECK_THAT(message("{"), Catch::StartsWith("m/preprocessor_config.json:1:"));
  CHECK_THAT(message("3"), Catch::Contains("not an object"));
  CHECK_THAT(message(R"({"do_normalize": false})"), Catch::Contains("do_normalize: false"));
  CHECK_THAT(message(R"({"rescale_factor": 1.0})"), Catch::Contains("rescale_factor: only 1/255"));
  CHECK_THAT(message(R"({"resample": 0})"), Catch::Contains("resample: only"));
  CHECK_THAT(message(R"({"image_mean": [0.5]})"), Catch::Contains("image_mean: expected three"));
  CHECK_THAT(message(R"({"image_std": [0.5, 0, 0.5]})"), Catch::Contains("image_std: every value"));
  CHECK_THAT(message(R"({"crop_size": 100000000, "do_center_crop": true})"), Catch::Contains("crop_size: expected"));
  CHECK_THAT(message(R"({"crop_size": 224, "size": {"longest_edge": 3}})"), Catch::Contains("size: expected"));
  CHECK_THAT(message(R"({"size": {"height": -1, "width": 2}})"), Catch::Contains("size: expected"));
}

TEST_CASE("the preprocessor of a tower of sound is the one that is made") {
  AudioProcessing made;
  made.num_mel_bins = 128;
  const auto check = [&](const std::string& json) {
    check_audio_preprocessor(json, "m/preprocessor_config.json", made);
  };
  const auto message = [&](const std::string& json) { return message_of<ConfigError>([&] { check(json); }); };
  // Qwen2-Audio's, and as transformers 5 keeps it.
  const std::string file = R"({"chunk_length": 30, "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 128, "hop_length": 160, "n_fft": 400, "n_samples": 480000, "nb_max_frames": 3000,
    "padding_side": "right", "padding_value": 0.0, "processor_class": "Qwen2AudioProcessor",
    "return_attention_mask": true, "sampling_rate": 16000})";
  CHECK_NOTHROW(check(file));
  CHECK_NOTHROW(check(R"({"processor_class": "Qwen2AudioProcessor", "feature_extractor": )" + file + "}"));
  CHECK_NOTHROW(check("{}"));
  CHECK_NOTHROW(check(R"({"dither": null})"));
  CHECK_THAT(message("{"), Catch::StartsWith("m/preprocessor_config.json:1:"));
  CHECK_THAT(message("[]"), Catch::Contains("not an object"));
  CHECK_THAT(message(R"({"feature_size": 80})"), Catch::Contains("feature_size: 80 given, the tower wants 128"));
  CHECK_THAT(message(R"({"feature_extractor": {"feature_size": 80}})"), Catch::Contains("feature_size: 80 given"));
  CHECK_THAT(message(R"({"feature_size": "128"})"), Catch::Contains("feature_size: no number given"));
  CHECK_THAT(message(R"({"sampling_rate": 24000})"), Catch::Contains("sampling_rate"));
  CHECK_THAT(message(R"({"hop_length": 320})"), Catch::Contains("hop_length"));
  CHECK_THAT(message(R"({"n_fft": 512})"), Catch::Contains("n_fft"));
  CHECK_THAT(message(R"({"chunk_length": 8})"), Catch::Contains("chunk_length: 8 given, the tower wants 30"));
  CHECK_THAT(message(R"({"dither": 0.1})"), Catch::Contains("dither"));
  CHECK_THAT(message(R"({"padding_value": 1})"), Catch::Contains("padding_value"));
  CHECK_THAT(message(R"({"padding_side": "left"})"), Catch::Contains("padding_side: only \"right\""));
  CHECK_THAT(message(R"({"feature_extractor_type": "SeamlessM4TFeatureExtractor"})"),
             Catch::Contains("WhisperFeatureExtractor"));
}
