// UTF-8 in small pieces: decoding one code point, replacing what is invalid, the byte alphabet of byte-level BPE.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace mmt::data {

/// Bytes of the well-formed code point at `text[at]` (1-4), or 0 when it is not well formed; sets `code`.
int decode_utf8(std::string_view text, std::size_t at, std::uint32_t& code);
void append_utf8(std::string& out, std::uint32_t code);
bool valid_utf8(std::string_view text);
/// Each maximal ill-formed subsequence becomes one U+FFFD (Unicode 15, section 3.9, as Python and Rust do).
std::string replace_invalid_utf8(std::string_view text);

/// \p{White_Space}; and what regular expressions call a word character (letters, marks, digits, connectors).
bool is_white_space(std::uint32_t code);
bool is_word_character(std::uint32_t code);

/// GPT-2's table: the printable code point that stands for each byte.
const std::array<std::uint32_t, 256>& byte_alphabet();
/// The bytes that a token of printable code points stands for; false when one of them is not in the alphabet.
bool from_byte_alphabet(std::string_view token, std::string& bytes);
/// SentencePiece's names of bytes: "<0x00>" ... "<0xFF>", in capitals; -1 for anything else.
int sentencepiece_byte(std::string_view token);

}  // namespace mmt::data
