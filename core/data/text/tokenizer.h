// Tokenizers as models are published with them: `tokenizer.json` of Hugging Face (BPE over bytes: GPT-2, Llama-3,
// Qwen2/2.5/3, Whisper; BPE over characters with bytes for what it lacks: Llama-2, Vicuna, Mistral, Gemma) and
// SentencePiece's `tokenizer.model`. Order of work, as in the `tokenizers` library: added tokens are cut out (leftmost,
// longest), the rest is normalised, split by the file's own rules and merged, lowest rank first. The file's
// `post_processor` is not applied: the chat template places BOS.
#pragma once

#include "core/data/text/text_place.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mmt::data {

using TokenId = std::int32_t;

/// Immutable after construction; every const member may be called from any number of threads at once.
class Tokenizer {
 public:
  /// `path`: a `tokenizer.json`, a SentencePiece model (`*.model`), or a folder that holds one of them; of both,
  /// `tokenizer.json` counts. Beside the file are read, where they exist: `tokenizer_config.json` (names of BOS and
  /// EOS) and, for a SentencePiece model, the added tokens of it and of `added_tokens.json`. Throws ConfigError naming
  /// the file and what is not supported in it.
  static Tokenizer load(const std::filesystem::path& path);
  /// The file that `load` reads. Throws ConfigError where a folder holds neither.
  static std::filesystem::path file_of(const std::filesystem::path& path);
  /// A `tokenizer.json` from memory; `name` stands for the file in messages.
  static Tokenizer parse(std::string_view json, const std::string& name);

  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  /// Ids of data text, appended to `ids`. Special added tokens that occur in the text are plain text here; added tokens
  /// that are not special are recognised. Invalid UTF-8 is read as U+FFFD (one for each maximal bad sequence).
  /// Throws DataError(bad_record) when the file's regular expression exceeds its match limit on this text.
  void encode(std::string_view text, std::vector<TokenId>& ids, TextPlace place = TextPlace::text) const;
  std::vector<TokenId> encode(std::string_view text, TextPlace place = TextPlace::text) const;
  /// Ids of text written by a template: special added tokens are recognised too.
  std::vector<TokenId> encode_with_special(std::string_view text) const;

  /// Text cut at its special added tokens: a section is one token (`special` >= 0) or plain text between them.
  struct Section {
    TokenId special = -1;
    std::string text;
  };
  std::vector<Section> split_special(std::string_view text) const;

  /// The id of a token by its exact written form: added tokens first, then the vocabulary.
  std::optional<TokenId> id_of(std::string_view token) const;
  /// The text of `ids`; always valid UTF-8 (broken sequences become U+FFFD). Ids without a token are left out. A space
  /// that `encode` at this place would have written of its own is taken away.
  std::string decode(std::span<const TokenId> ids, bool skip_special = true, TextPlace place = TextPlace::text) const;
  /// Bytes of one token (for streaming output); empty for ids without a token.
  std::string bytes_of(TokenId id) const;
  bool is_special(TokenId id) const;

  /// Highest id + 1: the least number of embedding rows.
  std::int32_t vocab_size() const;
  /// BOS and EOS as `tokenizer_config.json` names them, else as a SentencePiece model does; empty where neither does.
  const std::string& bos_token() const;
  const std::string& eos_token() const;
  /// Hash of everything that changes ids (part of the index key).
  std::uint64_t hash() const;

  struct Impl;  ///< of core/data alone (tokenizer_impl.h)

 private:
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace mmt::data
