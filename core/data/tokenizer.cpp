#include "core/data/tokenizer.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <array>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <shared_mutex>

#include "core/data/added_tokens.h"
#include "core/data/bpe.h"
#include "core/data/file.h"
#include "core/data/json_guard.h"
#include "core/data/pretokenizer.h"
#include "core/data/utf8.h"
#include "core/error.h"

namespace mmt::data {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 32;
constexpr std::int64_t kMaxFileBytes = std::int64_t{512} << 20;
constexpr std::int64_t kMaxId = 1 << 24;

/// Words seen before, with their tokens. Bounded: a full shard is emptied.
class WordCache {
 public:
  bool get(std::string_view word, std::vector<TokenId>& ids) const {
    const Shard& s = shard(word);
    const std::lock_guard lock(s.mutex);
    const auto it = s.words.find(word);
    if (it == s.words.end()) return false;
    ids.insert(ids.end(), it->second.begin(), it->second.end());
    return true;
  }
  void put(std::string_view word, std::span<const TokenId> ids) const {
    const Shard& s = shard(word);
    const std::lock_guard lock(s.mutex);
    if (s.words.size() >= kWords) s.words.clear();
    s.words.emplace(word, std::vector<TokenId>(ids.begin(), ids.end()));
  }

 private:
  static constexpr std::size_t kShards = 32, kWords = 2048;
  struct Shard {
    mutable std::mutex mutex;
    mutable StringMap<std::vector<TokenId>> words;
  };
  const Shard& shard(std::string_view word) const { return shards_[XXH3_64bits(word.data(), word.size()) % kShards]; }
  std::array<Shard, kShards> shards_;
};

constexpr std::size_t kCachedWordBytes = 64;

}  // namespace

struct Tokenizer::Impl {
  Bpe bpe;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  AddedTokenFinder raw, normalized;
  StringMap<TokenId> added_ids, vocab;  // by written form
  struct Token {
    std::string bytes;
    bool known = false, special = false;
  };
  std::vector<Token> tokens;  // by id
  std::string bos, eos;
  std::uint64_t hash = 0;
  WordCache cache;

  void set_token(TokenId id, std::string bytes, bool special);
  static std::unique_ptr<Impl> parse(std::string_view text, const std::string& name);
  void read_model(const json& model, const std::string& name);
  void read_added(const json& list, const std::string& name);
  void encode(std::string_view text, bool special, std::vector<TokenId>& ids) const;
  void encode_words(std::string_view text, std::vector<TokenId>& ids) const;
};

namespace {

TokenId checked_id(const json& value, const std::string& where) {
  if (!value.is_number_integer()) throw ConfigError(fmt::format("{}: an integer id is expected", where));
  const bool fits = value.is_number_unsigned() ? value.get<std::uint64_t>() < kMaxId : false;
  if (!fits) throw ConfigError(fmt::format("{}: id {} is not in [0, {})", where, value.dump(), kMaxId));
  return static_cast<TokenId>(value.get<std::uint64_t>());
}

bool checked_flag(const json& object, const char* key, const std::string& where) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return false;
  if (!it->is_boolean()) throw ConfigError(fmt::format("{}.{}: true or false is expected", where, key));
  return it->get<bool>();
}

bool is_blank(const json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() || (it->is_string() && it->get_ref<const std::string&>().empty()) ||
         (it->is_number() && it->get<double>() == 0.0);
}

}  // namespace

void Tokenizer::Impl::set_token(TokenId id, std::string bytes, bool special) {
  const auto at = static_cast<std::size_t>(id);
  if (at >= tokens.size()) tokens.resize(at + 1);
  tokens[at] = {std::move(bytes), true, special};
}

