// Chat templates: from turns to ids and labels, piece by piece, with the role known for every piece. The text is never
// tokenised whole and searched for separators afterwards. Template text may hold special tokens; data text may not.
// Adjacent pieces of equal supervision are tokenised together, so ids equal those of the whole string there.
#pragma once

#include "core/data/records/record.h"
#include "core/data/text/tokenizer.h"

#include <array>
#include <cstdint>
#include <span>
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

/// What is written around a media slot and the token whose id stands at its rows. "{n}" in `before` is the number of
/// the slot among those of its modality, from 1.
struct SlotFormat {
  std::string before, token, after;
};

/// "{bos}" and "{eos}" in any string stand for the tokenizer's own. The text begins behind a "{bos}" at the very front
/// of `start` (where the tokenizer writes a space before texts, it stands there); behind a BOS that is written out it
/// goes on.
struct TemplateSpec {
  std::string name;
  std::string start;           ///< before everything ("{bos}" or "<|begin_of_text|>")
  std::string default_system;  ///< used when the first turn is not a system turn; empty: none
  TurnFormat system, user, assistant, tool;
  SlotFormat image, audio, video;
  bool media_first = false;  ///< LLaVA: the only slot of a turn moves to its front, followed by a line break
  bool user_text = true;     ///< false (plain): of system and user turns only the media count
  bool trim = false;         ///< white space around a turn's text is cut off (llama3)
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
  /// The id at the rows of a media slot; -1 (no token) where the tokenizer lacks it.
  TokenId placeholder(Modality modality) const { return slot(modality).token; }
  /// Throws ConfigError when what surrounds such a slot names special tokens that the tokenizer lacks.
  void require(Modality modality) const;
  /// The whole dialogue: assistant text and its end are supervised (unless Turn::loss is false). The label of row 0 is
  /// always kIgnoreLabel, since nothing predicts it. Throws DataError(bad_record) for roles out of order.
  Dialogue build(const Record& record, const std::string& where) const;
  /// The dialogue up to and including the prefix of the answer that is to be generated: trailing assistant turn left
  /// out.
  Dialogue prompt(const Record& record, const std::string& where) const;
  /// Decoding ends when the generated ids end with one of these sequences (the assistant's suffix; EOS).
  const std::vector<std::vector<TokenId>>& stops() const { return stops_; }
  /// The text of a generated answer: stops cut off, special tokens skipped, the template's `lead` removed.
  std::string answer(std::span<const TokenId> ids) const;
  std::uint64_t hash() const;

 private:
  using Sections = std::vector<Tokenizer::Section>;
  struct Format {
    Sections prefix, suffix;
    std::string lead;
  };
  struct Slot {
    std::string before;  // holds {n}, so it is cut when it is used
    Sections after;
    TokenId token = -1;
    std::string problem;  // why such a slot cannot be written, or empty
  };
  class Builder;
  Sections resolve(const std::string& text) const;
  Slot resolve(const SlotFormat& format) const;
  const Slot& slot(Modality modality) const { return slots_[static_cast<std::size_t>(modality)]; }
  void write(Builder& builder, const Record& record, std::size_t num_turns, const std::string& where) const;

  TemplateSpec spec_;
  const Tokenizer* tokenizer_;
  std::string bos_, eos_;
  Sections start_;
  bool begins_with_bos_ = false;                 // "{bos}", as if the text began behind it
  TextPlace answer_place_ = TextPlace::section;  // of a generated answer
  std::array<Format, 4> formats_;                // by Role
  std::array<Slot, kNumModalities> slots_;       // by Modality
  std::vector<std::vector<TokenId>> stops_;
};

}  // namespace mmt::data
