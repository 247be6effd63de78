// The tokenizer against the `tokenizers` and `sentencepiece` packages (goldens made by
// scripts/reference/tokenizer_cases.py), its limits, and what it refuses.
#include "core/data/text/tokenizer.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "core/data/text/bpe.h"
#include "core/data/text/utf8.h"
#include "core/error.h"
#include "tests/data/text_support.h"

using namespace mmt;
using namespace mmt::data;
using nlohmann::json;

namespace {

const std::string kFolder = std::string(MMT_TEST_DATA) + "/tokenizer/";

json read_json(const std::string& path) {
  std::ifstream in(path);
  REQUIRE(in.good());
  return json::parse(in);
}

std::string from_hex(const std::string& hex) {
  std::string out;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    out.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return out;
}

/// A vocabulary of the 256 bytes and nothing else, to be changed by a test.
json byte_tokenizer() {
  json vocab = json::object();
  for (std::size_t b = 0; b < 256; ++b) {
    std::string token;
    append_utf8(token, byte_alphabet()[b]);
    vocab[token] = b;
  }
  return {{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"normalizer", nullptr},
          {"added_tokens", json::array()}};
}

/// A file beside its cases, or a folder of its name.
std::string fixture_of(const std::string& kind) {
  const std::string file = kFolder + kind + ".json";
  return std::filesystem::exists(file) ? file : kFolder + kind;
}

const std::vector<std::string>& texts() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> found;
    std::ifstream in(kFolder + "texts.jsonl");
    for (std::string line; std::getline(in, line);) found.push_back(json::parse(line).get<std::string>());
    return found;
  }();
  return all;
}

std::string checksum(const std::vector<TokenId>& ids) {
  std::uint64_t value = 0xcbf29ce484222325;
  for (const TokenId id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      value = (value ^ ((static_cast<std::uint32_t>(id) >> shift) & 0xff)) * 0x100000001b3;
    }
  }
  char text[9];
  std::snprintf(text, sizeof text, "%08x", static_cast<unsigned>(value & 0xffffffff));
  return text;
}

/// How many of the texts have other ids than the package's; the first of them is reported.
int wrong_texts(const Tokenizer& tokenizer, const std::string& sums, std::string* first = nullptr) {
  std::ifstream in(kFolder + sums + ".sums");
  int wrong = 0;
  std::size_t number = 0;
  for (std::string line; std::getline(in, line); ++number) {
    REQUIRE(number < texts().size());
    const std::string& text = texts()[number];
    std::string found = checksum(tokenizer.encode(text));
    if (const std::string special = checksum(tokenizer.encode_with_special(text)); special != found)
      found += " " + special;
    if (found == line) continue;
    if (wrong++ == 0 && first != nullptr) *first = sums + ": " + json(text).dump(-1, ' ', true);
  }
  REQUIRE(number == texts().size());
  return wrong;
}

/// U+2581 is how a space is written in a vocabulary, so it comes back as one.
std::string with_plain_spaces(std::string text) {
  for (std::size_t at = 0; (at = text.find("\xe2\x96\x81", at)) != std::string::npos;) text.replace(at, 3, " ");
  return text;
}

Tokenizer made(const json& file) { return Tokenizer::parse(file.dump(), "test.json"); }

}  // namespace

TEST_CASE("tokenizer gives the ids of the tokenizers package") {
  const std::string kind = GENERATE("gpt2", "llama3", "qwen2", "llama2", "mistral", "gemma");
  const Tokenizer tokenizer = Tokenizer::load(fixture_of(kind));
  const json cases = read_json(kFolder + kind + "_cases.json");
  REQUIRE(cases.size() > 70);
  int special_differs = 0;
  for (const json& c : cases) {
    const std::string text = from_hex(c["hex"]);
    INFO(kind << ": " << c["hex"]);
    const auto ids = tokenizer.encode(text);
    CHECK(ids == c["ids"].get<std::vector<TokenId>>());
    CHECK(tokenizer.encode_with_special(text) == c.value("special_ids", c["ids"]).get<std::vector<TokenId>>());
    CHECK(tokenizer.decode(ids, false) == c["decoded"].get<std::string>());
    special_differs += c.contains("special_ids");
  }
  CHECK(special_differs > 3);  // the goldens do tell the two modes apart
}

