#include "core/data/text/tokenizer.h"

#include <fmt/format.h>

#include "core/data/text/tokenizer_impl.h"
#include "core/data/text/utf8.h"
#include "core/error.h"

namespace mmt::data {

std::string with_spaces(std::string token, std::string_view mark) {
  for (std::size_t at = 0; (at = token.find(mark, at)) != std::string::npos; ++at) token.replace(at, mark.size(), " ");
  return token;
}

void Tokenizer::Impl::set_token(TokenId id, Token token, const std::string& where) {
  const auto at = static_cast<std::size_t>(id);
  if (at >= tokens.size()) tokens.resize(at + 1);
  if (tokens[at].known) throw ConfigError(fmt::format("{}: id {} is another token's, too", where, id));
  token.known = true;
  tokens[at] = std::move(token);
}

void Tokenizer::Impl::add_token(AddedToken token, const std::string& where) {
  const auto in_vocab = vocab.find(token.content);
  if (in_vocab != vocab.end() && in_vocab->second != token.id) {
    throw ConfigError(
        fmt::format("{}: {:?} has id {}, in the vocabulary {}", where, token.content, token.id, in_vocab->second));
  }
  if (const auto [it, added] = added_ids.emplace(token.content, token.id); !added && it->second != token.id) {
    throw ConfigError(
        fmt::format("{}: {:?} is there twice, with ids {} and {}", where, token.content, it->second, token.id));
  } else if (added && in_vocab == vocab.end()) {
    set_token(token.id, {token.content, true, token.special, false}, where);
  } else {
    tokens[static_cast<std::size_t>(token.id)] = {token.content, true, token.special, false};
  }
  if (token.special) special.add(token);
  const bool rewritten = token.normalized && !normalizer.empty();
  if (rewritten) token.content = normalizer.apply(token.content);
  (token.normalized ? normalized : raw).add(token);
}

bool Tokenizer::Impl::writes_space(TextPlace place) const {
  if (place == TextPlace::inside) return false;
  if (pieces) return pieces->file().dummy_prefix && (place == TextPlace::text || prefix_sections);
  return normalizer.prepends() || pre_tokenizer.prepends(place);
}

void Tokenizer::Impl::encode_word(std::string_view word, std::vector<TokenId>& ids) const {
  if (word.size() > WordCache::kMaxWordBytes) return bpe.encode(word, ids);
  if (cache.get(word, ids)) return;
  const std::size_t before = ids.size();
  bpe.encode(word, ids);
  cache.put(word, std::span(ids).subspan(before));
}

void Tokenizer::Impl::encode_plain(std::string_view text, TextPlace place, std::vector<TokenId>& ids) const {
  pre_tokenizer.split(text, place, [&](std::string_view word) {
    if (!cut_before_space) return encode_word(word, ids);
    // Exact, since no token reaches across: short words are found in the cache, long texts merge in linear time.
    std::size_t begin = 0;
    for (std::size_t at = 0; (at = word.find(space, at)) != std::string_view::npos; at += space.size()) {
      if (at == begin || word.substr(begin, at - begin).ends_with(space)) continue;
      encode_word(word.substr(begin, at - begin), ids);
      begin = at;
    }
    encode_word(word.substr(begin), ids);
  });
}

void Tokenizer::Impl::encode(std::string_view text, bool with_special, TextPlace place,
                             std::vector<TokenId>& ids) const {
  std::string repaired;
  if (!valid_utf8(text)) {
    repaired = replace_invalid_utf8(text);
    text = repaired;
  }
  const auto between = [](std::string_view whole, const std::vector<AddedTokenFinder::Hit>& hits, auto&& plain,
                          auto&& token) {
    std::size_t done = 0;
    for (const auto& hit : hits) {
      if (hit.begin > done) plain(whole.substr(done, hit.begin - done), done > 0);
      token(hit.id);
      done = hit.end;
    }
    if (done < whole.size()) plain(whole.substr(done), done > 0);
  };
  const auto emit = [&ids](TokenId id) { ids.push_back(id); };
  between(
      text, raw.find(text, with_special),
      [&](std::string_view section, bool behind) {
        const TextPlace at = behind ? TextPlace::section : place;
        if (pieces) return pieces->encode(section, writes_space(at), ids);
        std::string rewritten;
        if (!normalizer.empty()) {
          rewritten = normalizer.apply(section, at);
          section = rewritten;
        }
        between(
            section, normalized.find(section, with_special),
            [&](std::string_view plain, bool further) { encode_plain(plain, further ? TextPlace::section : at, ids); },
            emit);
      },
      emit);
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::parse(std::string_view json, const std::string& name) {
  return Tokenizer(parse_tokenizer_json(json, name));
}

Tokenizer Tokenizer::load(const std::filesystem::path& path) { return Tokenizer(load_tokenizer(path)); }

void Tokenizer::encode(std::string_view text, std::vector<TokenId>& ids, TextPlace place) const {
  impl_->encode(text, false, place, ids);
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, TextPlace place) const {
  std::vector<TokenId> ids;
  impl_->encode(text, false, place, ids);
  return ids;
}

std::vector<TokenId> Tokenizer::encode_with_special(std::string_view text) const {
  std::vector<TokenId> ids;
  impl_->encode(text, true, TextPlace::text, ids);
  return ids;
}

std::vector<Tokenizer::Section> Tokenizer::split_special(std::string_view text) const {
  std::vector<Section> sections;
  std::size_t done = 0;
  for (const AddedTokenFinder::Hit& hit : impl_->special.find(text, true)) {
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

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special, TextPlace place) const {
  std::string text, run;
  const auto end_run = [&] {  // bytes between other tokens: good as a whole or not at all
    if (valid_utf8(run)) {
      text += run;
    } else {
      for (std::size_t i = 0; i < run.size(); ++i) append_utf8(text, 0xfffd);
    }
    run.clear();
  };
  for (const TokenId id : ids) {
    if (id < 0 || static_cast<std::size_t>(id) >= impl_->tokens.size() || (skip_special && is_special(id))) continue;
    const Impl::Token& token = impl_->tokens[static_cast<std::size_t>(id)];
    if (!token.byte) end_run();
    (token.byte ? run : text) += token.bytes;
  }
  end_run();
  const bool strips = impl_->strips_space && (place == TextPlace::text || impl_->writes_space(place));
  if (strips && text.starts_with(' ')) text.erase(0, 1);
  return replace_invalid_utf8(text);
}

std::int32_t Tokenizer::vocab_size() const { return static_cast<std::int32_t>(impl_->tokens.size()); }
const std::string& Tokenizer::bos_token() const { return impl_->bos; }
const std::string& Tokenizer::eos_token() const { return impl_->eos; }
std::uint64_t Tokenizer::hash() const { return impl_->hash; }

}  // namespace mmt::data