void Tokenizer::Impl::read_model(const json& model, const std::string& name) {
  const std::string where = name + ": model";
  if (!model.is_object()) throw ConfigError(where + ": an object is expected");
  const json type = model.value("type", json("BPE"));  // old files leave the type out
  if (type != "BPE") {
    throw ConfigError(fmt::format("{}: type {} is not supported: byte-level BPE is expected", where, type.dump()));
  }
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!is_blank(model, key)) throw ConfigError(fmt::format("{}.{} is not supported", where, key));
  }
  const auto words = model.find("vocab");
  if (words == model.end() || !words->is_object() || words->empty()) {
    throw ConfigError(where + ".vocab: an object {token: id} is expected");
  }
  bpe.byte_ids.fill(Bpe::kNone);
  bpe.words.reserve(words->size());
  vocab.reserve(words->size());
  std::string bytes;
  for (const auto& [token, value] : words->items()) {
    const TokenId id = checked_id(value, fmt::format("{}.vocab[{:?}]", where, token));
    vocab.emplace(token, id);
    const bool from_bytes = from_byte_alphabet(token, bytes);
    if (from_bytes && !bytes.empty()) {
      bpe.words.emplace(bytes, id);
      if (bytes.size() == 1) bpe.byte_ids[static_cast<std::uint8_t>(bytes[0])] = id;
    }
    set_token(id, from_bytes ? bytes : token, false);
  }
  bpe.ignore_merges = checked_flag(model, "ignore_merges", where);
  bpe.fuse_unknown = checked_flag(model, "fuse_unk", where);
  if (!is_blank(model, "unk_token")) {
    const json& unknown = model["unk_token"];
    const auto it = unknown.is_string() ? vocab.find(unknown.get_ref<const std::string&>()) : vocab.end();
    if (it == vocab.end())
      throw ConfigError(fmt::format("{}.unk_token {} is not in the vocabulary", where, unknown.dump()));
    bpe.unknown = it->second;
  } else {
    for (std::size_t b = 0; b < 256; ++b) {
      if (bpe.byte_ids[b] != Bpe::kNone) continue;
      throw ConfigError(
          fmt::format("{}.vocab: byte 0x{:02x} has no token and there is no unk_token; a byte-level "
                      "vocabulary holds all 256 bytes",
                      where, b));
    }
  }
  const auto merges = model.find("merges");
  if (merges == model.end() || !merges->is_array()) throw ConfigError(where + ".merges: a list is expected");
  bpe.reserve_merges(merges->size());
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
    const auto l = vocab.find(left), r = vocab.find(right), m = vocab.find(left + right);
    if (l == vocab.end() || r == vocab.end() || m == vocab.end()) {
      throw ConfigError(fmt::format("{}.merges[{}]: {:?} + {:?}: both and their sum must be in the vocabulary", where,
                                    number, left, right));
    }
    bpe.add_merge(l->second, r->second, m->second);
    ++number;
  }
}

void Tokenizer::Impl::read_added(const json& list, const std::string& name) {
  if (list.is_null()) return;
  if (!list.is_array()) throw ConfigError(name + ": added_tokens: a list is expected");
  std::size_t number = 0;
  for (const json& item : list) {
    const std::string where = fmt::format("{}: added_tokens[{}]", name, number++);
    if (!item.is_object() || !item.contains("id") || !item.contains("content") || !item["content"].is_string()) {
      throw ConfigError(where + ": {id, content, ...} is expected");
    }
    AddedToken token;
    token.id = checked_id(item["id"], where + ".id");
    token.content = item["content"].get<std::string>();
    token.single_word = checked_flag(item, "single_word", where);
    token.lstrip = checked_flag(item, "lstrip", where);
    token.rstrip = checked_flag(item, "rstrip", where);
    token.normalized = checked_flag(item, "normalized", where);
    token.special = checked_flag(item, "special", where);
    added_ids.insert_or_assign(token.content, token.id);
    set_token(token.id, token.content, token.special);
    if (token.normalized && !normalizer.empty()) {
      token.content = normalizer.apply(token.content);
      normalized.add(token);
    } else if (token.normalized) {
      normalized.add(token);
    } else {
      raw.add(token);
    }
  }
}

void Tokenizer::Impl::encode_words(std::string_view text, std::vector<TokenId>& ids) const {
  pre_tokenizer.split(text, [&](std::string_view word) {
    if (word.size() > kCachedWordBytes) return bpe.encode(word, ids);
    if (cache.get(word, ids)) return;
    const std::size_t before = ids.size();
    bpe.encode(word, ids);
    cache.put(word, std::span(ids).subspan(before));
  });
}