TEST_CASE("ids of 2,200 texts in many scripts are the packages'") {
  REQUIRE(texts().size() == 2200);
  const auto [name, sums] = GENERATE(table<std::string, std::string>({{"gpt2.json", "gpt2"},
                                                                      {"llama3.json", "llama3"},
                                                                      {"qwen2.json", "qwen2"},
                                                                      {"llama2", "llama2"},
                                                                      {"mistral", "mistral"},
                                                                      {"gemma", "gemma"},
                                                                      {"llama2/tokenizer.model", "llama2_model"},
                                                                      {"unigram", "unigram"}}));
  const Tokenizer tokenizer = Tokenizer::load(kFolder + name);
  std::string first;
  CHECK(wrong_texts(tokenizer, sums, &first) == 0);
  CHECK(first == "");
}

TEST_CASE("the texts tell every rule of the files from its absence") {
  const auto change = [](const std::string& kind, auto&& edit) {
    json file =
        read_json(fixture_of(kind) + (std::filesystem::is_directory(fixture_of(kind)) ? "/tokenizer.json" : ""));
    edit(file);
    return wrong_texts(made(file), kind);
  };
  CHECK(change("llama3", [](json&) {}) == 0);
  CHECK(change("llama3", [](json& f) { f["model"]["ignore_merges"] = false; }) > 3);
  CHECK(change("qwen2", [](json& f) { f["normalizer"] = nullptr; }) > 20);
  CHECK(change("qwen2", [](json& f) { f["pre_tokenizer"]["pretokenizers"].erase(0); }) > 20);
  CHECK(change("llama2", [](json& f) { f["normalizer"]["normalizers"].erase(0); }) > 1000);
  CHECK(change("llama2", [](json& f) { f["model"]["byte_fallback"] = false; }) > 500);
  CHECK(change("llama2", [](json& f) { f["added_tokens"].erase(f["added_tokens"].size() - 2); }) > 5);
  CHECK(change("mistral", [](json& f) { f["pre_tokenizer"]["prepend_scheme"] = "always"; }) > 30);
  CHECK(change("mistral", [](json& f) { f["pre_tokenizer"]["prepend_scheme"] = "never"; }) > 1000);
  CHECK(change("gemma", [](json& f) { f["model"]["merges"].erase(0); }) > 100);
}

TEST_CASE("a folder with both kinds of files gives the same ids by either") {
  const Tokenizer json_file = Tokenizer::load(kFolder + "llama2"),
                  model = Tokenizer::load(kFolder + "llama2/tokenizer.model");
  CHECK(Tokenizer::file_of(kFolder + "llama2").filename() == "tokenizer.json");
  for (const std::string& text : texts()) {
    for (const TextPlace place : {TextPlace::text, TextPlace::section, TextPlace::inside}) {
      const auto ids = json_file.encode(text, place);
      if (ids != model.encode(text, place)) FAIL(json(text).dump() << " at place " << static_cast<int>(place));
      if (json_file.decode(ids, true, place) != model.decode(ids, true, place)) FAIL("decoded: " << json(text).dump());
      const bool added = text.find("<think>") != std::string::npos || text.find("wordy") != std::string::npos;
      if (added) continue;  // what follows them has a space of its own
      if (json_file.decode(ids, false, place) != with_plain_spaces(text))
        FAIL("comes back otherwise: " << json(text).dump());
    }
  }
  CHECK(json_file.vocab_size() == model.vocab_size());
  for (TokenId id = 0; id < model.vocab_size(); ++id) {
    CHECK(json_file.is_special(id) == model.is_special(id));
    CHECK(json_file.bytes_of(id) == model.bytes_of(id));
  }
  CHECK(model.bos_token() == "<s>");
  CHECK(json_file.id_of("<image>") == model.id_of("<image>"));
}

