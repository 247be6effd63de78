// SentencePiece models: what lies beside them, and that damaged ones are refused before the library sees them.
#include "core/data/text/sentencepiece_file.h"

#include <catch2/catch.hpp>
#include <random>

#include "core/error.h"
#include "tests/data/text_support.h"

using namespace mmt;
using namespace mmt::data;

namespace {

const std::string kPieceFolder = std::string(MMT_TEST_DATA) + "/tokenizer/";

/// A protocol buffer by hand.
struct Wire {
  std::string bytes;
  Wire& number(int field, std::uint64_t value) {
    varint(static_cast<std::uint64_t>(field) << 3);
    varint(value);
    return *this;
  }
  Wire& text(int field, const std::string& value) {
    varint(static_cast<std::uint64_t>(field) << 3 | 2);
    varint(value.size());
    bytes += value;
    return *this;
  }
  Wire& real(int field, std::uint32_t bits) {
    varint(static_cast<std::uint64_t>(field) << 3 | 5);
    for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(bits >> (8 * i)));
    return *this;
  }

 private:
  void varint(std::uint64_t value) {
    for (; value > 0x7f; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
    bytes.push_back(static_cast<char>(value));
  }
};

std::string piece(const std::string& text, std::uint64_t kind = 1, std::uint32_t score = 0) {
  return Wire().text(1, text).real(2, score).number(3, kind).bytes;
}

/// <unk>, <s>, </s> and these pieces, unigram, nothing normalised.
std::string model_of(const std::vector<std::string>& pieces, const std::string& trainer = Wire().number(3, 1).bytes,
                     const std::string& normalizer = Wire().number(4, 0).bytes) {
  Wire w;
  w.text(1, piece("<unk>", 2)).text(1, piece("<s>", 3)).text(1, piece("</s>", 3));
  for (const std::string& p : pieces) w.text(1, p);
  return w.text(2, trainer).text(3, normalizer).bytes;
}

Tokenizer load_model(const TempFolder& folder, const std::string& bytes) {
  folder.write("tokenizer.model", bytes);
  return Tokenizer::load(folder.path());
}

}  // namespace

TEST_CASE("added tokens and BOS come from the files beside a SentencePiece model") {
  const TempFolder folder;
  const std::string model = model_of({piece("\xe2\x96\x81"), piece("a"), piece("b")});
  const std::vector<TokenId> space_a = {3, 4};
  CHECK(load_model(folder, model).encode("a") == space_a);
  CHECK(load_model(folder, model).eos_token() == "</s>");
  CHECK(load_model(folder, model).is_special(0));
  const auto before = load_model(folder, model).hash();
  folder.write("added_tokens.json", R"({"<image>": 7, "<x>": 6})");
  CHECK(load_model(folder, model).hash() != before);
  CHECK_FALSE(load_model(folder, model).is_special(7));
  CHECK(load_model(folder, model).encode("<x>a") == std::vector<TokenId>{6, 3, 4});  // not special: recognised in data
  CHECK(load_model(folder, model).vocab_size() == 8);
  folder.write("special_tokens_map.json", R"({"additional_special_tokens": ["<image>"]})");
  const auto legacy = load_model(folder, model).hash();
  CHECK(load_model(folder, model).is_special(7));
  CHECK(load_model(folder, model).encode_with_special("a<image>a") == std::vector<TokenId>{3, 4, 7, 3, 4});
  folder.write("tokenizer_config.json", R"({"legacy": false, "eos_token": {"content": "<x>"}})");
  CHECK(load_model(folder, model).encode_with_special("a<image>a") == std::vector<TokenId>{3, 4, 7, 4});
  CHECK(load_model(folder, model).eos_token() == "<x>");
  CHECK(load_model(folder, model).hash() != legacy);
  CHECK(load_model(folder, model).is_special(6));  // it is the EOS
  folder.write("tokenizer_config.json",
               R"({"added_tokens_decoder": {"7": {"content": "<image>", "special": true, "rstrip": true}}})");
  CHECK(load_model(folder, model).encode_with_special("<image>  a") == std::vector<TokenId>{7, 3, 4});
  CHECK(load_model(folder, model).decode(std::vector<TokenId>{1, 3, 4, 7}, false) == "<s> a<image>");
  CHECK(load_model(folder, model).decode(std::vector<TokenId>{1, 3, 4, 7}) == "a");
}

TEST_CASE("mistakes in the files beside a SentencePiece model name file and token") {
  const TempFolder folder;
  const std::string model = model_of({piece("\xe2\x96\x81"), piece("a")});
  const auto fails = [&](const std::string& file, const std::string& content, const std::string& expected) {
    folder.write(file, content);
    CHECK_THROWS_WITH(load_model(folder, model), Catch::Contains(file) && Catch::Contains(expected));
    CHECK_THROWS_AS(load_model(folder, model), ConfigError);
    folder.write(file, "{}");
  };
  fails("added_tokens.json", "[1]", "{token: id}");
  fails("added_tokens.json", R"({"<x>": 3})", "id 3 is another token's");
  fails("added_tokens.json", R"({"<x>": 100000000})", "is not in [0");
  fails("added_tokens.json", R"({"<x>": "y"})", "integer id");
  fails("added_tokens.json", R"({"a": 7})", "in the vocabulary 4");
  fails("tokenizer_config.json", R"({"added_tokens_decoder": [1]})", "added_tokens_decoder");
  fails("tokenizer_config.json", R"({"added_tokens_decoder": {"x": {"content": "<x>"}}})", "no id");
  fails("tokenizer_config.json", R"({"added_tokens_decoder": {"7": {}}})", "content");
  fails("tokenizer_config.json", R"({"legacy": 1})", "legacy");
  fails("tokenizer_config.json", "{", "tokenizer_config.json:1:");
  const TempFolder empty;
  CHECK_THROWS_WITH(Tokenizer::load(empty.path()), Catch::Contains("neither tokenizer.json nor tokenizer.model"));
}

