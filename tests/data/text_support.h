// What the text tests share: folders that vanish, tokenizers with chosen special tokens, encoders without media codecs.
#pragma once

#include "core/data/media/encoder_input.h"
#include "core/data/text/tokenizer.h"
#include "core/error.h"
#include "tests/support/temp_folder.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace mmt::data {

using mmt::test::TempFolder;

/// Rounds of a fuzz test: MMTRAIN_FUZZ_ROUNDS (scripts/soak.sh sets it), or the few of the usual run.
inline int fuzz_rounds(int usual) {
  const char* rounds = std::getenv("MMTRAIN_FUZZ_ROUNDS");
  return rounds == nullptr ? usual : std::atoi(rounds);
}

inline std::string read_whole(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// A trained byte-level BPE with the Llama-3 pattern and these special tokens, ids from 1000 on.
inline Tokenizer test_tokenizer(const std::vector<std::string>& special) {
  nlohmann::json file = nlohmann::json::parse(read_whole(std::string(MMT_TEST_DATA) + "/tokenizer/llama3.json"));
  file["added_tokens"] = nlohmann::json::array();
  int id = 1000;
  for (const auto& token : special) {
    file["added_tokens"].push_back({{"id", id++}, {"content", token}, {"special", true}, {"normalized", false}});
  }
  return Tokenizer::parse(file.dump(), "test tokenizer");
}

inline const Tokenizer& usual_tokenizer() {
  static const Tokenizer tokenizer =
      test_tokenizer({"<s>", "</s>", "<image>", "<audio>", "<|im_start|>", "<|im_end|>", "<|vision_start|>",
                      "<|vision_end|>", "<|image_pad|>", "<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>",
                      "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"});
  return tokenizer;
}

/// An encoder whose media are text files "rows" or "rows parts": every value of row r of part p is 100 p + r. A file
/// that says "bad" is corrupt. The number of loads is counted.
inline EncoderInput fake_encoder(const std::string& module, Modality modality, std::int32_t cols,
                                 std::int32_t max_rows = 0, std::atomic<int>* loads = nullptr) {
  const auto read = [modality](const MediaSource& source, const std::string& where) {
    const std::vector<std::byte> bytes = source.read(where, 1 << 20, DataFault::image_too_large);
    std::string text;
    for (const std::byte b : bytes) text.push_back(static_cast<char>(b));
    std::istringstream in(text);
    int rows = 0, parts = 1;
    if (!(in >> rows)) {
      throw DataError(modality == Modality::image ? DataFault::corrupt_image : DataFault::corrupt_audio, where,
                      "no number");
    }
    in >> parts;
    return std::pair(rows, in ? parts : 1);
  };
  EncoderInput e;
  e.module = module;
  e.modality = modality;
  e.max_rows = max_rows;
  e.key = static_cast<std::uint64_t>(cols);
  e.measure = [=](const MediaSource& source, const std::string& where) {
    const auto [rows, parts] = read(source, where);
    return std::vector<ItemShape>(static_cast<std::size_t>(parts), ItemShape{rows, rows + 1, rows, cols, {1, rows, 1}});
  };
  e.load = [=](const MediaSource& source, const std::string& where, const ItemShape& shape, int part,
               std::span<float> out) {
    if (loads != nullptr) ++*loads;
    const auto [rows, parts] = read(source, where);
    if (rows != shape.rows || part >= parts) throw DataError(DataFault::corrupt_image, where, "has changed");
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<float>(100 * part + static_cast<int>(i) / cols);
    }
  };
  return e;
}

}  // namespace mmt::data
