// A SentencePiece `tokenizer.model` (a protocol buffer) read and checked before the library sees it: the library trusts
// its input.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mmt::data {

struct SentencePieceFile {
  enum class Kind : std::uint8_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  struct Piece {
    std::string text;
    Kind kind = Kind::normal;
  };
  std::vector<Piece> pieces;  ///< by id
  bool dummy_prefix = true;   ///< a space is written before a text
  bool trims = true;          ///< white space at the ends is cut off, inside it becomes one space
  std::string bytes;          ///< the file without its own tests

  /// Throws ConfigError naming `name`: damaged, not a SentencePiece model, or with parts that are not supported.
  static SentencePieceFile parse(std::string_view bytes, const std::string& name);
};

}  // namespace mmt::data
