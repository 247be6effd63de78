// Where a piece of text stands in what is tokenised.
#pragma once

#include <cstdint>

namespace mmt::data {

/// Some tokenizers write a space before a text (SentencePiece's dummy prefix, `Prepend`, `add_prefix_space`), by their
/// files' rules also behind added tokens. Text that is encoded in pieces says so, to get the ids of the whole.
enum class TextPlace : std::uint8_t {
  text,     ///< at the beginning
  section,  ///< behind an added token or a medium
  inside,   ///< behind other text: no space of the tokenizer's own
};

}  // namespace mmt::data