TEST_CASE("damaged and unsupported SentencePiece models say what is wrong") {
  const auto fails = [](const std::string& bytes, const std::string& expected) {
    INFO(expected);
    CHECK_THROWS_WITH(SentencePieceFile::parse(bytes, "x.model"),
                      Catch::Contains("x.model") && Catch::Contains(expected));
    CHECK_THROWS_AS(SentencePieceFile::parse(bytes, "x.model"), ConfigError);
  };
  CHECK(SentencePieceFile::parse(model_of({piece("a")}), "x.model").pieces.size() == 4);
  fails("", "no pieces");
  fails("IQ== 0\nIg== 1\n", "tiktoken");
  fails(model_of({piece("a"), piece("a")}), "piece 4 \"a\" is there twice");
  fails(model_of({piece("")}), "no text of UTF-8");
  fails(model_of({piece("\xff")}), "no text of UTF-8");
  fails(model_of({piece(std::string("a\0b", 3))}), "no text of UTF-8");
  fails(model_of({piece("a", 1, 0x7fc00000)}), "not finite");
  fails(model_of({piece("a", 9)}), "type 9");
  fails(model_of({piece("x", 2)}), "2 unknown tokens");
  fails(model_of({piece("<0x0g>", 6)}), "is no byte");
  fails(model_of({piece("<0x00>", 6)}), "1 byte pieces");
  fails(model_of({piece("a")}, Wire().number(3, 1).number(35, 1).bytes), "0 byte pieces");
  fails(model_of({piece("a")}, Wire().number(3, 3).bytes), "whole words");
  fails(model_of({piece("a")}, Wire().number(3, 7).bytes), "model_type is 7");
  fails(model_of({piece("a")}, Wire().number(24, 1).bytes), "treat_whitespace_as_suffix");
  fails(model_of({piece("a")}, "", Wire().text(2, "rules").bytes), "precompiled_charsmap");
  fails(model_of({piece("a")}, "", Wire().number(5, 0).bytes), "escape_whitespaces");
  fails(Wire().number(1, 3).bytes, "wire type");
  fails(model_of({}) + "\x0a\x7f", "cut short");
  fails(model_of({}) + std::string(12, '\x80'), "more than 64 bits");
  std::vector<std::string> nest;
  for (std::size_t n = 1; n <= 70; ++n) nest.push_back(piece(std::string(n, 'a'), 4));
  fails(model_of(nest), "nest of more than");
}

TEST_CASE("a model that trims keeps the space before a word that goes on") {
  const TempFolder folder;
  const std::vector<std::string> pieces = {piece("\xe2\x96\x81"), piece("a"), piece("b")};
  const Tokenizer tokenizer =
      load_model(folder, model_of(pieces, Wire().number(3, 1).bytes, Wire().number(4, 1).bytes));
  CHECK(tokenizer.encode("  a   b ") == std::vector<TokenId>{3, 4, 3, 5});
  CHECK(tokenizer.encode(" b", TextPlace::inside) == std::vector<TokenId>{3, 5});
  CHECK(tokenizer.encode("b", TextPlace::inside) == std::vector<TokenId>{5});
}

TEST_CASE("fuzz: mutated SentencePiece models only give config errors") {
  const TempFolder folder;
  const std::string good = read_whole(kPieceFolder + "unigram/tokenizer.model");
  REQUIRE(good.size() > 1000);
  std::mt19937 rng(13);
  int parsed = 0, refused = 0;
  const int rounds = fuzz_rounds(150);
  for (int round = 0; round < rounds; ++round) {
    std::string bad = good;
    const std::size_t first = round % 2 == 0 ? bad.size() - 200 : 0;  // half of them in the settings at the end
    for (std::size_t n = 1 + rng() % 3; n > 0; --n) {
      const std::size_t at = std::min(first + rng() % (good.size() - first), bad.size() - 1);
      switch (rng() % 4) {
        case 0: bad[at] = static_cast<char>(rng()); break;
        case 1: bad.erase(at, 1 + rng() % 9); break;
        case 2: bad.insert(at, std::string(1 + rng() % 3, static_cast<char>(rng()))); break;
        default: bad[at] = static_cast<char>(bad[at] ^ (1 << rng() % 8)); break;
      }
    }
    try {
      const Tokenizer tokenizer = load_model(folder, bad);
      ++parsed;
      tokenizer.decode(tokenizer.encode("Hello [INST] caf\xc3\xa9 \xff 123 \xe4\xbd\xa0"));
    } catch (const ConfigError&) {
      ++refused;
    } catch (const DataError&) {
    }
  }
  CHECK(parsed > 5);
  CHECK(refused > 20);
}
