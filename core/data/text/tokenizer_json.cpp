// tokenizer.json of Hugging Face.
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/data/json_guard.h"
#include "core/data/text/tokenizer_fields.h"
#include "core/data/text/tokenizer_impl.h"
#include "core/data/text/utf8.h"
#include "core/error.h"

namespace mmt::data {
namespace {

using nlohmann::json;
using Impl = Tokenizer::Impl;

constexpr std::uint64_t kHashSeed = 2;  // counts how the same file came to give other ids

bool is_blank(const json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() || (it->is_string() && it->get_ref<const std::string&>().empty()) ||
         (it->is_number() && it->get<double>() == 0.0);
}

/// A file of a few bytes must not ask for a table of millions.
std::int64_t id_limit(const json& file, const json& vocab) {
  const auto added = file.find("added_tokens");
  const std::size_t count = vocab.size() + (added == file.end() ? 0 : added->size());
  return std::min<std::int64_t>(Impl::kMaxId, 2 * static_cast<std::int64_t>(count) + (1 << 16));
}

class JsonReader {
 public:
  JsonReader(const json& file, const std::string& name, Impl& impl) : file_(file), name_(name), impl_(impl) {}
  void read() {
    impl_.normalizer = Normalizer(file_.value("normalizer", json()), name_ + ": normalizer");
    impl_.pre_tokenizer = PreTokenizer(file_.value("pre_tokenizer", json()), name_ + ": pre_tokenizer");
    const json& model = file_["model"];
    const std::string where = name_ + ": model";
    if (!model.is_object()) throw ConfigError(where + ": an object is expected");
    const json type = model.value("type", json("BPE"));  // old files leave the type out
    if (type != "BPE")
      throw ConfigError(fmt::format("{}: type {} is not supported: BPE is expected", where, type.dump()));
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!is_blank(model, key)) throw ConfigError(fmt::format("{}.{} is not supported", where, key));
    }
    read_vocab(model, where);
    read_unknown(model, where);
    read_merges(model, where);
    impl_.bpe.ignore_merges = json_flag(model, "ignore_merges", where);
    impl_.cut_before_space =
        impl_.bpe.characters && !merges_cross_spaces_ && !impl_.bpe.ignore_merges && impl_.vocab.contains(impl_.space);
    read_added();
    impl_.strips_space = impl_.bpe.characters && strips_space(file_.value("decoder", json()), 0);
  }

 private:
  void read_vocab(const json& model, const std::string& where) {
    const auto words = model.find("vocab");
    if (words == model.end() || !words->is_object() || words->empty()) {
      throw ConfigError(where + ".vocab: an object {token: id} is expected");
    }
    limit_ = id_limit(file_, *words);
    Bpe& bpe = impl_.bpe;
    bpe.characters = !impl_.pre_tokenizer.byte_level();
    const bool byte_fallback = json_flag(model, "byte_fallback", where);
    if (byte_fallback && !bpe.characters) {
      throw ConfigError(where + ".byte_fallback is not supported beside a ByteLevel pre_tokenizer");
    }
    if (bpe.characters && !byte_fallback && is_blank(model, "unk_token")) {
      throw ConfigError(
          fmt::format("{}: characters outside the vocabulary would be lost: a pre_tokenizer ByteLevel, "
                      "model.byte_fallback or model.unk_token is expected",
                      name_));
    }
    impl_.space = bpe.characters ? impl_.pre_tokenizer.space() : "";
    if (bpe.characters && impl_.space.empty()) impl_.space = kSpaceMark;
    bpe.words.reserve(words->size());
    impl_.vocab.reserve(words->size());
    std::string bytes;
    for (const auto& [token, value] : words->items()) {
      const std::string place = fmt::format("{}.vocab[{:?}]", where, token);
      const TokenId id = json_id(value, limit_, place);
      impl_.vocab.emplace(token, id);
      Impl::Token entry;
      if (bpe.characters) {
        const int byte = byte_fallback ? sentencepiece_byte(token) : -1;
        if (byte >= 0) bpe.byte_ids[static_cast<std::size_t>(byte)] = id;
        if (!token.empty()) bpe.words.emplace(token, id);
        entry.byte = byte >= 0;
        entry.bytes = byte >= 0 ? std::string(1, static_cast<char>(byte)) : with_spaces(token, impl_.space);
      } else {
        const bool from_bytes = from_byte_alphabet(token, bytes);
        if (from_bytes && !bytes.empty()) {
          bpe.words.emplace(bytes, id);
          if (bytes.size() == 1) bpe.byte_ids[static_cast<std::uint8_t>(bytes[0])] = id;
        }
        entry.bytes = from_bytes ? bytes : token;
      }
      impl_.set_token(id, std::move(entry), place);
    }
  }