TEST_CASE("text in pieces has the ids of the whole") {
  // Cut where a word begins, no token reaches across; the prefix of the beginning is not repeated.
  const std::string name = GENERATE("llama2", "mistral", "gemma", "llama2/tokenizer.model", "unigram");
  const Tokenizer tokenizer = Tokenizer::load(kFolder + name);
  const std::string text = "USER: what is this? ASSISTANT: an ankle boot, born free";
  const auto whole = tokenizer.encode(text);
  for (std::size_t cut = text.find(' '); cut != std::string::npos; cut = text.find(' ', cut + 1)) {
    std::vector<TokenId> ids;
    tokenizer.encode(text.substr(0, cut), ids);
    tokenizer.encode(text.substr(cut), ids, TextPlace::inside);
    // Gemma's words end with their space.
    if (name != "gemma") CHECK(ids == whole);
    CHECK(tokenizer.decode(ids) == text);
  }
  CHECK(tokenizer.decode(tokenizer.encode(" x", TextPlace::inside), true, TextPlace::inside) == " x");
}

TEST_CASE("special tokens in data text are plain text") {
  const Tokenizer tokenizer = Tokenizer::load(kFolder + "llama3.json");
  const TokenId image = tokenizer.id_of("<image>").value();
  const auto ids = tokenizer.encode("{type<image>|bold}");
  CHECK(std::find(ids.begin(), ids.end(), image) == ids.end());
  const auto with = tokenizer.encode_with_special("{type<image>|bold}");
  CHECK(std::count(with.begin(), with.end(), image) == 1);
  CHECK(tokenizer.decode(with) == "{type|bold}");
  CHECK(tokenizer.decode(with, false) == "{type<image>|bold}");
  CHECK(tokenizer.is_special(image));
  CHECK_FALSE(tokenizer.is_special(tokenizer.id_of("<think>").value()));
  CHECK_FALSE(tokenizer.id_of("<nonsense>").has_value());
}

TEST_CASE("merges as pairs and as strings are the same tokenizer") {
  json file = byte_tokenizer();
  file["model"]["vocab"]["ab"] = 256;
  file["model"]["vocab"]["abc"] = 257;
  file["model"]["merges"] = json::array({"a b", "ab c"});
  const Tokenizer strings = made(file);
  file["model"]["merges"] = json::array({json::array({"a", "b"}), json::array({"ab", "c"})});
  const Tokenizer pairs = made(file);
  CHECK(strings.encode("abcab") == std::vector<TokenId>{257, 256});
  CHECK(pairs.encode("abcab") == strings.encode("abcab"));
  CHECK(pairs.vocab_size() == 258);
}

TEST_CASE("ignore_merges takes whole words from the vocabulary") {
  json file = byte_tokenizer();
  file["model"]["vocab"]["xyz"] = 300;
  CHECK(made(file).encode("xyz").size() == 3);
  file["model"]["ignore_merges"] = true;
  CHECK(made(file).encode("xyz") == std::vector<TokenId>{300});
  CHECK(made(file).vocab_size() == 301);
}

TEST_CASE("add_prefix_space and unknown bytes follow the file") {
  json file = byte_tokenizer();
  file["pre_tokenizer"]["add_prefix_space"] = true;
  CHECK(made(file).encode("a") == made(file).encode(" a"));
  file = byte_tokenizer();
  file["model"]["vocab"].erase("z");
  CHECK_THROWS_WITH(made(file), Catch::Contains("byte 0x7a") && Catch::Contains("test.json: model.vocab"));
  file["model"]["unk_token"] = "a";
  CHECK(made(file).encode("zzb") == std::vector<TokenId>{97, 97, 98});
  file["model"]["fuse_unk"] = true;
  CHECK(made(file).encode("zzb") == std::vector<TokenId>{97, 98});
}

