#include "core/data/text/sentencepiece_file.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <unordered_set>

#include "core/data/text/utf8.h"
#include "core/error.h"

namespace mmt::data {
namespace {

constexpr std::size_t kMaxPieces = std::size_t{1} << 22;
constexpr std::size_t kMaxPieceBytes = 4096;
/// User-defined pieces that are beginnings of one another: the library looks for them in a list of 64.
constexpr int kMaxNested = 60;

[[noreturn]] void damaged(const std::string& name, const std::string& what) {
  throw ConfigError(fmt::format("{}: not a sound SentencePiece model: {}", name, what));
}

[[noreturn]] void lacks_support(const std::string& name, const std::string& what) {
  throw ConfigError(fmt::format("{}: {} is not supported; a tokenizer.json of the same model may be", name, what));
}

/// The fields of one message, in order.
class WireReader {
 public:
  WireReader(std::string_view bytes, const std::string& name) : rest_(bytes), name_(&name) {}

  struct Field {
    std::uint64_t number = 0;
    int type = 0;
    std::uint64_t value = 0;  // types 0 and 5
    std::string_view bytes;   // type 2
    std::string_view whole;   // tag included
  };
  bool next(Field& field) {
    if (rest_.empty()) return false;
    const std::string_view before = rest_;
    const std::uint64_t tag = varint();
    field = {};
    field.number = tag >> 3;
    field.type = static_cast<int>(tag & 7);
    if (field.number == 0) damaged(*name_, "a field without number");
    switch (field.type) {
      case 0: field.value = varint(); break;
      case 1: take(8); break;
      case 2: field.bytes = take(varint()); break;
      case 5: {
        const std::string_view four = take(4);
        for (std::size_t i = 4; i > 0; --i) field.value = field.value << 8 | static_cast<std::uint8_t>(four[i - 1]);
        break;
      }
      default: damaged(*name_, fmt::format("a field of wire type {}", field.type));
    }
    field.whole = before.substr(0, before.size() - rest_.size());
    return true;
  }