void Tokenizer::Impl::encode(std::string_view text, bool special, std::vector<TokenId>& ids) const {
  std::string repaired;
  if (!valid_utf8(text)) {
    repaired = replace_invalid_utf8(text);
    text = repaired;
  }
  const auto between = [](std::string_view whole, const std::vector<AddedTokenFinder::Hit>& hits, auto&& plain,
                          auto&& token) {
    std::size_t done = 0;
    for (const auto& hit : hits) {
      if (hit.begin > done) plain(whole.substr(done, hit.begin - done));
      token(hit.id);
      done = hit.end;
    }
    if (done < whole.size()) plain(whole.substr(done));
  };
  const auto emit = [&ids](TokenId id) { ids.push_back(id); };
  between(
      text, raw.find(text, special),
      [&](std::string_view section) {
        std::string rewritten;
        if (!normalizer.empty()) {
          rewritten = normalizer.apply(section);
          section = rewritten;
        }
        between(
            section, normalized.find(section, special), [&](std::string_view plain) { encode_words(plain, ids); },
            emit);
      },
      emit);
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

namespace {

std::string token_name(const json& config, const char* key) {
  const auto it = config.find(key);
  if (it == config.end()) return {};
  if (it->is_string()) return it->get<std::string>();
  if (it->is_object() && it->contains("content") && (*it)["content"].is_string())
    return (*it)["content"].get<std::string>();
  return {};
}

}  // namespace

std::unique_ptr<Tokenizer::Impl> Tokenizer::Impl::parse(std::string_view text, const std::string& name) {
  std::string error;
  const json file = parse_json(text, kMaxDepth, error);
  if (!error.empty()) throw ConfigError(fmt::format("{}:{}", name, error));
  if (!file.is_object() || !file.contains("model")) {
    throw ConfigError(fmt::format("{}: not a tokenizer.json: \"model\" is missing", name));
  }
  auto impl = std::make_unique<Impl>();
  try {
    impl->normalizer = Normalizer(file.value("normalizer", json()), name + ": normalizer");
    impl->pre_tokenizer = PreTokenizer(file.value("pre_tokenizer", json()), name + ": pre_tokenizer");
    impl->read_model(file["model"], name);
    impl->read_added(file.value("added_tokens", json()), name);
  } catch (const json::exception& e) {
    throw ConfigError(fmt::format("{}: {}", name, e.what()));
  } catch (const DataError& e) {  // an added token that cannot be normalised
    throw ConfigError(fmt::format("{}: {}", name, e.what()));
  }
  impl->hash = XXH3_64bits(text.data(), text.size());
  return impl;
}

Tokenizer Tokenizer::parse(std::string_view json, const std::string& name) {
  return Tokenizer(Impl::parse(json, name));
}

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  std::error_code ignored;
  const std::filesystem::path file = std::filesystem::is_directory(path, ignored) ? path / "tokenizer.json" : path;
  std::unique_ptr<Impl> impl = Impl::parse(read_text_file(file, kMaxFileBytes), file.string());
  const std::filesystem::path config_path = file.parent_path() / "tokenizer_config.json";
  if (std::filesystem::exists(config_path, ignored)) {
    std::string error;
    const auto config = parse_json(read_text_file(config_path, kMaxFileBytes), kMaxDepth, error);
    if (!error.empty()) throw ConfigError(fmt::format("{}:{}", config_path.string(), error));
    if (config.is_object()) {
      impl->bos = token_name(config, "bos_token");
      impl->eos = token_name(config, "eos_token");
      const std::string names = impl->bos + '\0' + impl->eos;
      impl->hash = XXH3_64bits_withSeed(names.data(), names.size(), impl->hash);
    }
  }
  return Tokenizer(std::move(impl));
}

void Tokenizer::encode(std::string_view text, std::vector<TokenId>& ids) const { impl_->encode(text, false, ids); }

std::vector<TokenId> Tokenizer::encode(std::string_view text) const {
  std::vector<TokenId> ids;
  impl_->encode(text, false, ids);
  return ids;
}

std::vector<TokenId> Tokenizer::encode_with_special(std::string_view text) const {
  std::vector<TokenId> ids;
  impl_->encode(text, true, ids);
  return ids;
}

std::vector<Tokenizer::Section> Tokenizer::split_special(std::string_view text) const {
  std::vector<Section> sections;
  std::size_t done = 0;
  for (const AddedTokenFinder::Hit& hit : impl_->raw.find(text, true)) {
    if (!is_special(hit.id)) continue;
    if (hit.begin > done) sections.push_back({-1, std::string(text.substr(done, hit.begin - done))});
    sections.push_back({hit.id, std::string(text.substr(hit.begin, hit.end - hit.begin))});
    done = hit.end;
  }
  if (done < text.size()) sections.push_back({-1, std::string(text.substr(done))});
  return sections;
}

std::optional<TokenId> Tokenizer::id_of(std::string_view token) const {
  if (const auto it = impl_->added_ids.find(token); it != impl_->added_ids.end()) return it->second;
  if (const auto it = impl_->vocab.find(token); it != impl_->vocab.end()) return it->second;
  return std::nullopt;
}

std::string Tokenizer::bytes_of(TokenId id) const {
  const auto at = static_cast<std::size_t>(id);
  return id >= 0 && at < impl_->tokens.size() ? impl_->tokens[at].bytes : std::string();
}

bool Tokenizer::is_special(TokenId id) const {
  const auto at = static_cast<std::size_t>(id);
  return id >= 0 && at < impl_->tokens.size() && impl_->tokens[at].special;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string bytes;
  for (const TokenId id : ids) {
    if (!(skip_special && is_special(id))) bytes += bytes_of(id);
  }
  return replace_invalid_utf8(bytes);
}

std::int32_t Tokenizer::vocab_size() const { return static_cast<std::int32_t>(impl_->tokens.size()); }
const std::string& Tokenizer::bos_token() const { return impl_->bos; }
const std::string& Tokenizer::eos_token() const { return impl_->eos; }
std::uint64_t Tokenizer::hash() const { return impl_->hash; }

}  // namespace mmt::data