TEST_CASE("a word of a megabyte is merged in well under the time of a quadratic merge") {
  json file = byte_tokenizer();
  std::string token = "a";
  json merges = json::array();
  int id = 256;
  while (token.size() < 64) {
    merges.push_back(json::array({token, token}));
    token += token;
    file["model"]["vocab"][token] = id++;
  }
  file["model"]["merges"] = merges;
  const Tokenizer tokenizer = made(file);
  const std::string word(std::size_t{1} << 20, 'a');
  const auto start = std::chrono::steady_clock::now();
  const auto ids = tokenizer.encode(word);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  CHECK(ids.size() == word.size() / 64);
  CHECK(std::all_of(ids.begin(), ids.end(), [&](TokenId t) { return t == id - 1; }));
  CHECK(seconds < 100);  // quadratic: about 10^12 steps, a quarter of an hour; thread sanitizer on a busy machine: 11 s
  for (const std::string& text : {std::string(std::size_t{1} << 20, ' '), std::string(std::size_t{1} << 20, '\n'),
                                  std::string(std::size_t{1} << 20, ' ') + "x"}) {
    CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
  }
}

TEST_CASE("short and long merging agree with the plain definition") {
  // Random merges over three letters; the oracle merges one lowest-ranked leftmost pair at a time.
  std::mt19937 rng(5);
  Bpe bpe;
  bpe.byte_ids.fill(Bpe::kNone);
  std::vector<std::string> tokens = {"a", "b", "c"};
  for (int i = 0; i < 3; ++i) bpe.byte_ids[static_cast<std::size_t>('a' + i)] = i;
  std::vector<std::array<int, 3>> merges;
  while (merges.size() < 40) {
    const int l = static_cast<int>(rng() % tokens.size()), r = static_cast<int>(rng() % tokens.size());
    const std::string sum = tokens[static_cast<std::size_t>(l)] + tokens[static_cast<std::size_t>(r)];
    if (sum.size() > 9 || std::find(tokens.begin(), tokens.end(), sum) != tokens.end()) continue;
    merges.push_back({l, r, static_cast<int>(tokens.size())});
    tokens.push_back(sum);
  }
  bpe.reserve_merges(merges.size());
  for (const auto& m : merges) bpe.add_merge(m[0], m[1], m[2]);
  for (int round = 0; round < 300; ++round) {
    std::string word;
    for (std::size_t n = 1 + rng() % 80; n > 0; --n) word.push_back(static_cast<char>('a' + rng() % 3));
    std::vector<std::int32_t> expected;
    for (const char c : word) expected.push_back(c - 'a');
    for (bool again = true; again;) {
      again = false;
      for (const auto& m : merges) {
        for (std::size_t i = 0; i + 1 < expected.size() && !again; ++i) {
          if (expected[i] != m[0] || expected[i + 1] != m[1]) continue;
          expected[i] = m[2];
          expected.erase(expected.begin() + static_cast<std::ptrdiff_t>(i) + 1);
          again = true;
        }
        if (again) break;
      }
    }
    std::vector<std::int32_t> ids;
    bpe.encode(word, ids);
    REQUIRE(ids == expected);
  }
}

TEST_CASE("a single word ends where no alphabetic character follows") {
  const Tokenizer tokenizer = Tokenizer::load(kFolder + "qwen2.json");
  const auto found = [&](const std::string& text) {
    const auto ids = tokenizer.encode(text);
    return std::find(ids.begin(), ids.end(), tokenizer.id_of("wordy").value()) != ids.end();
  };
  // What \w of the tokenizers package is: letters, marks, decimal digits, letter numbers, connectors, joiners, and
  // symbols that are alphabetic.
  for (const char* code : {"a", "\u00e9", "\u0301", "\u4f60", "7", "\u2167", "_", "\u200d", "\u24b9", "\U0001f170"}) {
    INFO(code);
    CHECK_FALSE(found(std::string("wordy") + code));
    CHECK_FALSE(found(std::string(code) + "wordy"));
  }
  for (const char* code : {"", " ", "-", "\u00b2", "\u2460", "\u24ea", "\u00bd", "\U0001f600", "\u2019", "\u200b"}) {
    INFO(code);
    CHECK(found(std::string("wordy") + code));
    CHECK(found(std::string(code) + "wordy"));
  }
}

