// What a tokenizer is made of; the readers of the two kinds of files fill it. For the tokenizer's own sources.
#pragma once

#include "core/data/text/added_tokens.h"
#include "core/data/text/bpe.h"
#include "core/data/text/pretokenizer.h"
#include "core/data/text/sentencepiece_model.h"
#include "core/data/text/tokenizer.h"
#include "core/data/text/word_cache.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace mmt::data {

struct Tokenizer::Impl {
  // tokenizer.json
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  std::string space;              ///< what stands for a space in tokens of characters; empty: BPE over bytes
  bool cut_before_space = false;  ///< no token goes on with a space behind another character: words end there
  // tokenizer.model, instead of the above
  std::unique_ptr<const SentencePieceModel> pieces;
  bool prefix_sections = true;  ///< the dummy prefix also behind added tokens (`legacy`)

  AddedTokenFinder raw, normalized;
  AddedTokenFinder special;             ///< special tokens as they are written, whatever their flags
  StringMap<TokenId> added_ids, vocab;  ///< by written form
  struct Token {
    std::string bytes;
    bool known = false, special = false;
    bool byte = false;  ///< of a byte that no token holds
  };
  std::vector<Token> tokens;  ///< by id
  bool strips_space = false;  ///< decoding takes one space away from the beginning
  std::string bos, eos;
  std::uint64_t hash = 0;
  WordCache cache;

  static constexpr int kMaxDepth = 32;  ///< of any JSON file
  static constexpr std::int64_t kMaxFileBytes = std::int64_t{512} << 20;
  static constexpr std::int64_t kMaxId = 1 << 24;

  /// Throws ConfigError for an id that another token has.
  void set_token(TokenId id, Token token, const std::string& where);
  /// Throws ConfigError where the vocabulary has the id or the text otherwise.
  void add_token(AddedToken token, const std::string& where);
  void encode(std::string_view text, bool with_special, TextPlace place, std::vector<TokenId>& ids) const;
  void encode_plain(std::string_view text, TextPlace place, std::vector<TokenId>& ids) const;
  void encode_word(std::string_view word, std::vector<TokenId>& ids) const;
  bool writes_space(TextPlace place) const;
};

inline constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  ///< U+2581, what SentencePiece writes for a space
std::string with_spaces(std::string token, std::string_view mark);

/// A whole tokenizer.json.
std::unique_ptr<Tokenizer::Impl> parse_tokenizer_json(std::string_view text, const std::string& name);
/// A whole SentencePiece model, without the files beside it.
std::unique_ptr<Tokenizer::Impl> parse_sentencepiece(std::string_view bytes, const std::string& name);
/// What Tokenizer::load says.
std::unique_ptr<Tokenizer::Impl> load_tokenizer(const std::filesystem::path& path);

}  // namespace mmt::data