  void read_unknown(const json& model, const std::string& where) {
    Bpe& bpe = impl_.bpe;
    bpe.fuse_unknown = json_flag(model, "fuse_unk", where);
    if (!is_blank(model, "unk_token")) {
      const json& unknown = model["unk_token"];
      const auto it = unknown.is_string() ? impl_.vocab.find(unknown.get_ref<const std::string&>()) : impl_.vocab.end();
      if (it == impl_.vocab.end()) {
        throw ConfigError(fmt::format("{}.unk_token {} is not in the vocabulary", where, unknown.dump()));
      }
      bpe.unknown = it->second;
      return;
    }
    for (std::size_t b = 0; b < 256; ++b) {
      if (bpe.byte_ids[b] != Bpe::kNone) continue;
      throw ConfigError(
          fmt::format("{}.vocab: byte 0x{:02x} has no token and there is no unk_token; such a vocabulary holds all 256 "
                      "bytes",
                      where, b));
    }
  }

  void read_merges(const json& model, const std::string& where) {
    const auto merges = model.find("merges");
    if (merges == model.end() || !merges->is_array()) throw ConfigError(where + ".merges: a list is expected");
    impl_.bpe.reserve_merges(merges->size());
    std::size_t number = 0;
    for (const json& merge : *merges) {
      std::string left, right;
      if (merge.is_string()) {
        const std::string& text = merge.get_ref<const std::string&>();
        const std::size_t cut = text.find(' ');
        if (cut != std::string::npos && text.find(' ', cut + 1) == std::string::npos) {
          left = text.substr(0, cut);
          right = text.substr(cut + 1);
        }
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      }
      if (left.empty() || right.empty()) {
        throw ConfigError(
            fmt::format("{}.merges[{}]: \"left right\" or [\"left\", \"right\"] is expected", where, number));
      }
      const std::string sum = left + right;
      const auto l = impl_.vocab.find(left), r = impl_.vocab.find(right), m = impl_.vocab.find(sum);
      if (l == impl_.vocab.end() || r == impl_.vocab.end() || m == impl_.vocab.end()) {
        throw ConfigError(fmt::format("{}.merges[{}]: {:?} + {:?}: both and their sum must be in the vocabulary", where,
                                      number, left, right));
      }
      impl_.bpe.add_merge(l->second, r->second, m->second);
      if (impl_.bpe.characters && !merges_cross_spaces_) {
        const std::size_t text = first_beside_spaces(sum);
        merges_cross_spaces_ = sum.find(impl_.space, text) != std::string::npos;
      }
      ++number;
    }
  }

  /// Where the spaces at the front of a token end.
  std::size_t first_beside_spaces(std::string_view token) const {
    std::size_t at = 0;
    while (token.substr(at).starts_with(impl_.space)) at += impl_.space.size();
    return at;
  }

  void read_added() {
    const json list = file_.value("added_tokens", json());
    if (list.is_null()) return;
    if (!list.is_array()) throw ConfigError(name_ + ": added_tokens: a list is expected");
    std::size_t number = 0;
    for (const json& item : list) {
      const std::string where = fmt::format("{}: added_tokens[{}]", name_, number++);
      if (!item.is_object() || !item.contains("id")) throw ConfigError(where + ": {id, content, ...} is expected");
      AddedToken token = json_added_token(item, where);
      token.id = json_id(item["id"], limit_, where + ".id");
      impl_.add_token(std::move(token), where);
    }
  }

  /// Whether the file's decoder takes away the space that encoding has written.
  static bool strips_space(const json& decoder, int depth) {
    if (!decoder.is_object()) return false;
    const json type = decoder.value("type", json());
    if (type == "Strip") return decoder.value("content", json()) == " " && decoder.value("start", json(0)) != 0;
    if (type == "Metaspace") {
      return decoder.value("prepend_scheme", json("always")) != "never" &&
             decoder.value("add_prefix_space", json(true)) == true;
    }
    if (type != "Sequence" || depth > 0) return false;
    const json parts = decoder.value("decoders", json::array());
    return std::ranges::any_of(parts, [](const json& part) { return strips_space(part, 1); });
  }

  const json& file_;
  const std::string& name_;
  Impl& impl_;
  std::int64_t limit_ = 0;
  bool merges_cross_spaces_ = false;
};

}  // namespace

std::unique_ptr<Tokenizer::Impl> parse_tokenizer_json(std::string_view text, const std::string& name) {
  std::string error;
  const json file = parse_json(text, Impl::kMaxDepth, error);
  if (!error.empty()) throw ConfigError(fmt::format("{}:{}", name, error));
  if (!file.is_object() || !file.contains("model")) {
    throw ConfigError(fmt::format("{}: not a tokenizer.json: \"model\" is missing", name));
  }
  auto impl = std::make_unique<Impl>();
  try {
    JsonReader(file, name, *impl).read();
  } catch (const json::exception& e) {
    throw ConfigError(fmt::format("{}: {}", name, e.what()));
  } catch (const DataError& e) {  // an added token that cannot be normalised
    throw ConfigError(fmt::format("{}: {}", name, e.what()));
  }
  impl->hash = XXH3_64bits_withSeed(text.data(), text.size(), kHashSeed);
  return impl;
}

}  // namespace mmt::data
