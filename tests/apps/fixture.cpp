#include "tests/apps/fixture.h"

#include <png.h>

#include <fmt/format.h>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <numbers>
#include <random>
#include <stdexcept>

namespace mmt::app_test {
namespace {

using nlohmann::json;

void append_le(std::string& bytes, std::uint32_t value, int count) {
  for (int i = 0; i < count; ++i) bytes += static_cast<char>((value >> (8 * i)) & 0xff);
}

/// The printable character that byte-level tokenizers write for a byte.
std::string symbol_of_byte(int byte) {
  const auto printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  };
  int code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
}

json messages(const std::string& id, const std::string& question, const std::string& answer) {
  return {{"id", id},
          {"messages", {{{"role", "user"}, {"content", question}}, {{"role", "assistant"}, {"content", answer}}}}};
}

json llava(const std::string& id, const std::string& question, const std::string& answer) {
  return {{"id", id},
          {"conversations", {{{"from", "human"}, {"value", question}}, {{"from", "gpt"}, {"value", answer}}}}};
}

constexpr const char* kConfig = R"(run:
  output_dir: run
  seed: 1
  device: cpu
modules:
  eyes:
    role: encoder
    modality: image
    kind: clip
    hidden: 32
    layers: 2
    heads: 2
    patch: 7
    image_size: 28
    projector:
      kind: mlp2
  ears:
    role: encoder
    modality: audio
    kind: whisper
    window: none
    hidden: 32
    layers: 2
    heads: 2
    max_positions: 64
    projector:
      kind: linear
  llm:
    role: llm
    kind: llama
    hidden: 32
    layers: 2
    heads: 2
train:
  steps: 10
  global_batch_size: 16
  tokens_per_microbatch: 1024
  max_grad_norm: 1.0
optimizer:
  lr: 1e-2
  betas: [0.9, 0.95]
  weight_decay: 0.05
learning_rate:
  kind: constant
  warmup_steps: 4
data:
  sets:
    - path: pictures.json
      format: llava
    - path: sounds.jsonl
      format: messages
    - path: both.jsonl
      format: messages
    - path: text.json
      format: llava
  template: chatml
  tokenizer: tokenizer.json
  max_sequence: 256
eval:
  sets:
    - path: eval.jsonl
      format: messages
  max_new_tokens: 16
)";

void write_data(const std::filesystem::path& root) {
  std::filesystem::create_directories(root / "media");
  json pictures = json::array(), text = json::array();
  std::string sounds, both, eval;
  const auto picture_of = [](int i) { return "media/p" + std::to_string(i) + ".png"; };
  const auto sound_of = [](int i) { return "media/s" + std::to_string(i) + ".wav"; };
  for (int i = 0; i < 24; ++i) {
    write_picture(root / picture_of(i), i % 4, i);
    write_sound(root / sound_of(i), (i / 2) % 4, i);
  }
  const std::vector<std::string> words = {"red", "green", "blue", "white"};
  for (int i = 0; i < 12; ++i) {
    const auto kind = static_cast<std::size_t>(i % 4), pitch = static_cast<std::size_t>((i / 2) % 4);
    json picture = llava("picture-" + std::to_string(i), "<image>\nwhere is it?", kPictures[kind]);
    picture["image"] = picture_of(i);
    pictures.push_back(picture);
    json sound = messages("sound-" + std::to_string(i), "<audio>\nhow many?", kSounds[pitch]);
    sound["audios"] = {sound_of(i)};
    sounds += sound.dump() + "\n";
    json two = messages("both-" + std::to_string(i), i % 2 == 0 ? "<image>\n<audio>\nboth?" : "<audio>\n<image>\nwhat?",
                        kSounds[pitch] + " " + kPictures[kind]);
    two["images"] = {picture_of(i)};
    two["audios"] = {sound_of(i)};
    both += two.dump() + "\n";
    text.push_back(llava("text-" + std::to_string(i), "colour " + std::to_string(i) + "?", words[kind]));
    // Evaluation: other media, texts that were trained on.
    const int other = 12 + i;
    json line;
    switch (i % 3) {
      case 0:
        line = messages("eval-" + std::to_string(i), "<image>\nwhere is it?", kPictures[kind]);
        line["images"] = {picture_of(other)};
        break;
      case 1:
        line = messages("eval-" + std::to_string(i), "<audio>\nhow many?",
                        kSounds[static_cast<std::size_t>((other / 2) % 4)]);
        line["audios"] = {sound_of(other)};
        break;
      default: line = messages("eval-" + std::to_string(i), "colour " + std::to_string(i) + "?", words[kind]);
    }
    eval += line.dump() + "\n";
  }
  write_text(root / "pictures.json", pictures.dump(1));
  write_text(root / "text.json", text.dump(1));
  write_text(root / "sounds.jsonl", sounds);
  write_text(root / "both.jsonl", both);
  write_text(root / "eval.jsonl", eval);
}

}  // namespace

Set with(Set set, const Set& more) {
  set.insert(set.end(), more.begin(), more.end());
  return set;
}

void require_code(const Outcome& o, int code) {
  INFO(o.text());
  REQUIRE_FALSE(o.timed_out);
  REQUIRE(o.code == code);
}