 private:
  std::string_view take(std::uint64_t count) {
    if (count > rest_.size()) damaged(*name_, "it is cut short");
    const std::string_view taken = rest_.substr(0, static_cast<std::size_t>(count));
    rest_.remove_prefix(taken.size());
    return taken;
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<std::uint8_t>(take(1)[0]);
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    damaged(*name_, "a number of more than 64 bits");
  }
  std::string_view rest_;
  const std::string* name_;
};

using Field = WireReader::Field;

void need(const Field& field, int type, const std::string& name, const char* what) {
  if (field.type != type) damaged(name, fmt::format("{} has wire type {} instead of {}", what, field.type, type));
}

SentencePieceFile::Piece read_piece(std::string_view bytes, std::size_t id, const std::string& name) {
  SentencePieceFile::Piece piece;
  WireReader reader(bytes, name);
  for (Field f; reader.next(f);) {
    if (f.number == 1) {
      need(f, 2, name, "a piece's text");
      piece.text = f.bytes;
    } else if (f.number == 2) {
      need(f, 5, name, "a piece's score");
      if (!std::isfinite(std::bit_cast<float>(static_cast<std::uint32_t>(f.value)))) {
        damaged(name, fmt::format("the score of piece {} is not finite", id));
      }
    } else if (f.number == 3) {
      need(f, 0, name, "a piece's type");
      if (f.value < 1 || f.value > 6) damaged(name, fmt::format("piece {} has type {}", id, f.value));
      piece.kind = static_cast<SentencePieceFile::Kind>(f.value);
    }
  }
  if (piece.text.empty() || piece.text.size() > kMaxPieceBytes || piece.text.find('\0') != std::string::npos ||
      !valid_utf8(piece.text)) {
    damaged(name, fmt::format("piece {} ({} bytes) is no text of UTF-8", id, piece.text.size()));
  }
  return piece;
}

/// Returns whether bytes stand for characters that no piece holds.
bool read_trainer(std::string_view bytes, const std::string& name) {
  bool byte_fallback = false;
  WireReader reader(bytes, name);
  for (Field f; reader.next(f);) {
    if (f.number == 3) {
      need(f, 0, name, "trainer_spec.model_type");
      if (f.value < 1 || f.value > 4) damaged(name, fmt::format("trainer_spec.model_type is {}", f.value));
      if (f.value > 2) lacks_support(name, "a model of whole words or single characters");
    } else if (f.number == 24 && f.value != 0) {
      lacks_support(name, "treat_whitespace_as_suffix");
    } else if (f.number == 35) {
      byte_fallback = f.value != 0;
    }
  }
  return byte_fallback;
}

void read_normalizer(std::string_view bytes, SentencePieceFile& file, const std::string& name) {
  WireReader reader(bytes, name);
  for (Field f; reader.next(f);) {
    if (f.number == 2) {
      need(f, 2, name, "normalizer_spec.precompiled_charsmap");
      if (!f.bytes.empty())
        lacks_support(name, "a table of normalisation rules (normalizer_spec.precompiled_charsmap)");
    } else if (f.number >= 3 && f.number <= 5) {
      need(f, 0, name, "a flag of normalizer_spec");
      if (f.number == 3) file.dummy_prefix = f.value != 0;
      if (f.number == 4) file.trims = f.value != 0;
      if (f.number == 5 && f.value == 0) lacks_support(name, "escape_whitespaces: false");
    }
  }
}

void check_pieces(const SentencePieceFile& file, bool byte_fallback, const std::string& name) {
  using Kind = SentencePieceFile::Kind;
  std::unordered_set<std::string_view> seen, user_defined;
  int unknown = 0, bytes = 0;
  for (std::size_t id = 0; id < file.pieces.size(); ++id) {
    const auto& piece = file.pieces[id];
    if (!seen.insert(piece.text).second) damaged(name, fmt::format("piece {} {:?} is there twice", id, piece.text));
    unknown += piece.kind == Kind::unknown;
    if (piece.kind == Kind::user_defined) user_defined.insert(piece.text);
    if (piece.kind == Kind::byte) {
      if (sentencepiece_byte(piece.text) < 0) {
        damaged(name, fmt::format("piece {} {:?} is no byte (\"<0x00>\" ... \"<0xFF>\")", id, piece.text));
      }
      ++bytes;
    }
  }
  if (unknown != 1) damaged(name, fmt::format("{} unknown tokens instead of one", unknown));
  if (byte_fallback != (bytes > 0) || (byte_fallback && bytes != 256)) {
    damaged(name, fmt::format("{} byte pieces, byte_fallback is {}", bytes, byte_fallback));
  }
  for (const std::string_view text : user_defined) {
    int nested = 0;
    for (std::size_t n = 1; n < text.size(); ++n) nested += user_defined.contains(text.substr(0, n)) ? 1 : 0;
    if (nested > kMaxNested) {
      lacks_support(
          name, fmt::format("a nest of more than {} user-defined pieces, each the beginning of the next", kMaxNested));
    }
  }
}

}  // namespace

SentencePieceFile SentencePieceFile::parse(std::string_view bytes, const std::string& name) {
  // "IQ== 0": a token in base64 and its rank.
  if (const std::size_t end = bytes.substr(0, 64).find(" 0\n"); end != std::string_view::npos && end % 4 == 0) {
    lacks_support(name, "a tiktoken vocabulary");
  }
  SentencePieceFile file;
  bool byte_fallback = false;
  WireReader reader(bytes, name);
  for (Field f; reader.next(f);) {
    if (f.number >= 1 && f.number <= 5) need(f, 2, name, "a part of the model");
    if (f.number == 1) {
      if (file.pieces.size() == kMaxPieces) damaged(name, fmt::format("more than {} pieces", kMaxPieces));
      file.pieces.push_back(read_piece(f.bytes, file.pieces.size(), name));
    } else if (f.number == 2) {
      byte_fallback = read_trainer(f.bytes, name) || byte_fallback;
    } else if (f.number == 3) {
      read_normalizer(f.bytes, file, name);
    } else {
      continue;  // the model's own tests and rules for decoding are not used
    }
    file.bytes += f.whole;
  }
  if (file.pieces.empty()) damaged(name, "it has no pieces");
  check_pieces(file, byte_fallback, name);
  return file;
}

}  // namespace mmt::data
