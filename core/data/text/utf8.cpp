#include "core/data/text/utf8.h"

#include <utf8proc.h>

namespace mmt::data {
namespace {

std::uint8_t byte_at(std::string_view text, std::size_t i) {
  return i < text.size() ? static_cast<std::uint8_t>(text[i]) : std::uint8_t{0};
}

/// Length of the longest prefix of a code point at `at` that is well formed so far, and whether it is whole.
struct Scan {
  int length;
  bool whole;
};

Scan scan(std::string_view text, std::size_t at, std::uint32_t& code) {
  const std::uint8_t first = byte_at(text, at);
  code = first;
  if (first < 0x80) return {1, true};
  int need = 0;
  std::uint8_t low = 0x80, high = 0xBF;  // of the second byte: excludes overlong forms, surrogates, above U+10FFFF
  if (first >= 0xC2 && first <= 0xDF) {
    need = 1;
    code = first & 0x1F;
  } else if (first >= 0xE0 && first <= 0xEF) {
    need = 2;
    code = first & 0x0F;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
  } else if (first >= 0xF0 && first <= 0xF4) {
    need = 3;
    code = first & 0x07;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
  } else {
    return {1, false};
  }
  for (int i = 1; i <= need; ++i) {
    const std::uint8_t next = byte_at(text, at + static_cast<std::size_t>(i));
    if (at + static_cast<std::size_t>(i) >= text.size() || next < low || next > high) return {i, false};
    code = (code << 6) | (next & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {need + 1, true};
}

}  // namespace

int decode_utf8(std::string_view text, std::size_t at, std::uint32_t& code) {
  const Scan s = scan(text, at, code);
  return s.whole ? s.length : 0;
}

void append_utf8(std::string& out, std::uint32_t code) {
  const auto put = [&out](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

bool valid_utf8(std::string_view text) {
  std::uint32_t code = 0;
  for (std::size_t i = 0; i < text.size();) {
    if (static_cast<std::uint8_t>(text[i]) < 0x80) {
      ++i;
      continue;
    }
    const Scan s = scan(text, i, code);
    if (!s.whole) return false;
    i += static_cast<std::size_t>(s.length);
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::uint32_t code = 0;
  for (std::size_t i = 0; i < text.size();) {
    const Scan s = scan(text, i, code);
    if (s.whole) {
      out.append(text.substr(i, static_cast<std::size_t>(s.length)));
    } else {
      append_utf8(out, 0xFFFD);
    }
    i += static_cast<std::size_t>(s.length);
  }
  return out;
}

bool is_white_space(std::uint32_t code) {
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
         code == 0x3000;
}

bool is_word_character(std::uint32_t code) {
  if (code == 0x200C || code == 0x200D) return true;  // joiners (Unicode TR 18, annex C)
  // Symbols that are alphabetic: letters in circles and squares.
  if ((code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
      (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189)) {
    return true;
  }
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return false;
  }
}

const std::array<std::uint32_t, 256>& byte_alphabet() {
  static const std::array<std::uint32_t, 256> table = [] {
    std::array<std::uint32_t, 256> t{};
    std::uint32_t next = 256;
    for (std::uint32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      t[b] = printable ? b : next++;
    }
    return t;
  }();
  return table;
}

bool from_byte_alphabet(std::string_view token, std::string& bytes) {
  static const std::array<std::int16_t, 512> back = [] {
    std::array<std::int16_t, 512> t{};
    t.fill(-1);
    for (int b = 0; b < 256; ++b) t[byte_alphabet()[static_cast<std::size_t>(b)]] = static_cast<std::int16_t>(b);
    return t;
  }();
  bytes.clear();
  std::uint32_t code = 0;
  for (std::size_t i = 0; i < token.size();) {
    const int n = decode_utf8(token, i, code);
    if (n == 0 || code >= back.size() || back[code] < 0) return false;
    bytes.push_back(static_cast<char>(back[code]));
    i += static_cast<std::size_t>(n);
  }
  return true;
}

int sentencepiece_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return -1;
  constexpr std::string_view digits = "0123456789ABCDEF";
  const std::size_t high = digits.find(token[3]), low = digits.find(token[4]);
  if (high == std::string_view::npos || low == std::string_view::npos) return -1;
  return static_cast<int>(high * 16 + low);
}

}  // namespace mmt::data