Outcome require_done(Outcome o) {
  require_code(o, 0);
  return o;
}

void require_outcome(const Outcome& o, int code, const std::string& message) {
  require_code(o, code);
  REQUIRE_THAT(o.err + o.out, Catch::Contains(message));
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream out(path, std::ios::binary);
  out << text;
  if (!out.flush()) throw std::runtime_error("cannot write " + path.string());
}

void write_picture(const std::filesystem::path& path, int kind, int number, int width, int height) {
  std::mt19937 random(static_cast<unsigned>(number) + 1);
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(width * height));
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      const bool first = kind < 2 ? x < width / 2 : y < height / 2;
      const bool bright = first == (kind % 2 == 0);
      pixels[static_cast<std::size_t>(y * width + x)] = static_cast<std::uint8_t>((bright ? 180 : 20) + random() % 50);
    }
  }
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = PNG_FORMAT_GRAY;
  if (png_image_write_to_file(&image, path.c_str(), 0, pixels.data(), 0, nullptr) == 0)
    throw std::runtime_error("cannot write " + path.string());
}

void write_sound(const std::filesystem::path& path, int kind, int number) {
  constexpr std::uint32_t kRate = 8000;
  const std::uint32_t count = 1200 + 160 * static_cast<std::uint32_t>(number % 7);
  const double pitch = 300.0 * (kind + 1), loudness = 8000.0 + 500.0 * (number % 5);
  std::string bytes = "RIFF";
  append_le(bytes, 36 + 2 * count, 4);
  bytes += "WAVEfmt ";
  append_le(bytes, 16, 4);
  append_le(bytes, 1, 2);  // PCM
  append_le(bytes, 1, 2);  // channels
  append_le(bytes, kRate, 4);
  append_le(bytes, 2 * kRate, 4);
  append_le(bytes, 2, 2);
  append_le(bytes, 16, 2);
  bytes += "data";
  append_le(bytes, 2 * count, 4);
  for (std::uint32_t i = 0; i < count; ++i) {
    const double value = loudness * std::sin(2.0 * std::numbers::pi * pitch * i / kRate);
    append_le(bytes, static_cast<std::uint32_t>(static_cast<std::int32_t>(value)), 2);
  }
  write_text(path, bytes);
}

void write_tokenizer(const std::filesystem::path& path) {
  json vocabulary = json::object();
  for (int byte = 0; byte < 256; ++byte) vocabulary[symbol_of_byte(byte)] = byte;
  json added = json::array();
  int id = 256;
  for (const char* name : {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>",
                           "<|image_pad|>", "<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>"}) {
    added.push_back({{"id", id++},
                     {"content", name},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", true}};
  const json file = {{"version", "1.0"},
                     {"added_tokens", added},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", bytes},
                     {"post_processor", nullptr},
                     {"decoder", bytes},
                     {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", json::array()}}}};
  write_text(path, file.dump());
}

TinyRun::TinyRun() {
  write_data(folder());
  write_tokenizer(folder() / "tokenizer.json");
  write_text(folder() / "config.yaml", kConfig);
}

std::filesystem::path TinyRun::checkpoint(std::int64_t step, const std::string& run) const {
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "step_%08lld", static_cast<long long>(step));
  return folder() / run / "checkpoints" / name.data();
}

std::vector<std::string> TinyRun::arguments(const std::string& command, const std::vector<std::string>& set,
                                            const std::vector<std::string>& more) const {
  std::vector<std::string> list = {command, config()};
  for (const std::string& s : set) {
    list.emplace_back("--set");
    list.push_back(s);
  }
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

Outcome TinyRun::run(const std::string& command, const std::vector<std::string>& set, const Launch& launch,
                     const std::vector<std::string>& more) const {
  return run_binary(folder(), arguments(command, set, more), launch);
}

void TinyRun::edit_config(const std::string& from, const std::string& to) const {
  std::string text = read_text(config());
  const std::size_t at = text.find(from);
  if (at == std::string::npos) throw std::runtime_error("the config lacks \"" + from + "\"");
  write_text(config(), text.replace(at, from.size(), to));
}

void TinyRun::use_pictures_of_any_size() const {
  constexpr std::array<std::array<int, 2>, 5> kSizes{{{28, 28}, {42, 28}, {30, 56}, {9, 14}, {120, 100}}};
  for (int i = 0; i < 24; ++i) {
    const auto& [width, height] = kSizes[static_cast<std::size_t>(i / 4 + i) % kSizes.size()];
    write_picture(folder() / fmt::format("media/p{}.png", i), i % 4, i, width, height);
  }
  edit_config("kind: clip", "kind: qwen2_vl");
  edit_config("    image_size: 28\n", "    max_pixels: 1568\n");
  edit_config("kind: mlp2", "kind: merger");
  edit_config("kind: llama", "kind: qwen2\n    mrope_section: [2, 3, 3]");
}

std::map<std::int64_t, json> read_metrics(const std::filesystem::path& run_folder) {
  std::map<std::int64_t, json> steps;
  std::ifstream in(run_folder / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    if (line.empty()) continue;
    const json values = json::parse(line);
    steps[values.at("step").get<std::int64_t>()].update(values);
  }
  return steps;
}

}  // namespace mmt::app_test
