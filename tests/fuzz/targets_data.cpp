// Records, tar shards, tokenizers, weights.
#include <algorithm>
#include <stdexcept>
#include <string_view>

#include "core/data/records/record_file.h"
#include "core/data/records/tar_set.h"
#include "core/data/text/tokenizer.h"
#include "core/data/weights/safetensors.h"
#include "core/error.h"
#include "tests/fuzz/checksums.h"
#include "tests/fuzz/target.h"

namespace mmt::fuzz {
namespace {

void require_that(bool condition, const char* what) {
  if (!condition) throw std::logic_error(what);
}

/// Reads every sample and every medium.
bool read_all_samples(const data::RecordSource& records) {
  bool good = false;
  for (std::int64_t i = 0; i < records.size(); ++i) {
    try {
      const data::Record record = records.read(i);
      good = true;
      std::vector<bool> placed(record.media.size(), false);
      for (const data::Turn& turn : record.turns) {
        for (const data::Part& part : turn.parts) {
          if (part.media < 0) continue;
          const auto m = static_cast<std::size_t>(part.media);
          require_that(m < placed.size() && !placed[m], "a slot without its own medium");
          placed[m] = true;
        }
      }
      require_that(std::find(placed.begin(), placed.end(), false) == placed.end(), "a medium without a slot");
      for (const data::MediaFile& file : record.media) file.source.read("x", 1 << 20, DataFault::image_too_large);
    } catch (const DataError&) {
    }
  }
  return good;
}

}  // namespace

namespace json_records {
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static MemoryFile file;
  try {
    const auto records = data::RecordFile::open(file.with(data, size), "/nowhere");
    if (read_all_samples(records)) accepted();
  } catch (const Error&) {
  }
  return 0;
}
const Registration kRegistered({"json_records",
                                LLVMFuzzerTestOneInput,
                                {"fuzz/corpus/*.jsonl", "fuzz/corpus/records.json"},
                                {"\"messages\"",
                                 "\"conversations\"",
                                 "\"images\"",
                                 "\"image\":",
                                 "\"audios\"",
                                 "<image>",
                                 "<audio>",
                                 "\"videos\"",
                                 "<video>",
                                 "\"from\":",
                                 "\"value\":",
                                 "\"role\":",
                                 "\"content\":",
                                 "\"system\"",
                                 "\"gpt\"",
                                 "\"human\"",
                                 "\"assistant\"",
                                 "\"user\"",
                                 "\"type\":",
                                 "\"text\"",
                                 "\"image_url\"",
                                 "\"input_audio\"",
                                 "\"data\":",
                                 "data:;base64,",
                                 "../",
                                 "null",
                                 "[[[[[[[[",
                                 "]]]]]]]]",
                                 "{}",
                                 "\\u0000",
                                 "\\ud83d",
                                 "1e999",
                                 "\"loss\": false",
                                 "\n",
                                 ",",
                                 "\xef\xbb\xbf"}});
}  // namespace json_records

namespace tar_shard {
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static MemoryFile file;
  try {
    data::SetSpec spec;
    spec.path = file.with(data, size);
    spec.format = data::SetFormat::webdataset;
    data::OpenOptions options;
    options.write = false;
    const auto set = data::TarSet::open(spec, options);
    read_all_samples(*set);
    accepted();
  } catch (const Error&) {
  }
  return 0;
}
const Registration kRegistered({"tar_shard",
                                LLVMFuzzerTestOneInput,
                                {"data/webdataset/*.tar", "fuzz/corpus/*.tar"},
                                {"ustar\00000", std::string(512, '\0'), "GNU.sparse.major=1", "21 path=0001.jpg\n",
                                 "size=", "././@LongLink", "0001.", ".json", ".txt", "__", "/", "L", "x", "g", "S"},
                                mend_tar});
}  // namespace tar_shard

namespace known_shards {
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const auto& [name, shard] : data::read_known_shards(text)) {
    for (std::size_t s = 0; s < shard.samples.size(); ++s) {
      require_that(shard.key(s).size() == shard.samples[s].key_bytes, "a key that is not there");
      require_that(shard.samples[s].first_field < shard.fields_end(s), "a sample without fields");
      for (std::size_t f = shard.samples[s].first_field; f < shard.fields_end(s); ++f) {
        require_that(shard.fields.at(f).name < shard.field_names.size(), "a field without a name");
      }
    }
    accepted();
  }
  return 0;
}
const Registration kRegistered(
    {"known_shards", LLVMFuzzerTestOneInput, {"fuzz/corpus/*.mmtshards"}, {"MMTTARS1"}, mend_known_shards});
}  // namespace known_shards

namespace tokenizer_json {
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const data::Tokenizer tokenizer = data::Tokenizer::parse({reinterpret_cast<const char*>(data), size}, "fuzz");
    std::vector<data::TokenId> ids;
    for (const std::string_view text : {"Hello  world's 123 \xc3\xa9t\xc3\xa9\n\n", "<|im_start|>", "\xff\xfe a"}) {
      ids.clear();
      tokenizer.encode(text, ids);
      tokenizer.decode(ids);
    }
    accepted();
  } catch (const Error&) {
  }
  return 0;
}
const Registration kRegistered({"tokenizer_json",
                                LLVMFuzzerTestOneInput,
                                {"data/tokenizer/gpt2.json", "data/tokenizer/llama3.json", "data/tokenizer/qwen2.json"},
                                {"\"merges\":",
                                 "\"vocab\":",
                                 "\"added_tokens\":",
                                 "\"special\": true",
                                 "\"id\":",
                                 "\"content\":",
                                 "\"type\": \"BPE\"",
                                 "\"Split\"",
                                 "\"ByteLevel\"",
                                 "\"Sequence\"",
                                 "\"NFC\"",
                                 "\"Regex\"",
                                 "\"pattern\":",
                                 "(?:",
                                 "\\\\p{L}",
                                 "(a+)+",
                                 "{1,60000}",
                                 "\"ignore_merges\": true",
                                 "\"unk_token\":",
                                 "null",
                                 "-1",
                                 "4294967296",
                                 "\"\"",
                                 "[",
                                 "]",
                                 "{",
                                 "}"}});
}  // namespace tokenizer_json

namespace safetensors {
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static MemoryFile file;
  try {
    const data::SafetensorsFile weights(file.with(data, size));
    std::uint64_t sum = 0;
    for (const data::SafeTensor& t : weights.tensors()) {
      require_that(weights.find(t.name) != nullptr, "a tensor that is not found");
      require_that(weights.data(t).size() == t.bytes, "a tensor of another size");
      for (const std::byte b : weights.data(t)) sum += static_cast<std::uint64_t>(b);
    }
    require_that(sum <= 255 * size, "bytes that are not in the file");
    accepted();
  } catch (const Error&) {
  }
  return 0;
}
const Registration kRegistered({"safetensors",
                                LLVMFuzzerTestOneInput,
                                {"fuzz/corpus/*.safetensors"},
                                {"\"dtype\":", "\"shape\":", "\"data_offsets\":", "\"__metadata__\":", "\"F32\"",
                                 "\"BF16\"", "\"F4\"", "\"I64\"", "[0,0]", "[]", "[1099511627776,1099511627776]", "{}",
                                 ",", "18446744073709551615", "-1"}});
}  // namespace safetensors

}  // namespace mmt::fuzz