TEST_CASE("threads share one tokenizer") {
  const Tokenizer tokenizer = Tokenizer::load(kFolder + "qwen2.json");
  const std::string text = "A chat between a curious user and \xe4\xbd\xa0\xe5\xa5\xbd 12345 cafe\xcc\x81";
  const auto expected = tokenizer.encode(text);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        wrong += tokenizer.encode(text) != expected;
        tokenizer.encode("word" + std::to_string(i * t));
      }
    });
  }
  for (auto& t : threads) t.join();
  CHECK(wrong == 0);
}

TEST_CASE("BOS and EOS come from tokenizer_config.json") {
  const TempFolder temporary;
  const std::filesystem::path folder = temporary.path();
  temporary.write("tokenizer.json", byte_tokenizer().dump());
  CHECK(Tokenizer::load(folder).eos_token().empty());
  const auto before = Tokenizer::load(folder).hash();
  temporary.write("tokenizer_config.json", R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>"})");
  CHECK(Tokenizer::load(folder).bos_token() == "<s>");
  CHECK(Tokenizer::load(folder).eos_token() == "</s>");
  CHECK(Tokenizer::load(folder).hash() != before);
  std::filesystem::remove_all(folder);
  CHECK_THROWS_AS(Tokenizer::load(folder), ConfigError);
}

TEST_CASE("unsupported and damaged tokenizer files say what and where") {
  const auto fails = [](json file, const std::string& expected) {
    INFO(expected);
    CHECK_THROWS_WITH(made(file), Catch::Contains("test.json") && Catch::Contains(expected));
    CHECK_THROWS_AS(made(file), ConfigError);
  };
  json f = byte_tokenizer();
  f["model"]["type"] = "Unigram";
  fails(f, "Unigram");
  f = byte_tokenizer();
  f["pre_tokenizer"] = nullptr;
  fails(f, "model.byte_fallback or model.unk_token");
  f["pre_tokenizer"] = {{"type", "Metaspace"}};
  fails(f, "replacement");
  f["pre_tokenizer"]["replacement"] = "__";
  fails(f, "one character");
  f["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "last"}};
  fails(f, "last");
  f["pre_tokenizer"] = {{"type", "Whitespace"}};
  fails(f, "Whitespace");
  f["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", "a(b"}}}, {"behavior", "Isolated"}, {"invert", false}};
  fails(f, "near byte");
  f["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Isolated"}, {"invert", false}};
  fails(f, "a pre_tokenizer ByteLevel");
  f = byte_tokenizer();
  f["normalizer"] = {{"type", "Replace"}};
  fails(f, "\"content\"");
  f["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", "x"}};
  fails(f, "Replace of nothing");
  f["normalizer"] = {{"type", "Precompiled"}};
  fails(f, "Precompiled");
  f = byte_tokenizer();
  f["model"]["byte_fallback"] = true;
  fails(f, "byte_fallback");
  f = byte_tokenizer();
  f["model"]["vocab"]["ab"] = 5;
  fails(f, "id 5 is another token's");
  f = byte_tokenizer();
  f["model"]["merges"] = json::array({"a b"});
  fails(f, "model.merges[0]");
  f["model"]["merges"] = json::array({"ab"});
  fails(f, "\"left right\"");
  f["model"]["merges"] = json::array({json::array({"a"})});
  fails(f, "\"left right\"");
  f = byte_tokenizer();
  f["model"]["vocab"]["far"] = 4'000'000'000LL;
  fails(f, "is not in [0");
  f["model"]["vocab"]["far"] = -1;
  fails(f, "is not in [0");
  f["model"]["vocab"]["far"] = "x";
  fails(f, "integer id");
  f = byte_tokenizer();
  f["added_tokens"] = json::array({{{"id", 256}}});
  fails(f, "added_tokens[0]");
  f["added_tokens"] = json::array({{{"id", 65}, {"content", "<s>"}}});
  fails(f, "id 65 is another token's");
  f["added_tokens"] = json::array({{{"id", 300}, {"content", "A"}}});
  fails(f, "in the vocabulary 65");
  f["added_tokens"] = json::array({{{"id", 300}, {"content", "<s>"}}, {{"id", 301}, {"content", "<s>"}}});
  fails(f, "there twice");
  f["added_tokens"] = json::array({{{"id", 300}, {"content", "<s>"}}, {{"id", 300}, {"content", "</s>"}}});
  fails(f, "added_tokens[1]: id 300");
  f["added_tokens"] = json::array({{{"id", 1 << 20}, {"content", "<s>"}}});
  fails(f, "is not in [0");
  f = byte_tokenizer();
  f["model"]["dropout"] = 0.1;
  fails(f, "dropout");
  CHECK_THROWS_WITH(Tokenizer::parse("{\n \"a\": nope}", "x.json"), Catch::Contains("x.json:2:"));
  CHECK_THROWS_WITH(Tokenizer::parse(std::string(100000, '['), "x.json"), Catch::Contains("nested deeper"));
  CHECK_THROWS_AS(Tokenizer::parse("", "x.json"), ConfigError);
  CHECK_THROWS_AS(Tokenizer::parse("[]", "x.json"), ConfigError);
}

