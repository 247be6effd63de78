// Chat templates: from turns to ids and labels, piece by piece, with the role known for every piece. The text is never
// tokenised whole and searched for separators afterwards. Template text may hold special tokens; data text may not.
// Adjacent pieces of equal supervision are tokenised together, so ids equal those of the whole string there.
#pragma once

#include "core/data/record.h"
#include "core/data/tokenizer.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mmt::data {

inline constexpr std::int32_t kIgnoreLabel = -100;

/// What is written around a turn's text. `lead` joins the text (it is tokenised with it and, in an assistant turn,
/// supervised): " " after "ASSISTANT:" makes " word" one token, as models of that template have seen it.
struct TurnFormat {
  std::string prefix, lead, suffix;
};

/// What is written around a media slot and the token whose id stands at its rows. "{n}" is the item's number, from 1.
struct SlotFormat {
  std::string before, token, after;
};

/// "{bos}" and "{eos}" in any string stand for the tokenizer's own.
struct TemplateSpec {
  std::string name;
  std::string start;           ///< before everything ("{bos}" or "<|begin_of_text|>")
  std::string default_system;  ///< used when the first turn is not a system turn; empty: none
  TurnFormat system, user, assistant, tool;
  SlotFormat image, audio;
  bool media_first = false;  ///< LLaVA: the only slot of a turn moves to its front, followed by a line break
  bool user_text = true;     ///< false (plain): of user turns only the media count
};

/// vicuna_v1, llava_v1, plain, chatml, llama3. Throws ConfigError with the known names.
TemplateSpec named_template(std::string_view name);
std::vector<std::string> template_names();

/// Ids before media are expanded: one placeholder id per slot.
struct Dialogue {
  struct Slot {
    std::int32_t at = 0;     ///< index in ids
    std::int32_t media = 0;  ///< index in Record::media
  };
  std::vector<TokenId> ids;
  std::vector<std::int32_t> labels;  ///< aligned with ids: the id where supervised, else kIgnoreLabel
  std::vector<std::uint8_t> fixed;   ///< 1: a slot or its surroundings, which truncation must keep
  std::vector<Slot> slots;           ///< ascending `at`
};

class ChatTemplate {
 public:
  /// Resolves the special tokens. Throws ConfigError naming a token that the tokenizer lacks. Slot tokens are needed
  /// only for the modalities in use: a missing one is reported when the first such slot is built, or by `require`.
  ChatTemplate(TemplateSpec spec, const Tokenizer& tokenizer);

  const TemplateSpec& spec() const { return spec_; }
  /// The id at the rows of a media slot. Throws ConfigError when the tokenizer lacks the token.
  TokenId placeholder(Modality modality) const;
  /// The whole dialogue: assistant text and its end are supervised (unless Turn::loss is false). The label of row 0 is
  /// always kIgnoreLabel, since nothing predicts it. Throws DataError(bad_record) for roles out of order.
  Dialogue build(const Record& record, const std::string& where) const;
  /// The dialogue up to and including the prefix of the answer that is to be generated: trailing assistant turn left
  /// out.
  Dialogue prompt(const Record& record, const std::string& where) const;
  /// Decoding ends when the generated ids end with one of these sequences (the assistant's suffix; EOS).
  const std::vector<std::vector<TokenId>>& stops() const { return stops_; }
  /// The text of a generated answer: stops cut off, special tokens skipped, the template's `lead` removed.
  std::string answer(std::vector<TokenId> ids) const;
  std::uint64_t hash() const;

 private:
  struct Piece {  // template text, cut at its special tokens
    TokenId special = -1;
    std::string text;
  };
  using Pieces = std::vector<Piece>;
  struct Resolved {
    Pieces prefix, suffix;
    std::string lead;
  };
  class Builder;
  Pieces resolve(std::string text) const;
  Dialogue make(const Record& record, const std::string& where, bool for_answer) const;

  TemplateSpec spec_;
  const Tokenizer* tokenizer_;
  Pieces start_;
  Resolved roles_[4];
  std::vector<std::vector<TokenId>> stops_;
};

}  // namespace mmt::data
