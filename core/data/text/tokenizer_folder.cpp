// Which file of a folder is read, and what lies beside it.
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "core/data/file.h"
#include "core/data/json_guard.h"
#include "core/data/text/tokenizer_fields.h"
#include "core/data/text/tokenizer_impl.h"
#include "core/data/text/utf8.h"
#include "core/error.h"

namespace mmt::data {
namespace {

using nlohmann::json;
using Impl = Tokenizer::Impl;
namespace fs = std::filesystem;

/// null where the file does not exist.
json read_beside(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return {};
  std::string error;
  json value = parse_json(read_text_file(path, Impl::kMaxFileBytes), Impl::kMaxDepth, error);
  if (!error.empty()) throw ConfigError(fmt::format("{}:{}", path.string(), error));
  return value;
}

/// Names of tokens that a configuration says are special: bos_token and its kin, additional_special_tokens.
void collect_special(const json& config, std::unordered_set<std::string>& names) {
  if (!config.is_object()) return;
  for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    if (std::string name = json_token_name(config, key); !name.empty()) names.insert(std::move(name));
  }
  const auto more = config.find("additional_special_tokens");
  if (more == config.end() || !more->is_array()) return;
  for (const json& item : *more) {
    const json wrapped = {{"token", item}};
    if (std::string name = json_token_name(wrapped, "token"); !name.empty()) names.insert(std::move(name));
  }
}

/// added_tokens.json {content: id} and added_tokens_decoder {id: {content, ...}}; the latter says more and counts.
void add_tokens_beside(Impl& impl, const fs::path& folder, const json& config) {
  const fs::path list_path = folder / "added_tokens.json";
  const json list = read_beside(list_path);
  const std::string described_in = (folder / "tokenizer_config.json").string();
  const json described = config.is_object() ? config.value("added_tokens_decoder", json()) : json();
  if (!list.is_null() && !list.is_object()) {
    throw ConfigError(fmt::format("{}: an object {{token: id}} is expected", list_path.string()));
  }
  if (!described.is_null() && !described.is_object()) {
    throw ConfigError(fmt::format("{}: added_tokens_decoder: an object {{id: token}} is expected", described_in));
  }
  const std::int64_t limit = std::min<std::int64_t>(
      Impl::kMaxId, static_cast<std::int64_t>(2 * (impl.tokens.size() + list.size() + described.size())) + (1 << 16));
  std::unordered_set<std::string> done;
  for (const auto& [key, item] : described.items()) {
    const std::string where = fmt::format("{}: added_tokens_decoder[{:?}]", described_in, key);
    std::uint64_t id = 0;
    const auto [end, fault] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (key.empty() || fault != std::errc() || end != key.data() + key.size()) {
      throw ConfigError(where + ": the key is no id");
    }
    AddedToken token = json_added_token(item, where);
    token.id = json_id(json(id), limit, where);
    token.normalized = false;  // SentencePiece normalises inside: such tokens are found in the raw text
    done.insert(token.content);
    impl.add_token(std::move(token), where);
  }
  std::unordered_set<std::string> special;
  collect_special(config, special);
  collect_special(read_beside(folder / "special_tokens_map.json"), special);
  for (const auto& [content, id] : list.items()) {
    if (done.contains(content)) continue;
    const std::string where = fmt::format("{}: {:?}", list_path.string(), content);
    AddedToken token;
    token.content = content;
    token.id = json_id(id, limit, where);
    token.special = special.contains(content);
    impl.add_token(std::move(token), where);
  }
}

/// Everything about tokens that changes ids, for the hash.
std::string described_tokens(const Impl& impl) {
  std::string all = fmt::format("{}|", impl.prefix_sections);
  std::vector<std::pair<TokenId, std::string>> added;
  for (const auto& [content, id] : impl.added_ids) added.emplace_back(id, content);
  std::ranges::sort(added);
  for (const auto& [id, content] : added) {
    const AddedToken* token = impl.raw.find_token(content);
    all += fmt::format("{}:{}:{}", id, content.size(), content);
    if (token != nullptr) {
      all += fmt::format(":{}{}{}{}|", token->single_word, token->lstrip, token->rstrip, token->special);
    }
  }
  return all;
}

void mix(std::uint64_t& hash, const std::string& text) { hash = XXH3_64bits_withSeed(text.data(), text.size(), hash); }

}  // namespace

std::unique_ptr<Tokenizer::Impl> parse_sentencepiece(std::string_view bytes, const std::string& name) {
  auto impl = std::make_unique<Impl>();
  using Kind = SentencePieceFile::Kind;
  SentencePieceFile file = SentencePieceFile::parse(bytes, name);
  for (std::size_t i = 0; i < file.pieces.size(); ++i) {
    const auto& piece = file.pieces[i];
    const auto id = static_cast<TokenId>(i);
    const bool is_byte = piece.kind == Kind::byte;
    Impl::Token token;
    token.byte = is_byte;
    token.bytes = is_byte ? std::string(1, static_cast<char>(sentencepiece_byte(piece.text)))
                          : with_spaces(piece.text, kSpaceMark);
    impl->vocab.emplace(piece.text, id);
    impl->set_token(id, std::move(token), name);
    if (piece.kind == Kind::control || piece.kind == Kind::unknown) {
      AddedToken special;
      special.id = id;
      special.content = piece.text;
      special.special = true;
      impl->add_token(std::move(special), name);
    }
  }
  impl->strips_space = file.dummy_prefix || file.trims;
  impl->pieces = std::make_unique<const SentencePieceModel>(std::move(file), name);
  impl->bos = impl->pieces->bos();
  impl->eos = impl->pieces->eos();
  impl->hash = XXH3_64bits(bytes.data(), bytes.size());
  return impl;
}

fs::path Tokenizer::file_of(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return path;
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    if (fs::exists(path / name, ignored)) return path / name;
  }
  throw ConfigError(fmt::format("{}: neither tokenizer.json nor tokenizer.model is there", path.string()));
}

std::unique_ptr<Tokenizer::Impl> load_tokenizer(const fs::path& path) {
  const fs::path file = Tokenizer::file_of(path);
  const bool pieces = file.extension() == ".model";
  const std::string bytes = read_text_file(file, Impl::kMaxFileBytes);
  auto impl = pieces ? parse_sentencepiece(bytes, file.string()) : parse_tokenizer_json(bytes, file.string());
  const json config = read_beside(file.parent_path() / "tokenizer_config.json");
  try {
    if (config.is_object()) {
      if (config.contains("bos_token")) impl->bos = json_token_name(config, "bos_token");
      if (config.contains("eos_token")) impl->eos = json_token_name(config, "eos_token");
    }
    if (pieces) {
      if (config.is_object() && config.contains("legacy") && !config["legacy"].is_null()) {
        impl->prefix_sections = json_flag(config, "legacy", (file.parent_path() / "tokenizer_config.json").string());
      }
      add_tokens_beside(*impl, file.parent_path(), config);
      mix(impl->hash, described_tokens(*impl));
    }
  } catch (const json::exception& e) {
    throw ConfigError(fmt::format("{}: {}", file.parent_path().string(), e.what()));
  }
  if (!impl->bos.empty() || !impl->eos.empty()) mix(impl->hash, impl->bos + '\0' + impl->eos);
  return impl;
}

}  // namespace mmt::data