TEST_CASE("a pattern that backtracks without end is stopped by its limit") {
  json file = byte_tokenizer();
  const json split = {
      {"type", "Split"}, {"pattern", {{"Regex", "(a+a+)+b|."}}}, {"behavior", "Isolated"}, {"invert", false}};
  const json level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, level}}};
  const Tokenizer tokenizer = made(file);
  CHECK(tokenizer.encode("aaab").size() == 4);
  CHECK_THROWS_AS(tokenizer.encode(std::string(300, 'a')), DataError);
}

TEST_CASE("fuzz: mutated tokenizer files only give config errors") {
  std::ifstream in(kFolder + "qwen2.json");
  const std::string good((std::istreambuf_iterator<char>(in)), {});
  std::mt19937 rng(11);
  int parsed = 0, refused = 0;
  const int rounds = fuzz_rounds(300);
  for (int round = 0; round < rounds; ++round) {
    std::string bad = good;
    // Most of the file is vocabulary; half of the mutations go to the few hundred bytes before it.
    const std::size_t span = round % 2 == 0 ? std::min<std::size_t>(bad.size(), 2600) : bad.size();
    for (std::size_t n = 1 + rng() % 4; n > 0; --n) {
      const std::size_t at = rng() % span;
      switch (rng() % 5) {
        case 0: bad[at] = static_cast<char>(rng()); break;
        case 1: bad.erase(at, 1 + rng() % 20); break;
        case 2: bad.insert(at, std::string(1 + rng() % 5, "[]{}\",:0-e\\"[rng() % 11])); break;
        case 3: bad.resize(std::max<std::size_t>(at, 1)); break;
        default: bad[at] = "0123456789nulltrefas"[rng() % 20]; break;
      }
      if (bad.size() < span) break;
    }
    try {
      const Tokenizer tokenizer = Tokenizer::parse(bad, "mutated.json");
      ++parsed;
      try {
        tokenizer.decode(tokenizer.encode_with_special("Hello <image> caf\xc3\xa9 \xff 123"));
      } catch (const DataError&) {
      }
    } catch (const ConfigError&) {
      ++refused;
    }
  }
  CHECK(parsed > 0);
  CHECK(refused > 50);
}
